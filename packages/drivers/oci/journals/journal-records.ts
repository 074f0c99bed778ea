/** The records of a journal file, as PROTOCOL.md of the keeper has them. */
import type { ExecId } from "@holdfast/contract";
import { type JournalEnd, type JournalSlice, type KeeperExec, KeeperRefusal } from "@holdfast/engine";
import { Reader, readExec, readRecords } from "@holdfast/keeper";
import type { JournalFile } from "./journal-file.ts";

const MAGIC = 0x314a_4648;
const MAGIC_BYTES = Buffer.from("HFJ1");
const HEADER_BYTES = 24;
const DATA_MAX = 65_536;
const RECORD_MAX = HEADER_BYTES + DATA_MAX;
const [STDOUT, EXIT] = [1, 3];
/** Of a time in microseconds: beyond it the number is none that a clock gives, and none that can be counted with. */
const TIME_HIGH_MAX = 0x1f_ffff;

const SLICE_MAX = 1_048_576;
/** Output in tiny pieces: taking more of them apart would keep the event loop for too long. */
const SLICE_RECORDS_MAX = 4_096;
const WALK_BYTES = 1_048_576;
/** No keeper keeps as much of one journal; whoever made such a file is not to keep us busy with it. */
const WALK_MAX = 8 * 1_024 ** 3;

/** Header and data of the record that begins there, in bytes; 0 where none does. */
function recordSize(bytes: Buffer, at: number): number {
  const kind = bytes.readUInt32LE(at + 4);
  const length = bytes.readUInt32LE(at + 8);
  const sound =
    bytes.readUInt32LE(at) === MAGIC &&
    kind >= STDOUT &&
    kind <= EXIT &&
    length <= DATA_MAX &&
    bytes.readUInt32LE(at + 12) === 0 &&
    bytes.readUInt32LE(at + 20) <= TIME_HIGH_MAX;
  return sound ? HEADER_BYTES + length : 0;
}

const isZero = (bytes: Buffer): boolean => bytes.equals(ZEROS.subarray(0, bytes.length));
const ZEROS = Buffer.alloc(RECORD_MAX);

/**
 * Where the first record begins that was not dropped: the keeper punches a hole at the head, which reads as zeros, and no
 * record begins with a zero. Of what lies behind the hole every stretch as long as the longest record has the beginning of
 * one in it, so a stretch of zeros is in the hole and the border is found by halving, however long the hole is. What the
 * file system has allocated says where to look first.
 */
export async function findFloor(file: JournalFile, signal: AbortSignal): Promise<number> {
  if (!isZero(await file.read(0, 1))) return 0;
  let zero = -1;
  let written = Math.floor(file.size / RECORD_MAX);
  const look = async (stretch: number): Promise<void> => {
    if (stretch <= zero || stretch >= written) return;
    signal.throwIfAborted();
    if (isZero(await file.read(stretch * RECORD_MAX, RECORD_MAX))) zero = stretch;
    else written = stretch;
  };
  const guess = Math.floor((file.size - file.allocated) / RECORD_MAX);
  for (const near of [guess, guess - 1, guess + 1]) await look(near);
  while (written - zero > 1) await look(Math.floor((zero + written) / 2));
  const bytes = await file.read(written * RECORD_MAX, RECORD_MAX);
  const first = bytes.findIndex((byte) => byte !== 0);
  return first === -1 ? file.size : written * RECORD_MAX + first;
}

/** Whole records from a cursor on: at most `maxBytes` of them, but always one. */
export async function readSlice(
  file: JournalFile,
  from: { cursor: number; maxBytes: number },
  signal: AbortSignal,
): Promise<JournalSlice> {
  const { cursor, maxBytes } = from;
  const floor = await findFloor(file, signal);
  if (cursor < floor) {
    throw new KeeperRefusal("below_floor", "the journal begins later than this cursor", null, floor);
  }
  if (cursor > file.size) throw badCursor("the cursor is behind the journal's end");
  const bytes = await file.read(cursor, Math.min(SLICE_MAX, Math.max(RECORD_MAX, maxBytes)));
  const { length, over } = measure(bytes, maxBytes, cursor + bytes.length >= file.size);
  if (length === 0 && !over) throw badCursor("no record begins at this cursor");
  const { records, next } = readRecords(bytes.subarray(0, length), cursor);
  return { records, next, floor, end: over ? next : file.size, more: !over };
}

const badCursor = (why: string) => new KeeperRefusal("bad_cursor", why);

/**
 * How many of these bytes are whole records, and whether the journal is over behind them: at the end of the file, in a
 * record that was torn there, or in what was never written. What is neither that nor a record is damage; whoever
 * reads on there is refused, so that nobody takes it for the end.
 */
function measure(bytes: Buffer, maxBytes: number, isLast: boolean): { length: number; over: boolean } {
  let at = 0;
  for (let count = 0; at + HEADER_BYTES <= bytes.length; count++) {
    const size = recordSize(bytes, at);
    if (size === 0) return { length: at, over: isZero(bytes.subarray(at, at + HEADER_BYTES)) };
    if (at + size > bytes.length) return { length: at, over: isLast };
    const isFull = at + size > maxBytes || count === SLICE_RECORDS_MAX;
    if (isFull && at > 0) return { length: at, over: false };
    at += size;
  }
  return { length: at, over: isLast && isTorn(bytes.subarray(at)) };
}

/** What is left is nothing, or begins like a record. */
const isTorn = (rest: Buffer): boolean => {
  const shared = Math.min(rest.length, MAGIC_BYTES.length);
  return rest.subarray(0, shared).equals(MAGIC_BYTES.subarray(0, shared));
};

/**
 * The exit, found from record to record: output may hold bytes that look like an exit, and records of background children
 * may come behind it.
 */
export async function findEnd(file: JournalFile, id: ExecId, signal: AbortSignal): Promise<JournalEnd> {
  const floor = await findFloor(file, signal);
  let at = floor;
  while (at - floor < WALK_MAX) {
    signal.throwIfAborted();
    const bytes = await file.read(at, WALK_BYTES);
    let next = 0;
    while (next + HEADER_BYTES <= bytes.length) {
      const size = recordSize(bytes, next);
      const offset = at + next;
      if (size === 0 || offset + size > file.size) return { exec: null, end: offset };
      if (bytes.readUInt32LE(next + 4) === EXIT) {
        signal.throwIfAborted();
        const exec = readExit(await file.read(offset + HEADER_BYTES, size - HEADER_BYTES), id);
        if (exec !== null) return { exec: { ...exec, journalFloor: floor, journalEnd: offset }, end: offset };
      }
      next += size;
    }
    if (next === 0) return { exec: null, end: at };
    at += next;
  }
  throw new KeeperRefusal("too_large", "the journal is larger than any that is kept");
}

/** Null where it is not the exit of this exec. */
function readExit(data: Buffer, id: ExecId): KeeperExec | null {
  try {
    const from = Reader.of(data);
    const exec = readExec(from);
    from.end();
    return exec.id === id && exec.state !== "running" ? exec : null;
  } catch {
    return null;
  }
}

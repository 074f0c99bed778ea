/** Reads the records of a journal file. The keeper's PROTOCOL.md defines the format. */
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
/**
 * Maximum value of the upper 32 bits of a record's time in microseconds. A record with a larger time is invalid,
 * because JavaScript can't represent that time exactly.
 */
const TIME_HIGH_MAX = 0x1f_ffff;

const SLICE_MAX = 1_048_576;
/** Maximum number of records in a slice. Parsing more of them would block the event loop for too long. */
const SLICE_RECORDS_MAX = 4_096;
const WALK_BYTES = 1_048_576;
/**
 * Maximum number of bytes to search for an exit record. A keeper's journals are smaller; a hostile sandbox may create a
 * larger file.
 */
const WALK_MAX = 8 * 1_024 ** 3;

/** Returns the size in bytes, header included, of the record that begins at `at`; 0 if no valid record begins there. */
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
 * Finds the offset of the first record that was not dropped. The keeper drops records by punching a hole at the start
 * of the file, which then reads as zeros. No record begins with a zero byte, and after the hole every stretch of
 * RECORD_MAX bytes contains the beginning of a record. So RECORD_MAX zeros in a row are inside the hole, and a binary
 * search finds the end of the hole. The file's allocated size gives the first guess.
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

/** Reads complete records from a cursor on: at most `maxBytes`, but at least one record. */
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
  if (cursor > file.size) throw badCursor("the cursor is past the journal's end");
  const bytes = await file.read(cursor, Math.min(SLICE_MAX, Math.max(RECORD_MAX, maxBytes)));
  const { length, over } = measure(bytes, maxBytes, cursor + bytes.length >= file.size);
  if (length === 0 && !over) throw badCursor("no record begins at this cursor");
  const { records, next } = readRecords(bytes.subarray(0, length), cursor);
  return { records, next, floor, end: over ? next : file.size, more: !over };
}

const badCursor = (why: string) => new KeeperRefusal("bad_cursor", why);

/**
 * Returns how many of the given bytes are complete records, and whether the journal ends after them. A journal ends at
 * the end of the file, at an incomplete last record, or at zeros, because that space was never written. Any other bytes
 * that are not a record mean that the journal is damaged: `over` is then false, and the next read at that position
 * throws.
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

/** Whether the remaining bytes are empty, or only the first part of a record. */
const isTorn = (rest: Buffer): boolean => {
  const shared = Math.min(rest.length, MAGIC_BYTES.length);
  return rest.subarray(0, shared).equals(MAGIC_BYTES.subarray(0, shared));
};

/**
 * Finds the exit record by walking from record to record. Searching for its bytes would not be safe, because output may
 * contain bytes that look like an exit record. Output of background children may follow the exit record.
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
  throw new KeeperRefusal("too_large", "the journal is larger than any journal of a keeper");
}

/** Parses an exit record. Returns null if it is invalid or not the exit of this exec. */
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

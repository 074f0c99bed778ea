import type { JournalRecord, JournalSlice } from "@holdfast/engine";
import { releaseFrame } from "./frame-memory.ts";
import { Reader, WireError } from "./wire.ts";

const MAGIC = 0x314a4648;
const HEADER_BYTES = 24;
const RECORD_LIMIT = 65_536;
const EXIT = 3;

/**
 * Extracts the output of complete records. The first record is at `cursor`. The exit record has no output; it only
 * advances the cursor.
 */
export function readRecords(bytes: Buffer, cursor: number): { records: JournalRecord[]; next: number } {
  const from = Reader.of(bytes);
  const records: JournalRecord[] = [];
  let next = cursor;
  while (from.left > 0) {
    if (from.u32() !== MAGIC) throw new WireError("a journal record without its magic number");
    const kind = from.u32();
    const length = from.u32();
    if (from.u32() !== 0 || length > RECORD_LIMIT) throw new WireError("a damaged journal record");
    const at = Math.floor(from.u64() / 1000);
    next += HEADER_BYTES + length;
    const data = from.take(length);
    if (kind === 1 || kind === 2) {
      records.push({ stream: kind === 1 ? "stdout" : "stderr", at, cursor: next, data });
    } else if (kind !== EXIT) {
      throw new WireError("a journal record of an unknown kind");
    }
  }
  return { records, next };
}

export function readSlice(from: Reader, cursor: number): JournalSlice {
  const next = from.u64();
  const floor = from.u64();
  const end = from.u64();
  const more = from.flag();
  const bytes = from.bytes();
  const read = readRecords(bytes, cursor);
  if (read.next !== next) throw new WireError("a cursor that does not match the end of the records");
  let isReleased = false;
  const release = () => {
    if (!isReleased) releaseFrame(bytes);
    isReleased = true;
  };
  return { records: read.records, next, floor, end, more, release };
}

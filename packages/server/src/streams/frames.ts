/**
 * `application/vnd.holdfast.frames`: an exec's records as bytes, without the overhead of base64. A frame is
 *
 *     u8 kind, u32le length, [kind 1 and 2: u64le offset, u64le time,] payload of `length` bytes
 *
 * | kind | payload |
 * |---|---|
 * | 0 | a record without output (`start`, `keepalive`, `end`) as JSON in UTF-8, as in the other formats |
 * | 1 | bytes of stdout |
 * | 2 | bytes of stderr |
 *
 * `offset` is the position after the chunk: the last part of a cursor. The other parts are the same in all cursors of
 * an exec. `time` is in microseconds since the epoch. Frames follow each other without padding; a chunk of the
 * transport may begin anywhere in a frame.
 */
import type { OutputRecord } from "@holdfast/engine";

export const FRAME_KINDS = { json: 0, stdout: 1, stderr: 2 } as const;

/** Length of the part before the payload, in a frame of kind 0. */
export const JSON_HEADER_BYTES = 5;
/** Length of the part before the payload, in a frame of kind 1 or 2. */
export const OUTPUT_HEADER_BYTES = 21;

const TWO_TO_32 = 4_294_967_296;

/**
 * Returns a frame as pieces, which must be written in this order. The payload is one of these pieces and is not copied.
 */
export function frameOf(record: OutputRecord): Uint8Array[] {
  switch (record.type) {
    case "stdout":
    case "stderr":
      return [outputHeader(record), record.data];
    case "start":
    case "keepalive":
    case "end":
      return [jsonFrame(record)];
    default:
      return record satisfies never;
  }
}

function outputHeader({ type, cursor, at, data }: Extract<OutputRecord, { data: Uint8Array }>): Buffer {
  const header = Buffer.allocUnsafe(OUTPUT_HEADER_BYTES);
  header.writeUInt8(FRAME_KINDS[type], 0);
  header.writeUInt32LE(data.length, 1);
  writeU64(header, offsetIn(cursor), 5);
  writeU64(header, Math.round(timeWithin(at) * 1_000), 13);
  return header;
}

function jsonFrame(record: OutputRecord): Buffer {
  const text = JSON.stringify(record);
  const length = Buffer.byteLength(text);
  const frame = Buffer.allocUnsafe(JSON_HEADER_BYTES + length);
  frame.writeUInt8(FRAME_KINDS.json, 0);
  frame.writeUInt32LE(length, 1);
  frame.write(text, JSON_HEADER_BYTES);
  return frame;
}

/** Writes a u64. Offsets and times are far below 2^53, so a number represents them exactly. */
function writeU64(target: Buffer, value: number, at: number): void {
  target.writeUInt32LE(value % TWO_TO_32, at);
  target.writeUInt32LE(Math.floor(value / TWO_TO_32), at + 4);
}

/** Returns the offset in a cursor, the part after the last dot. */
const offsetIn = (cursor: string): number => Number(cursor.slice(cursor.lastIndexOf(".") + 1));

const LATEST = Date.UTC(9999, 11, 31, 23, 59, 59, 999);

/**
 * Limits a time to the range of valid dates. A program in the sandbox can write to the journal, so the times in it may
 * be any number.
 */
export const timeWithin = (at: number): number => (at >= 0 ? Math.min(at, LATEST) : 0);

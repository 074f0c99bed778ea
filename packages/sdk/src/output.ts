import type { OutputChunk } from "./api.ts";
import type { StreamRecord } from "./types.generated.ts";

/** A record holds at most 64 KiB of output, the last one an exec with its inline output. */
const LINE_LIMIT_BYTES = 32 * 1_048_576;
const NEWLINE = 10;

/** The records of a stream of newline-separated JSON. */
export async function* recordsOf(
  pieces: AsyncIterable<Uint8Array>,
): AsyncGenerator<StreamRecord, void, undefined> {
  let rest: Buffer[] = [];
  let restBytes = 0;
  for await (const bytes of pieces) {
    let piece = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let end = piece.indexOf(NEWLINE); end !== -1; end = piece.indexOf(NEWLINE)) {
      const line =
        rest.length === 0 ? piece.subarray(0, end) : Buffer.concat([...rest, piece.subarray(0, end)]);
      rest = [];
      restBytes = 0;
      piece = piece.subarray(end + 1);
      if (line.length > 0) yield JSON.parse(line.toString()) as StreamRecord;
    }
    if (piece.length === 0) continue;
    rest.push(piece);
    restBytes += piece.length;
    if (restBytes > LINE_LIMIT_BYTES) throw new RangeError("a record of the stream is too long");
  }
}

type OutputRecord = Extract<StreamRecord, { data: string }>;

/** Makes chunks of records, carrying the beginning of a cut character over to the next chunk of its stream. */
export class Chunker {
  readonly #carried: Record<"stdout" | "stderr", Uint8Array> = {
    stdout: new Uint8Array(),
    stderr: new Uint8Array(),
  };

  chunk(record: OutputRecord): OutputChunk {
    const data = Buffer.from(record.data, "base64");
    const before = this.#carried[record.type];
    const cut = cutCharacter(data, before);
    this.#carried[record.type] = cut;
    return new Chunk(record, data, before, cut.length);
  }
}

class Chunk implements OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  readonly cursor: string;
  readonly at: string;
  readonly #before: Uint8Array;
  readonly #cutBytes: number;

  constructor(record: OutputRecord, data: Uint8Array, before: Uint8Array, cutBytes: number) {
    this.stream = record.type;
    this.data = data;
    this.cursor = record.cursor;
    this.at = record.at;
    this.#before = before;
    this.#cutBytes = cutBytes;
  }

  /** Decoded when asked for: who copies bytes doesn't pay for it. */
  get text(): string {
    const whole = Buffer.concat([this.#before, this.data]);
    return whole.toString("utf8", 0, whole.length - this.#cutBytes);
  }
}

/** The bytes at the end, three at most, that begin a UTF-8 character but don't complete it. */
export function cutCharacter(data: Uint8Array, before: Uint8Array = new Uint8Array()): Uint8Array {
  const tail = data.length >= 4 ? data.subarray(-4) : Buffer.concat([before, data]).subarray(-4);
  for (let back = 1; back <= Math.min(3, tail.length); back++) {
    const byte = tail[tail.length - back] ?? 0;
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return needed > back ? Uint8Array.from(tail.subarray(tail.length - back)) : new Uint8Array();
  }
  return new Uint8Array();
}

import type { Exec } from "./types.generated.ts";

/**
 * The frames of an output stream: u8 kind, u32 payload length; for output then u64 offset and u64 time in µs; then the
 * payload. All integers are little endian.
 */
export const FRAMES_TYPE = "application/vnd.holdfast.frames";

export type Frame =
  | { type: "start" | "end"; cursor: string; exec: Exec }
  | { type: "keepalive"; cursor: string; suspended?: boolean }
  | OutputFrame;

export interface OutputFrame {
  type: "stdout" | "stderr";
  /** Behind these bytes, in the exec's journal. */
  offset: number;
  timeUs: number;
  data: Buffer;
}

const KIND = { record: 0, stdout: 1, stderr: 2 } as const;
const RECORD_HEAD_BYTES = 5;
const OUTPUT_HEAD_BYTES = 21;
/** Far above what a server sends: a length beyond it means that the stream is not what it should be. */
const PAYLOAD_LIMIT_BYTES = 64 * 1_048_576;

/**
 * Takes a stream apart that was cut anywhere. A payload that lies within one piece shares its memory; one that does not is
 * put together in memory of its own, copied once.
 */
export class FrameDecoder {
  readonly #head = Buffer.alloc(OUTPUT_HEAD_BYTES);
  #headBytes = 0;
  /** The payload that is being put together, and how much of it is there. */
  #payload: Buffer | null = null;
  #payloadBytes = 0;

  /** Every frame that is complete with this piece. Throws where the bytes are no frames. */
  push(piece: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    let rest = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
    while (rest.length > 0) {
      rest = this.#payload === null ? this.#takeHead(rest, frames) : this.#takePayload(rest, frames);
    }
    return frames;
  }

  /** And the payload, where that is there as a whole. Says what is left over. */
  #takeHead(bytes: Buffer, frames: Frame[]): Buffer {
    const needed = headBytes(this.#head, this.#headBytes);
    const taken = bytes.copy(this.#head, this.#headBytes, 0, needed - this.#headBytes);
    this.#headBytes += taken;
    const rest = bytes.subarray(taken);
    if (this.#headBytes < headBytes(this.#head, this.#headBytes)) return rest;
    const length = this.#head.readUInt32LE(1);
    if (rest.length >= length) {
      this.#finish(rest.subarray(0, length), frames);
      return rest.subarray(length);
    }
    this.#payload = Buffer.allocUnsafeSlow(length);
    this.#payloadBytes = 0;
    return rest;
  }

  #takePayload(bytes: Buffer, frames: Frame[]): Buffer {
    const payload = this.#payload ?? Buffer.of();
    const taken = bytes.copy(payload, this.#payloadBytes);
    this.#payloadBytes += taken;
    if (this.#payloadBytes === payload.length) this.#finish(payload, frames);
    return bytes.subarray(taken);
  }

  #finish(payload: Buffer, frames: Frame[]): void {
    frames.push(frameOf(this.#head, payload));
    this.#headBytes = 0;
    this.#payload = null;
  }
}

/** How long the head is of which `known` bytes are there: its kind tells, once it is there. */
function headBytes(head: Buffer, known: number): number {
  if (known < RECORD_HEAD_BYTES) return RECORD_HEAD_BYTES;
  const kind = head.readUInt8(0);
  if (kind > KIND.stderr || head.readUInt32LE(1) > PAYLOAD_LIMIT_BYTES) {
    throw new RangeError("the stream is not one of frames");
  }
  return kind === KIND.record ? RECORD_HEAD_BYTES : OUTPUT_HEAD_BYTES;
}

function frameOf(head: Buffer, payload: Buffer): Frame {
  const kind = head.readUInt8(0);
  if (kind === KIND.record) return JSON.parse(payload.toString()) as Frame;
  return {
    type: kind === KIND.stdout ? "stdout" : "stderr",
    offset: readU64(head, 5),
    timeUs: readU64(head, 13),
    data: payload,
  };
}

/** Journals end, and times are, far below where a number stops being exact. */
const readU64 = (bytes: Buffer, at: number): number =>
  bytes.readUInt32LE(at) + bytes.readUInt32LE(at + 4) * 2 ** 32;

import type { Exec } from "../types.generated.ts";

/**
 * Content type of an output stream in frames. A frame consists of a u8 kind, a u32 payload length, in output frames
 * also a u64 offset and a u64 time in µs, and then the payload. All integers are little endian.
 */
export const FRAMES_TYPE = "application/vnd.holdfast.frames";

export type Frame =
  | { type: "start" | "end"; cursor: string; exec: Exec }
  | { type: "keepalive"; cursor: string; suspended?: boolean }
  | OutputFrame;

export interface OutputFrame {
  type: "stdout" | "stderr";
  /** The byte offset in the exec's journal at which `data` ends. */
  offset: number;
  timeUs: number;
  data: Buffer;
}

const KIND = { record: 0, stdout: 1, stderr: 2 } as const;
const RECORD_HEAD_BYTES = 5;
const OUTPUT_HEAD_BYTES = 21;
/**
 * Maximum payload length that is accepted, far above what a server sends. A larger length means that the stream does
 * not consist of frames.
 */
const PAYLOAD_LIMIT_BYTES = 64 * 1_048_576;

/**
 * Decodes frames from pieces that may begin and end anywhere in a frame. A payload that lies within one piece shares
 * that piece's memory. A payload that spans several pieces is copied once.
 */
export class FrameDecoder {
  readonly #head = Buffer.alloc(OUTPUT_HEAD_BYTES);
  #headBytes = 0;
  /** The payload that is being assembled from several pieces. */
  #payload: Buffer | null = null;
  #payloadBytes = 0;

  /** Returns the frames that this piece completes. Throws if the bytes are not frames. */
  push(piece: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    let rest = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
    while (rest.length > 0) {
      rest = this.#payload === null ? this.#takeHead(rest, frames) : this.#takePayload(rest, frames);
    }
    return frames;
  }

  /** Decodes a head, and its payload if complete. Returns the remaining bytes. */
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

/** Returns the length of a frame's head, which depends on the frame's kind. The kind is the first byte of the head. */
function headBytes(head: Buffer, known: number): number {
  if (known < RECORD_HEAD_BYTES) return RECORD_HEAD_BYTES;
  const kind = head.readUInt8(0);
  if (kind > KIND.stderr || head.readUInt32LE(1) > PAYLOAD_LIMIT_BYTES) {
    throw new RangeError("the stream does not consist of frames");
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

/** Reads a u64 as a number. Journal offsets and times are far below 2^53, so the number is exact. */
const readU64 = (bytes: Buffer, at: number): number =>
  bytes.readUInt32LE(at) + bytes.readUInt32LE(at + 4) * 2 ** 32;

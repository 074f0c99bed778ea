/** Reads frames as a client does, from chunks that may begin and end anywhere in a frame. */
import { FRAME_KINDS, JSON_HEADER_BYTES, OUTPUT_HEADER_BYTES } from "../streams/frames.ts";

export type Frame =
  | { kind: "json"; record: unknown }
  | { kind: "stdout" | "stderr"; offset: number; timeUs: number; data: Buffer };

export class FrameReader {
  #rest = Buffer.alloc(0);

  /** Number of bytes that belong to an incomplete frame. */
  get pending(): number {
    return this.#rest.length;
  }

  push(chunk: Uint8Array): Frame[] {
    this.#rest = Buffer.concat([this.#rest, chunk]);
    const frames: Frame[] = [];
    for (let frame = this.#next(); frame !== null; frame = this.#next()) frames.push(frame);
    return frames;
  }

  #next(): Frame | null {
    const bytes = this.#rest;
    if (bytes.length < JSON_HEADER_BYTES) return null;
    const kind = bytes.readUInt8(0);
    const header = kind === FRAME_KINDS.json ? JSON_HEADER_BYTES : OUTPUT_HEADER_BYTES;
    const length = bytes.readUInt32LE(1);
    if (bytes.length < header + length) return null;
    this.#rest = bytes.subarray(header + length);
    const payload = bytes.subarray(header, header + length);
    if (kind === FRAME_KINDS.json) return { kind: "json", record: JSON.parse(payload.toString("utf8")) };
    if (kind !== FRAME_KINDS.stdout && kind !== FRAME_KINDS.stderr) throw new Error(`kind ${kind}`);
    return {
      kind: kind === FRAME_KINDS.stdout ? "stdout" : "stderr",
      offset: Number(bytes.readBigUInt64LE(5)),
      timeUs: Number(bytes.readBigUInt64LE(13)),
      data: Buffer.from(payload),
    };
  }
}

import { KeeperRefusal } from "@holdfast/engine";
import { frameCopy, frameMemory } from "./frame-memory.ts";
import { DATA_LIMIT, FRAME_LIMIT, HEADER_BYTES } from "./protocol.ts";

/** Reports bytes that violate the protocol. Decoding throws no other error. */
export class WireError extends Error {
  constructor(what: string) {
    super(what);
    this.name = "WireError";
  }
}

const TWO_TO_32 = 0x1_0000_0000;

/**
 * Reads fields from a buffer. All data from a keeper is untrusted: every length is checked against the available bytes
 * before it is used. The caller may keep all results: bytes are copied if the buffer will be overwritten.
 */
export class Reader {
  #buffer: Buffer = Buffer.alloc(0);
  #at = 0;
  #end = 0;
  #shared = false;

  static of(bytes: Uint8Array): Reader {
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return new Reader().aim(buffer, 0, buffer.length, false);
  }

  /** Sets the range to read. If `shared` is true, the buffer is overwritten later, so bytes are copied out of it. */
  aim(buffer: Buffer, start: number, end: number, shared: boolean): this {
    this.#buffer = buffer;
    this.#at = start;
    this.#end = end;
    this.#shared = shared;
    return this;
  }

  get left(): number {
    return this.#end - this.#at;
  }

  #advance(size: number): number {
    const at = this.#at;
    if (size > this.#end - at) throw new WireError(`${size} bytes expected, ${this.#end - at} left`);
    this.#at = at + size;
    return at;
  }

  u8(): number {
    return this.#buffer.readUInt8(this.#advance(1));
  }

  flag(): boolean {
    const value = this.u8();
    if (value > 1) throw new WireError(`${value} is not a flag`);
    return value === 1;
  }

  u32(): number {
    return this.#buffer.readUInt32LE(this.#advance(4));
  }

  i32(): number {
    return this.#buffer.readInt32LE(this.#advance(4));
  }

  /** Reads a u64 that is a size, a time or a cursor. Refuses a value that does not fit in a number. */
  u64(): number {
    const at = this.#advance(8);
    const value = this.#buffer.readUInt32LE(at + 4) * TWO_TO_32 + this.#buffer.readUInt32LE(at);
    if (!Number.isSafeInteger(value)) throw new WireError("a number is out of range");
    return value;
  }

  /** Reads a u64 that only identifies something, such as an inode, and returns its decimal digits. */
  name64(): string {
    return this.#buffer.readBigUInt64LE(this.#advance(8)).toString();
  }

  str(): string {
    const size = this.u32();
    const at = this.#advance(size);
    return this.#buffer.toString("utf8", at, at + size);
  }

  bytes(): Buffer {
    return this.take(this.u32());
  }

  take(size: number): Buffer {
    const at = this.#advance(size);
    const view = this.#buffer.subarray(at, at + size);
    return this.#shared ? frameCopy(view) : view;
  }

  /**
   * Reads a count of items of at least `smallest` bytes each. Refuses a count for which too few bytes follow, so that
   * no oversized array is allocated.
   */
  count(smallest: number): number {
    const count = this.u32();
    if (count * smallest > this.left) throw new WireError(`${count} items don't fit ${this.left} bytes`);
    return count;
  }

  end(): void {
    if (this.left !== 0) throw new WireError(`${this.left} bytes left over`);
  }
}

const SCRATCH_BYTES = 4_096;
/** Data of at least this size is given to the socket directly and is not copied to the scratch buffer. */
const BULK_BYTES = 16_384;

/**
 * Gathers encoded frames until `take` returns them for the socket. If a frame cannot be sent (a NUL in a string, too
 * large), throws the refusal with which the keeper would answer it, and keeps the other frames.
 */
export class Writer {
  #scratch = Buffer.allocUnsafeSlow(SCRATCH_BYTES);
  #at = 0;
  #parts: Uint8Array[] = [];
  #partBytes = 0;
  /** Start of the current frame in the scratch buffer. */
  #start = 0;
  /** Data of the current frame that is not copied to the scratch buffer, because it has at least BULK_BYTES. */
  #bulk: readonly Uint8Array[] = [];
  #bulkBytes = 0;

  /** Bytes waiting to be taken. */
  get size(): number {
    return this.#at + this.#partBytes;
  }

  frame(id: number, type: number, encode: (out: Writer) => void): void {
    this.#start = this.#at;
    this.#bulk = [];
    this.#bulkBytes = 0;
    try {
      const head = this.#reserve(HEADER_BYTES);
      encode(this);
      const size = this.#at - this.#start - 4 + this.#bulkBytes;
      if (size > FRAME_LIMIT) throw new KeeperRefusal("too_large", "the request is larger than one frame");
      this.#scratch.writeUInt32LE(size, head);
      this.#scratch.writeUInt32LE(id, head + 4);
      this.#scratch.writeUInt32LE(type, head + 8);
    } catch (error) {
      this.#at = this.#start;
      throw error;
    }
    this.#cut();
  }

  /**
   * Ends the current frame. If the frame has bulk data, copies the whole scratch buffer to `#parts`, the list of byte
   * arrays that `take` returns, appends the bulk data there, and empties the scratch buffer. Otherwise the frame stays
   * in the scratch buffer.
   */
  #cut(): void {
    if (this.#bulkBytes === 0) return;
    this.#parts.push(Buffer.from(this.#scratch.subarray(0, this.#at)), ...this.#bulk);
    this.#partBytes += this.#at + this.#bulkBytes;
    this.#at = 0;
  }

  #reserve(size: number): number {
    const at = this.#at;
    if (at + size > this.#scratch.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(at + size, 2 * this.#scratch.length));
      this.#scratch.copy(larger, 0, 0, at);
      this.#scratch = larger;
    }
    this.#at = at + size;
    return at;
  }

  u8(value: number): void {
    const at = this.#reserve(1);
    this.#scratch.writeUInt8(value, at);
  }

  flag(value: boolean): void {
    this.u8(value ? 1 : 0);
  }

  u16(value: number): void {
    const at = this.#reserve(2);
    if (!Number.isInteger(value) || value < 0 || value > 0xffff)
      throw malformed(`${value} is not a 16-bit number`);
    this.#scratch.writeUInt16LE(value, at);
  }

  u32(value: number): void {
    const at = this.#reserve(4);
    this.#scratch.writeUInt32LE(value, at);
  }

  u64(value: number): void {
    const at = this.#reserve(8);
    if (!Number.isSafeInteger(value) || value < 0) throw malformed(`${value} is not a size, time or cursor`);
    this.#scratch.writeUInt32LE(value % TWO_TO_32, at);
    this.#scratch.writeUInt32LE(Math.floor(value / TWO_TO_32), at + 4);
  }

  str(text: string): void {
    if (text.includes("\0")) throw malformed("text contains a NUL byte");
    if (text.length > FRAME_LIMIT)
      throw new KeeperRefusal("too_large", "the request is larger than one frame");
    const size = Buffer.byteLength(text);
    this.u32(size);
    const at = this.#reserve(size);
    this.#scratch.write(text, at, size, "utf8");
  }

  strs(texts: readonly string[]): void {
    this.u32(texts.length);
    for (const text of texts) this.str(text);
  }

  /** Writes bytes in one or more pieces, as the last field of a frame. Large data must not change until it is sent. */
  data(pieces: readonly Uint8Array[]): void {
    const size = pieces.reduce((sum, piece) => sum + piece.length, 0);
    if (size > DATA_LIMIT) throw new KeeperRefusal("too_large", "the data is larger than one frame");
    this.u32(size);
    if (size >= BULK_BYTES) {
      this.#bulk = pieces;
      this.#bulkBytes = size;
      return;
    }
    for (const piece of pieces) {
      const at = this.#reserve(piece.length);
      this.#scratch.set(piece, at);
    }
  }

  /** Returns everything gathered so far, in order, and empties the writer. */
  take(): Uint8Array[] {
    const parts = this.#parts;
    if (this.#at > 0) parts.push(Buffer.from(this.#scratch.subarray(0, this.#at)));
    if (this.#scratch.length > 16 * SCRATCH_BYTES) this.#scratch = Buffer.allocUnsafeSlow(SCRATCH_BYTES);
    this.#at = 0;
    this.#parts = [];
    this.#partBytes = 0;
    return parts;
  }
}

const malformed = (why: string) => new KeeperRefusal("malformed", why);

type OnFrame = (id: number, type: number, payload: Reader) => void;

/**
 * Finds the frames in a stream of bytes. A frame that is completely in one chunk is read in place. Any other frame is
 * gathered in a buffer of its size. Every byte is therefore copied at most once, however the stream is split into
 * chunks.
 */
export class FrameSplitter {
  readonly #reader = new Reader();
  readonly #onFrame: OnFrame;
  readonly #sizeField = Buffer.alloc(4);
  /** The frame that is being gathered, without its size field. */
  #frame: Buffer | null = null;
  #filled = 0;

  constructor(onFrame: OnFrame) {
    this.#onFrame = onFrame;
  }

  /** Processes a chunk. If `shared` is true, the chunk's memory is overwritten after this call. */
  feed(chunk: Buffer, shared: boolean): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#frame !== null) at += this.#gather(this.#frame, chunk, at);
      else if (this.#filled > 0 || chunk.length - at < 4) at += this.#gatherSize(chunk, at);
      else at += this.#whole(chunk, at, shared);
    }
  }

  /**
   * Reads a frame in place if it is completely in the chunk; otherwise begins to gather it. Called at the start of a
   * frame, when at least its size field is in the chunk. Returns how many bytes of the chunk were used.
   */
  #whole(chunk: Buffer, at: number, shared: boolean): number {
    const size = checkedSize(chunk.readUInt32LE(at));
    const end = at + 4 + size;
    if (end > chunk.length) {
      this.#frame = frameMemory(size);
      return 4;
    }
    this.#emit(chunk, at + 4, end, shared);
    return 4 + size;
  }

  #gatherSize(chunk: Buffer, at: number): number {
    const copied = chunk.copy(this.#sizeField, this.#filled, at);
    this.#filled += copied;
    if (this.#filled === 4) {
      this.#filled = 0;
      this.#frame = frameMemory(checkedSize(this.#sizeField.readUInt32LE(0)));
    }
    return copied;
  }

  #gather(frame: Buffer, chunk: Buffer, at: number): number {
    const copied = chunk.copy(frame, this.#filled, at);
    this.#filled += copied;
    if (this.#filled === frame.length) {
      this.#frame = null;
      this.#filled = 0;
      this.#emit(frame, 0, frame.length, false);
    }
    return copied;
  }

  #emit(buffer: Buffer, start: number, end: number, shared: boolean): void {
    if (buffer.readUInt16LE(start + 6) !== 0) throw new WireError("a frame with unknown flags");
    const payload = this.#reader.aim(buffer, start + 8, end, shared);
    this.#onFrame(buffer.readUInt32LE(start), buffer.readUInt16LE(start + 4), payload);
  }
}

function checkedSize(size: number): number {
  if (size < 8 || size > FRAME_LIMIT) throw new WireError(`a frame of ${size} bytes`);
  return size;
}

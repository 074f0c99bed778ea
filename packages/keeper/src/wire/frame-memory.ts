/** A slice of output as readers ask for it, with the frame around it. */
const FRAME_BYTES = 262_144 + 4_096;
const SPARES_MAX = 16;

const spares: ArrayBufferLike[] = [];

const isLarge = (size: number): boolean => size > FRAME_BYTES / 2 && size <= FRAME_BYTES;

/**
 * Memory for a frame. Frames full of output get it from those that were given back: a stream at full speed would otherwise
 * allocate all that it carries once, and the collector, which is called by the amount, would take as long as the stream.
 */
export function frameMemory(size: number): Buffer {
  if (!isLarge(size)) return Buffer.allocUnsafeSlow(size);
  const spare = spares.pop();
  return spare === undefined
    ? Buffer.allocUnsafeSlow(FRAME_BYTES).subarray(0, size)
    : Buffer.from(spare, 0, size);
}

/** For what is about to be overwritten. */
export function frameCopy(bytes: Buffer): Buffer {
  if (!isLarge(bytes.length)) return Buffer.from(bytes);
  const memory = frameMemory(bytes.length);
  bytes.copy(memory);
  return memory;
}

/** Takes memory back of which nobody reads any part any more. */
export function giveBack({ buffer }: Uint8Array): void {
  if (buffer.byteLength === FRAME_BYTES && spares.length < SPARES_MAX) spares.push(buffer);
}

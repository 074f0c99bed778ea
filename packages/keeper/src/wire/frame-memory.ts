/** Size of a frame with the maximum amount of output that this process requests in one read. */
const FRAME_BYTES = 262_144 + 4_096;
const SPARES_MAX = 16;

const spares: ArrayBufferLike[] = [];

const isLarge = (size: number): boolean => size > FRAME_BYTES / 2 && size <= FRAME_BYTES;

/**
 * Returns memory for a frame. Frames full of output get memory that was released by earlier ones. Otherwise a fast
 * stream would allocate new memory for all its data, and collecting that garbage would take as much time as the
 * transfer itself.
 */
export function frameMemory(size: number): Buffer {
  if (!isLarge(size)) return Buffer.allocUnsafeSlow(size);
  const spare = spares.pop();
  return spare === undefined
    ? Buffer.allocUnsafeSlow(FRAME_BYTES).subarray(0, size)
    : Buffer.from(spare, 0, size);
}

/** Returns a copy of bytes whose memory will be overwritten. */
export function frameCopy(bytes: Buffer): Buffer {
  if (!isLarge(bytes.length)) return Buffer.from(bytes);
  const memory = frameMemory(bytes.length);
  bytes.copy(memory);
  return memory;
}

/** Releases the memory of a frame for reuse. The caller must not read the frame any more. */
export function releaseFrame({ buffer }: Uint8Array): void {
  if (buffer.byteLength === FRAME_BYTES && spares.length < SPARES_MAX) spares.push(buffer);
}

/**
 * Maximum body size. Clients send at most 5 MB per body, which become 30 MB if every byte is escaped in JSON.
 */
export const BODY_MAX_BYTES = 32 * 1_048_576;

/** Yields the body as one piece, or none if it is empty. */
export async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array, void, undefined> {
  if (bytes.length > 0) yield bytes;
}

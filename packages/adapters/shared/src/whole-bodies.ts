/** Clients send at most 5 MB in one body; as JSON, with every byte escaped, that is six times as much. */
export const BODY_MAX_BYTES = 32 * 1_048_576;

/** As a stream of one piece; of none where it is empty. */
export async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array, void, undefined> {
  if (bytes.length > 0) yield bytes;
}

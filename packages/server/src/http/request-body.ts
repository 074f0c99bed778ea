/** Bodies that come in: JSON and stdin whole, within a limit and a time; files as a stream, as long as they move. */
import type { Readable } from "node:stream";
import { HoldfastError } from "@holdfast/contract";

export interface BodyLimits {
  limitBytes: number;
  withinMs: number;
}

/** The whole body. Ends with `too_large` past the limit, whatever Content-Length said. */
export function readWhole(source: Readable, options: BodyLimits): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    const finish = (error: Error | null) => {
      clearTimeout(timer);
      source.off("data", take).off("end", ended).off("error", finish).off("close", closed);
      if (error) {
        source.on("error", () => {});
        source.resume();
        reject(error);
      } else resolve(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks));
    };
    const take = (chunk: Buffer) => {
      size += chunk.length;
      if (size > options.limitBytes) finish(tooLarge(options.limitBytes));
      else chunks.push(chunk);
    };
    const ended = () => finish(null);
    const closed = () => finish(new HoldfastError("invalid_request", { message: "The body broke off." }));
    const late = () => finish(new HoldfastError("invalid_request", { message: tooSlow(options.withinMs) }));
    const timer = setTimeout(late, options.withinMs);
    source.on("data", take).on("end", ended).on("error", finish).on("close", closed);
  });
}

/** The body's chunks as they come. A body that breaks off or stands still ends with an error, never as a short file. */
export async function* readChunks(
  source: Readable,
  stallMs: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  const stalled = () => source.destroy(new HoldfastError("invalid_request", { message: tooSlow(stallMs) }));
  let timer = setTimeout(stalled, stallMs);
  try {
    for await (const chunk of source.iterator({ destroyOnReturn: false })) {
      clearTimeout(timer);
      yield chunk as Uint8Array;
      timer = setTimeout(stalled, stallMs);
    }
  } catch (error) {
    if (error instanceof HoldfastError) throw error;
    throw new HoldfastError("invalid_request", { message: "The body broke off.", cause: error });
  } finally {
    clearTimeout(timer);
    // What nobody wants any more is read and dropped, or the next request on this connection would never be seen.
    if (!source.destroyed) source.resume();
  }
}

const tooLarge = (limit: number) =>
  new HoldfastError("too_large", { message: `The body is larger than ${limit} bytes.` });
const tooSlow = (ms: number) => `Nothing of the body came for ${ms} ms.`;

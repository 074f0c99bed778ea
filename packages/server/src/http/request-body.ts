/**
 * Reads request bodies. JSON and stdin are read as a whole, within a size limit and a time limit. Files are read as a
 * stream, for as long as data moves.
 */
import type { Readable } from "node:stream";
import { HoldfastError } from "@holdfast/contract";

export interface BodyLimits {
  limitBytes: number;
  withinMs: number;
}

/**
 * Reads the whole body. Throws `too_large` when the body exceeds the limit, whatever its Content-Length header says.
 */
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
    const closed = () =>
      finish(
        new HoldfastError("invalid_request", {
          message: "The connection closed before the whole body arrived.",
        }),
      );
    const late = () => finish(new HoldfastError("invalid_request", { message: tooSlow(options.withinMs) }));
    const timer = setTimeout(late, options.withinMs);
    source.on("data", take).on("end", ended).on("error", finish).on("close", closed);
  });
}

/**
 * Yields the chunks of the body. Throws if the body is incomplete or stalls, because otherwise an incomplete body would
 * be taken for a shorter file.
 */
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
    throw new HoldfastError("invalid_request", {
      message: "The connection closed before the whole body arrived.",
      cause: error,
    });
  } finally {
    clearTimeout(timer);
    // The rest of the body is read and discarded. Otherwise the next request on this connection would never be parsed.
    if (!source.destroyed) source.resume();
  }
}

const tooLarge = (limit: number) =>
  new HoldfastError("too_large", { message: `The body is larger than ${limit} bytes.` });
const tooSlow = (ms: number) => `No part of the body arrived for ${ms} ms.`;

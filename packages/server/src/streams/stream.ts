/** Writing to callers who may be slow, or gone. */
import type { ServerResponse } from "node:http";
import { CallerLeft } from "./callers.ts";

export interface SendLimits {
  /** A caller that takes nothing for this long is cut off. */
  stallMs: number;
  /** Ends the wait for a caller that takes nothing. */
  signal?: AbortSignal;
}

/** Every chunk, at the reader's pace: nothing is asked of the source before the last chunk was taken. */
export async function sendAll(
  response: ServerResponse,
  chunks: AsyncIterable<Uint8Array>,
  limits: SendLimits,
): Promise<void> {
  for await (const chunk of chunks) {
    response.write(chunk);
    await taken(response, limits);
  }
}

export class ReaderStalled extends Error {
  constructor(stallMs: number) {
    super(`the caller took nothing for ${stallMs} ms`);
    this.name = "ReaderStalled";
  }
}

/** Returns, or resolves, when the response takes more. Rejects when its caller has left, or takes nothing for too long. */
export function taken(response: ServerResponse, limits: SendLimits): Promise<void> | void {
  if (response.destroyed) throw new CallerLeft();
  if (response.writableNeedDrain) return drained(response, limits);
}

/** Resolves when the response takes more or is closed. */
function drained(response: ServerResponse, { stallMs, signal }: SendLimits): Promise<void> {
  return new Promise((resolve, reject) => {
    const finish = (error?: unknown) => {
      clearTimeout(timer);
      response.off("drain", done);
      response.off("close", done);
      signal?.removeEventListener("abort", aborted);
      error === undefined ? resolve() : reject(error);
    };
    const done = () => finish();
    const aborted = () => finish(signal?.reason);
    const timer = setTimeout(() => {
      response.destroy();
      finish(new ReaderStalled(stallMs));
    }, stallMs);
    response.once("drain", done);
    response.once("close", done);
    signal?.addEventListener("abort", aborted);
    if (signal?.aborted) aborted();
  });
}

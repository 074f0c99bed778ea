/** Functions that write to callers who may be slow or may have disconnected. */
import type { ServerResponse } from "node:http";
import { CallerLeft } from "../http/callers.ts";

export interface SendLimits {
  /** Time after which a caller is disconnected if it accepts no data. */
  stallMs: number;
  /** When this signal aborts, a write stops waiting for a stalled caller and fails. */
  signal?: AbortSignal;
}

/**
 * Writes every chunk. The source is asked for the next chunk only after the response took the last one, so it runs at
 * the reader's pace.
 */
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

/**
 * Waits until the response accepts more data. Returns undefined instead of a promise if it already does. Fails if the
 * caller has disconnected or has stalled.
 */
export function taken(response: ServerResponse, limits: SendLimits): Promise<void> | void {
  if (response.destroyed) throw new CallerLeft();
  if (response.writableNeedDrain) return drained(response, limits);
}

/** Resolves when the response accepts more or is closed. */
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

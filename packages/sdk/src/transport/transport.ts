import type { Pulse } from "./pulse.ts";

/** One HTTP request, without retries or JSON. */
export interface WireRequest {
  method: string;
  /** The server's URL: scheme, host, port and an optional path prefix, without a trailing slash. */
  base: string;
  /** Path and query. */
  path: string;
  headers: Record<string, string>;
  body: Body | null;
  /**
   * Maximum duration of the whole exchange. If the request body or the response body is a stream, it is the maximum
   * time without data while data is expected.
   */
  timeoutMs: number;
  signal: AbortSignal | undefined;
  /** Ends the exchange if the server shows no sign of life. Undefined for a probe, which the pulse itself sends. */
  pulse?: Pulse;
}

/** A request body: complete, or in pieces of known or unknown total length. */
export type Body = string | Uint8Array | Pieces;

interface Pieces {
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
  length: number | null;
}

export interface WireAnswer {
  status: number;
  body: Uint8Array;
}

/** The head of a response. */
export interface WireReply {
  status: number;
  header(name: string): string | null;
  /** Yields the body as it arrives. The caller must read it to its end; leaving the loop early aborts the exchange. */
  stream(): AsyncGenerator<Uint8Array, void, undefined>;
}

/**
 * Sends HTTP requests. If the request's signal fires, throws the signal's reason. If the request fails for another
 * reason, throws a ConnectionError.
 */
export interface Transport {
  /** Sends the request and reads the whole response. Fails if the response is longer than `limit` bytes. */
  ask(request: WireRequest, limit: number): Promise<WireAnswer>;
  /**
   * Sends the request, and returns as soon as the response's head has arrived. The request body and the response body
   * may be streams, so `timeoutMs` limits only the time without data.
   */
  open(request: WireRequest): Promise<WireReply>;
  close(): void;
}

export const isPieces = (body: Body | null): body is Pieces =>
  body !== null && typeof body === "object" && "pieces" in body;

export const tooLarge = (limit: number): RangeError =>
  new RangeError(`the response is larger than ${limit} bytes`);

/** Reads a whole body. Throws if the body is longer than `limit` bytes. */
export async function gather(reply: WireReply, limit: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  for await (const piece of reply.stream()) {
    pieces.push(piece);
    size += piece.length;
    if (size > limit) throw tooLarge(limit);
  }
  const [first] = pieces;
  return pieces.length === 1 && first !== undefined ? first : Buffer.concat(pieces);
}

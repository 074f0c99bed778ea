/** One HTTP exchange: no retries, no JSON, no meaning. */
export interface WireRequest {
  method: string;
  url: string;
  headers: Record<string, string>;
  body: Body | null;
  /** Of the whole exchange or, with `streaming`, of the longest silence while something is waited for. */
  timeoutMs: number;
  streaming: boolean;
  signal: AbortSignal | undefined;
}

/** Bytes to send: all at once, or piece by piece with a known or unknown length. */
export type Body =
  | { kind: "bytes"; bytes: Uint8Array }
  | { kind: "pieces"; pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>; length: number | null };

/** An answer's head. Its body must be taken, in one of the two ways. */
export interface WireReply {
  status: number;
  header(name: string): string | null;
  /** All of it, at most `limit` bytes. */
  bytes(limit: number): Promise<Uint8Array>;
  /** As it comes. Leaving the loop early ends the exchange. */
  stream(): AsyncGenerator<Uint8Array, void, undefined>;
}

/** Fails with a ConnectionError, or with the signal's reason. */
export interface Transport {
  send(request: WireRequest): Promise<WireReply>;
  close(): void;
}

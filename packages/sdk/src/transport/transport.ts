/** One HTTP exchange: no retries, no JSON, no meaning. */
export interface WireRequest {
  method: string;
  /** Scheme, host and port, and a path before all paths where there is one. Without a slash at its end. */
  base: string;
  /** With the query. */
  path: string;
  headers: Record<string, string>;
  body: Body | null;
  /** Of the whole exchange or, where the body is a stream, of the longest silence while something is waited for. */
  timeoutMs: number;
  signal: AbortSignal | undefined;
}

/** What to send: all at once, or piece by piece with a known or unknown length. */
export type Body = string | Uint8Array | Pieces;

export interface Pieces {
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
  length: number | null;
}

export interface WireAnswer {
  status: number;
  body: Uint8Array;
}

/** An answer's head. */
export interface WireReply {
  status: number;
  header(name: string): string | null;
  /** The body as it comes; it must be taken. Leaving the loop early ends the exchange. */
  stream(): AsyncGenerator<Uint8Array, void, undefined>;
}

/** Fails with a ConnectionError, or with the signal's reason. */
export interface Transport {
  /** Takes the whole answer, at most `limit` bytes. */
  ask(request: WireRequest, limit: number): Promise<WireAnswer>;
  /** Both bodies may be streams: the time limit is one on silence. */
  open(request: WireRequest): Promise<WireReply>;
  close(): void;
}

export const isPieces = (body: Body | null): body is Pieces =>
  body !== null && typeof body === "object" && "pieces" in body;

export const tooLarge = (limit: number): RangeError =>
  new RangeError(`the answer is larger than ${limit} bytes`);

/** All of a reply's body, at most `limit` bytes. */
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

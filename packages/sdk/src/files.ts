import type { CallOptions, Content, Files, RangeOptions, WriteOptions } from "./api.ts";
import type { Call, Calls } from "./calls.ts";
import { HoldfastError } from "./errors.ts";
import type { Body } from "./transport.ts";
import type { FileList, FileStat } from "./types.generated.ts";

const PIECE_BYTES = 1_048_576;

export class FilesOf implements Files {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/files`;
  }

  read(path: string, options: RangeOptions = {}): Promise<Uint8Array> {
    return this.#calls.bytes(this.#reading(path, options));
  }

  async readText(path: string, options: RangeOptions = {}): Promise<string> {
    return Buffer.from(await this.read(path, options)).toString();
  }

  readStream(path: string, options: RangeOptions = {}): Promise<AsyncIterable<Uint8Array>> {
    return this.#calls.stream(this.#reading(path, options));
  }

  #reading(path: string, { offset, length, signal }: RangeOptions): Call {
    const headers: Record<string, string> = { accept: "application/octet-stream" };
    const range = rangeOf(offset, length);
    if (range !== null) headers.range = range;
    return { method: "GET", path: this.#base, query: { path }, headers, idempotent: true, signal };
  }

  write(
    path: string,
    content: Content,
    { mode, parents = true, signal }: WriteOptions = {},
  ): Promise<FileStat> {
    return this.#calls.upload({
      method: "PUT",
      path: this.#base,
      query: { path, mode, parents },
      bytes: bodyOf(content),
      headers: { "content-type": "application/octet-stream" },
      idempotent: true,
      signal,
    });
  }

  list(
    path: string,
    { limit, signal }: CallOptions & { limit?: number | undefined } = {},
  ): Promise<FileList> {
    return this.#get("list", { path, limit }, signal);
  }

  stat(path: string, { signal }: CallOptions = {}): Promise<FileStat> {
    return this.#get("stat", { path }, signal);
  }

  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof HoldfastError && error.code === "file_not_found") return false;
      throw error;
    }
  }

  mkdir(path: string, { mode, signal }: CallOptions & { mode?: string | undefined } = {}): Promise<FileStat> {
    return this.#calls.json({
      method: "POST",
      path: `${this.#base}/mkdir`,
      json: { path, parents: true, ...(mode === undefined ? {} : { mode }) },
      idempotent: true,
      signal,
    });
  }

  /** Not idempotent: after a lost answer the file may be another one, or its absence the first try's doing. */
  remove(
    path: string,
    { recursive = false, signal }: CallOptions & { recursive?: boolean | undefined } = {},
  ): Promise<void> {
    return this.#calls.json({
      method: "DELETE",
      path: this.#base,
      query: { path, recursive },
      idempotent: false,
      signal,
    });
  }

  move(
    from: string,
    to: string,
    { overwrite = false, signal }: CallOptions & { overwrite?: boolean | undefined } = {},
  ): Promise<FileStat> {
    return this.#calls.json({
      method: "POST",
      path: `${this.#base}/move`,
      json: { from, to, overwrite },
      idempotent: false,
      signal,
    });
  }

  #get<Answer>(
    what: string,
    query: Record<string, string | number | undefined>,
    signal: AbortSignal | undefined,
  ): Promise<Answer> {
    return this.#calls.json({
      method: "GET",
      path: `${this.#base}/${what}`,
      query,
      idempotent: true,
      signal,
    });
  }
}

/** The header for `length` bytes from `offset` on; null for the whole. */
export function rangeOf(offset: number | undefined, length: number | undefined): string | null {
  if (offset === undefined && length === undefined) return null;
  const first = offset ?? 0;
  return `bytes=${first}-${length === undefined ? "" : first + length - 1}`;
}

/** Bytes at hand can be sent again; a stream can be read only once. */
export function bodyOf(content: Content): Body {
  if (typeof content === "string") return bodyOf(Buffer.from(content));
  if (!(content instanceof Uint8Array)) return { kind: "pieces", pieces: encoded(content), length: null };
  if (content.length <= PIECE_BYTES) return { kind: "bytes", bytes: content };
  return { kind: "pieces", pieces: slices(content), length: content.length };
}

function slices(bytes: Uint8Array): Uint8Array[] {
  const count = Math.ceil(bytes.length / PIECE_BYTES);
  return Array.from({ length: count }, (_, at) => bytes.subarray(at * PIECE_BYTES, (at + 1) * PIECE_BYTES));
}

async function* encoded(content: AsyncIterable<string | Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const piece of content) yield typeof piece === "string" ? Buffer.from(piece) : piece;
}

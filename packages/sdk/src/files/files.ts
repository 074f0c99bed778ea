import type {
  CallOptions,
  Content,
  Files,
  RangeOptions,
  ReadOptions,
  SearchOptions,
  WatchOptions,
  WriteOptions,
} from "./api.ts";
import type { Call, Calls } from "./calls.ts";
import { HoldfastError, InvalidRequestError } from "./errors.ts";
import type { Body } from "./transport.ts";
import type { FileChange, FileList, FileSearch, FileStat, Unpacked } from "./types.generated.ts";
import { Watching } from "./watching.ts";

const PIECE_BYTES = 1_048_576;
/** The largest position that fits a range of the server's. */
const LAST_POSITION = 999_999_999_999_999;
/** What the server gives a search, and what an archive may take that has been sent and not been unpacked yet. */
const SEARCH_WAIT_MS = 30_000;
const UNPACK_WAIT_MS = 600_000;
const TAR_TYPE = "application/x-tar";

export class FilesOf implements Files {
  readonly #calls: Calls;
  readonly #base: string;

  /** `home` is the path of the sandbox, or of the drive. */
  constructor(calls: Calls, home: string) {
    this.#calls = calls;
    this.#base = `${home}/files`;
  }

  async read(path: string, options: RangeOptions = {}): Promise<Uint8Array> {
    const call = this.#reading(path, options);
    return call === null ? new Uint8Array() : this.#calls.bytes(call);
  }

  async readText(path: string, options: RangeOptions = {}): Promise<string> {
    return Buffer.from(await this.read(path, options)).toString();
  }

  async readStream(path: string, options: RangeOptions = {}): Promise<AsyncIterable<Uint8Array>> {
    const call = this.#reading(path, options);
    return call === null ? nothing() : this.#calls.stream(call);
  }

  /** Null where no bytes are asked for: HTTP has no range for that. */
  #reading(path: string, { offset, length, wake, signal }: RangeOptions): Call | null {
    const call: Call = { method: "GET", path: this.#base, query: { path, wake }, idempotent: true, signal };
    for (const [name, value] of Object.entries({ offset, length })) {
      if (value !== undefined && !isPosition(value)) throw this.#invalid(call, name, value);
    }
    if (length === 0) return null;
    const headers: Record<string, string> = { accept: "application/octet-stream" };
    const range = rangeOf(offset, length);
    if (range !== null) headers.range = range;
    return { ...call, headers };
  }

  #invalid(call: Call, name: string, value: number): InvalidRequestError {
    return new InvalidRequestError({
      ...this.#calls.where(call),
      code: "invalid_request",
      message: `The ${name} ${value} is not valid.`,
      hint: `Give a whole number from 0 to ${LAST_POSITION}.`,
      retryable: false,
      dispatched: "no",
      status: 0,
      body: "",
    });
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
    { limit, wake, signal }: ReadOptions & { limit?: number | undefined } = {},
  ): Promise<FileList> {
    return this.#get("list", { path, limit, wake }, signal);
  }

  stat(path: string, { wake, signal }: ReadOptions = {}): Promise<FileStat> {
    return this.#get("stat", { path, wake }, signal);
  }

  async exists(path: string, options: ReadOptions = {}): Promise<boolean> {
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

  search(path: string, { signal, ...wanted }: SearchOptions = {}): Promise<FileSearch> {
    return this.#calls.json({
      method: "GET",
      path: `${this.#base}/search`,
      query: { path, ...wanted },
      idempotent: true,
      waitMs: SEARCH_WAIT_MS,
      signal,
    });
  }

  pack(path: string, { wake, signal }: ReadOptions = {}): Promise<AsyncIterable<Uint8Array>> {
    return this.#calls.stream({
      method: "GET",
      path: `${this.#base}/tar`,
      query: { path, wake },
      headers: { accept: TAR_TYPE },
      type: TAR_TYPE,
      idempotent: true,
      signal,
    });
  }

  unpack(
    path: string,
    archive: Uint8Array | AsyncIterable<Uint8Array>,
    { signal }: CallOptions = {},
  ): Promise<Unpacked> {
    return this.#calls.upload({
      method: "PUT",
      path: `${this.#base}/tar`,
      query: { path },
      bytes: bodyOf(archive),
      headers: { "content-type": TAR_TYPE },
      idempotent: true,
      waitMs: UNPACK_WAIT_MS,
      signal,
    });
  }

  watch(path: string, { recursive, signal }: WatchOptions = {}): Promise<AsyncIterable<FileChange>> {
    return new Watching(this.#calls, `${this.#base}/watch`, { path, recursive }, signal).begin();
  }

  #get<Answer>(
    what: string,
    query: Record<string, string | number | boolean | undefined>,
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

const isPosition = (value: number): boolean =>
  Number.isInteger(value) && value >= 0 && value <= LAST_POSITION;

/** The header for `length` bytes from `offset` on; null for the whole, which an empty file has and a range of it has not. */
function rangeOf(first = 0, length: number | undefined): string | null {
  if (length !== undefined) return `bytes=${first}-${Math.min(first + length - 1, LAST_POSITION)}`;
  return first === 0 ? null : `bytes=${first}-`;
}

async function* nothing(): AsyncGenerator<Uint8Array, void, undefined> {}

/** Bytes at hand can be sent again; a stream can be read only once. */
export function bodyOf(content: Content): Body {
  if (typeof content === "string") return bodyOf(Buffer.from(content));
  if (!(content instanceof Uint8Array)) return { pieces: encoded(content), length: null };
  return content.length <= PIECE_BYTES ? content : { pieces: slices(content), length: content.length };
}

function slices(bytes: Uint8Array): Uint8Array[] {
  const count = Math.ceil(bytes.length / PIECE_BYTES);
  return Array.from({ length: count }, (_, at) => bytes.subarray(at * PIECE_BYTES, (at + 1) * PIECE_BYTES));
}

async function* encoded(content: AsyncIterable<string | Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const piece of content) yield typeof piece === "string" ? Buffer.from(piece) : piece;
}

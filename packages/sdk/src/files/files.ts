import type {
  CallOptions,
  Content,
  Files,
  RangeOptions,
  ReadOptions,
  SearchOptions,
  WatchOptions,
  WriteOptions,
} from "../api.ts";
import { HoldfastError, InvalidRequestError } from "../errors.ts";
import type { Call, Calls } from "../transport/calls.ts";
import type { Body } from "../transport/transport.ts";
import type { FileChange, FileList, FileSearch, FileStat, Unpacked } from "../types.generated.ts";
import { Watching } from "./watching.ts";

const PIECE_BYTES = 1_048_576;
/** The largest byte offset that the server accepts in a range. */
const LAST_POSITION = 999_999_999_999_999;
/** The server's deadline for a search. */
const SEARCH_WAIT_MS = 30_000;
/** How long the server may take to extract an archive after the archive was sent. */
const UNPACK_WAIT_MS = 600_000;
const TAR_TYPE = "application/x-tar";

export class FilesOf implements Files {
  readonly #calls: Calls;
  readonly #base: string;

  /** `home` is the API path of the sandbox or drive to which the files belong. */
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

  /** Builds the read request. Returns null if the range is empty, because HTTP can't express an empty range. */
  #reading(path: string, { offset, length, wake, signal, ...unknown }: RangeOptions): Call | null {
    const call: Call = {
      method: "GET",
      path: this.#base,
      query: { path, wake },
      idempotent: true,
      signal,
      unknown,
    };
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
      hint: `Use a whole number from 0 to ${LAST_POSITION}.`,
      retryable: false,
      dispatched: "no",
      status: 0,
      body: "",
    });
  }

  write(
    path: string,
    content: Content,
    { mode, parents = true, signal, ...unknown }: WriteOptions = {},
  ): Promise<FileStat> {
    return this.#calls.upload({
      method: "PUT",
      path: this.#base,
      query: { path, mode, parents },
      bytes: bodyOf(content),
      headers: { "content-type": "application/octet-stream" },
      idempotent: true,
      signal,
      unknown,
    });
  }

  list(
    path: string,
    { limit, wake, signal, ...unknown }: ReadOptions & { limit?: number | undefined } = {},
  ): Promise<FileList> {
    return this.#get("list", { path, limit, wake }, { signal, unknown });
  }

  stat(path: string, { wake, signal, ...unknown }: ReadOptions = {}): Promise<FileStat> {
    return this.#get("stat", { path, wake }, { signal, unknown });
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

  mkdir(
    path: string,
    { mode, signal, ...unknown }: CallOptions & { mode?: string | undefined } = {},
  ): Promise<FileStat> {
    return this.#calls.json({
      method: "POST",
      path: `${this.#base}/mkdir`,
      json: { path, parents: true, ...(mode === undefined ? {} : { mode }) },
      idempotent: true,
      signal,
      unknown,
    });
  }

  /**
   * Removes a file. The request is not repeated after a lost response: the first request may have removed the file, and
   * another client may have created a new one.
   */
  remove(
    path: string,
    { recursive = false, signal, ...unknown }: CallOptions & { recursive?: boolean | undefined } = {},
  ): Promise<void> {
    return this.#calls.json({
      method: "DELETE",
      path: this.#base,
      query: { path, recursive },
      idempotent: false,
      signal,
      unknown,
    });
  }

  move(
    from: string,
    to: string,
    { overwrite = false, signal, ...unknown }: CallOptions & { overwrite?: boolean | undefined } = {},
  ): Promise<FileStat> {
    return this.#calls.json({
      method: "POST",
      path: `${this.#base}/move`,
      json: { from, to, overwrite },
      idempotent: false,
      signal,
      unknown,
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

  pack(path: string, { wake, signal, ...unknown }: ReadOptions = {}): Promise<AsyncIterable<Uint8Array>> {
    return this.#calls.stream({
      method: "GET",
      path: `${this.#base}/tar`,
      query: { path, wake },
      headers: { accept: TAR_TYPE },
      type: TAR_TYPE,
      idempotent: true,
      signal,
      unknown,
    });
  }

  unpack(
    path: string,
    archive: Uint8Array | AsyncIterable<Uint8Array>,
    { signal, ...unknown }: CallOptions = {},
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
      unknown,
    });
  }

  watch(
    path: string,
    { recursive, signal, ...unknown }: WatchOptions = {},
  ): Promise<AsyncIterable<FileChange>> {
    return new Watching(this.#calls, `${this.#base}/watch`, { path, recursive }, { signal, unknown }).begin();
  }

  #get<Answer>(
    what: string,
    query: Record<string, string | number | boolean | undefined>,
    given: Pick<Call, "signal" | "unknown">,
  ): Promise<Answer> {
    return this.#calls.json({
      method: "GET",
      path: `${this.#base}/${what}`,
      query,
      idempotent: true,
      ...given,
    });
  }
}

const isPosition = (value: number): boolean =>
  Number.isInteger(value) && value >= 0 && value <= LAST_POSITION;

/** Returns the Range header, or null for the whole file: a range request would fail on an empty file. */
function rangeOf(first = 0, length: number | undefined): string | null {
  if (length !== undefined) return `bytes=${first}-${Math.min(first + length - 1, LAST_POSITION)}`;
  return first === 0 ? null : `bytes=${first}-`;
}

async function* nothing(): AsyncGenerator<Uint8Array, void, undefined> {}

/** Converts content to a request body. Bytes in memory can be sent again; a stream can be read only once. */
function bodyOf(content: Content): Body {
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

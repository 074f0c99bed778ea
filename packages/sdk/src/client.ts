import { randomUUID } from "node:crypto";
import type {
  CallOptions,
  ClientOptions,
  EventFilter,
  ExecRun,
  Images,
  Page,
  Sandbox,
  Sandboxes,
  SandboxFilter,
} from "./api.ts";
import { Calls } from "./calls.ts";
import { getRun } from "./execs.ts";
import { SandboxHandle } from "./sandbox.ts";
import { FetchTransport } from "./transport-fetch.ts";
import { HttpTransport } from "./transport-http.ts";
import type {
  CreateSandbox,
  Event,
  Health,
  Image,
  ImageList,
  Sandbox as SandboxInfo,
  Stats,
} from "./types.generated.ts";

const TIMEOUT_MS = 30_000;
/** The server's own deadline for a sandbox to be proven, and for an image to be unpacked. */
const CREATE_WAIT_MS = 60_000;
const IMPORT_WAIT_MS = 600_000;

/** A client of one Holdfast server. On the server's machine `new Holdfast()` finds it by itself. */
export class Holdfast {
  readonly #calls: Calls;
  readonly sandboxes: Sandboxes;
  readonly images: Images;
  readonly execs: { get(id: string, options?: CallOptions): Promise<ExecRun> };

  constructor(options: ClientOptions = {}) {
    const calls = new Calls({
      url: options.url,
      apiKey: options.apiKey,
      timeoutMs: options.timeoutMs ?? TIMEOUT_MS,
      transport: options.fetch === undefined ? new HttpTransport() : new FetchTransport(options.fetch),
    });
    this.#calls = calls;
    this.sandboxes = sandboxesOf(calls);
    this.images = imagesOf(calls);
    this.execs = { get: (id, given = {}) => getRun(calls, id, given) };
  }

  /** Where the server is. */
  get url(): string {
    return this.#calls.url;
  }

  /** What happened on the server, oldest first. */
  events({ types, limit, cursor, signal }: EventFilter = {}): Promise<Page<Event>> {
    return this.#calls.json({
      method: "GET",
      path: "/v1/events",
      query: { type: types, limit, cursor },
      idempotent: true,
      signal,
    });
  }

  stats({ signal }: CallOptions = {}): Promise<Stats> {
    return this.#calls.json({ method: "GET", path: "/v1/stats", idempotent: true, signal });
  }

  /** Whether the server takes work, and if not, why; needs no key. */
  health({ signal }: CallOptions = {}): Promise<Health> {
    return this.#calls.json({ method: "GET", path: "/readyz", idempotent: true, accept: 503, signal });
  }

  /** Lets go of the connections. Nothing on the server is touched. */
  close(): void {
    this.#calls.close();
  }
}

function sandboxesOf(calls: Calls): Sandboxes {
  const create = async (
    { signal, ...body }: CreateSandbox & CallOptions,
    owned: boolean,
  ): Promise<Sandbox> => {
    const info = await calls.json<SandboxInfo>({
      method: "POST",
      path: "/v1/sandboxes",
      json: body,
      headers: { "idempotency-key": randomUUID() },
      idempotent: true,
      waitMs: CREATE_WAIT_MS,
      signal,
    });
    return new SandboxHandle(calls, info, owned);
  };
  return {
    create: (options = {}) => create(options, options.ifExists !== "return"),
    getOrCreate: (options) => create({ ...options, ifExists: "return" }, false),
    async get(ref, { signal } = {}) {
      const path = `/v1/sandboxes/${encodeURIComponent(ref)}`;
      const info = await calls.json<SandboxInfo>({ method: "GET", path, idempotent: true, signal });
      return new SandboxHandle(calls, info, false);
    },
    list({ status, labels, limit, cursor, signal }: SandboxFilter = {}) {
      const label = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
      const query = { status, label, limit, cursor };
      return calls.json({ method: "GET", path: "/v1/sandboxes", query, idempotent: true, signal });
    },
  };
}

function imagesOf(calls: Calls): Images {
  const path = (name: string) => `/v1/images/${encodeURIComponent(name)}`;
  return {
    async list({ signal } = {}) {
      const { items } = await calls.json<ImageList>({
        method: "GET",
        path: "/v1/images",
        idempotent: true,
        signal,
      });
      return items;
    },
    import: (name, tar, { signal } = {}) =>
      calls.upload<Image>({
        method: "POST",
        path: "/v1/images",
        query: { name },
        bytes:
          tar instanceof Uint8Array
            ? { kind: "bytes", bytes: tar }
            : { kind: "pieces", pieces: tar, length: null },
        headers: { "content-type": "application/x-tar" },
        idempotent: false,
        waitMs: IMPORT_WAIT_MS,
        signal,
      }),
    remove: (name, { signal } = {}) =>
      calls.json({ method: "DELETE", path: path(name), idempotent: false, signal }),
  };
}

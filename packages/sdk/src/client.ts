import type {
  Alerts,
  CallOptions,
  CleanupOptions,
  ClientOptions,
  CreateOptions,
  Drives,
  Events,
  ExecRun,
  Images,
  LogFilter,
  Page,
  Sandbox,
  Sandboxes,
  SandboxFilter,
} from "./api.ts";
import { Calls } from "./calls.ts";
import { Creation } from "./creation.ts";
import { drivesOf } from "./drives.ts";
import { GoneError, NotFoundError } from "./errors.ts";
import { eventsOf, momentOf } from "./events.ts";
import { getRun } from "./execs.ts";
import { PATIENCE, type Patience } from "./retry.ts";
import { SandboxHandle, untilGone } from "./sandbox.ts";
import { FetchTransport } from "./transport-fetch.ts";
import { HttpTransport } from "./transport-http.ts";
import type {
  AuditReport,
  CreateSandbox,
  Health,
  Image,
  ImageList,
  LogLine,
  Sandbox as SandboxInfo,
  Stats,
  SweepReport,
  UsageList,
} from "./types.generated.ts";

const TIMEOUT_MS = 30_000;
/** The server's own deadline for an image to be unpacked. */
const IMPORT_WAIT_MS = 600_000;
/** An audit waits for the host to be listed, a cleanup for the deletes that it orders. */
const AUDIT_WAIT_MS = 90_000;
const CLEANUP_WAIT_MS = 300_000;

/** A client of one Holdfast server. On the server's machine `new Holdfast()` finds it by itself. */
export class Holdfast {
  readonly #calls: Calls;
  readonly sandboxes: Sandboxes;
  readonly drives: Drives;
  readonly images: Images;
  readonly events: Events;
  readonly alerts: Alerts;
  readonly execs: { get(id: string, options?: CallOptions): Promise<ExecRun> };

  constructor(options: ClientOptions = {}) {
    const calls = new Calls({
      url: options.url,
      apiKey: options.apiKey,
      timeoutMs: options.timeoutMs ?? TIMEOUT_MS,
      fetch: options.fetch,
      transport: options.fetch === undefined ? new HttpTransport() : new FetchTransport(options.fetch),
      patience: patienceOf(options),
    });
    this.#calls = calls;
    this.sandboxes = sandboxesOf(calls);
    this.drives = drivesOf(calls);
    this.images = imagesOf(calls);
    this.events = eventsOf(calls);
    this.alerts = alertsOf(calls);
    this.execs = { get: (id, given = {}) => getRun(calls, id, given) };
  }

  /** Where the server is. */
  get url(): string {
    return this.#calls.url;
  }

  /** The server's own log, newest first. A page may have few lines and a cursor: then there is more to look through. */
  logs({ signal, since, until, ...filter }: LogFilter = {}): Promise<Page<LogLine>> {
    const query = { ...filter, since: momentOf(since), until: momentOf(until) };
    return this.#calls.json({ method: "GET", path: "/v1/logs", query, idempotent: true, signal });
  }

  stats({ signal }: CallOptions = {}): Promise<Stats> {
    return this.#calls.json({ method: "GET", path: "/v1/stats", idempotent: true, signal });
  }

  /** Compares records with reality now, both ways. What differs is dealt with, and said. */
  audit({ signal }: CallOptions = {}): Promise<AuditReport> {
    const waitMs = AUDIT_WAIT_MS;
    return this.#calls.json({ method: "POST", path: "/v1/audit", idempotent: true, waitMs, signal });
  }

  /** The last audit; null where none was made yet. */
  async lastAudit({ signal }: CallOptions = {}): Promise<AuditReport | null> {
    try {
      return await this.#calls.json({ method: "GET", path: "/v1/audit", idempotent: true, signal });
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }

  /** Removes now what the sweeps would remove in time. It goes on when nobody waits for it any more. */
  cleanup({ dryRun = false, emergency = false, signal }: CleanupOptions = {}): Promise<SweepReport> {
    return this.#calls.json({
      method: "POST",
      path: emergency ? "/v1/cleanup/emergency" : "/v1/cleanup",
      json: { dryRun },
      idempotent: true,
      waitMs: CLEANUP_WAIT_MS,
      signal,
    });
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

function patienceOf({ outageMs = PATIENCE.outageMs }: ClientOptions): Patience {
  const { strangerMs, busyMs } = PATIENCE;
  return { outageMs, strangerMs: Math.min(strangerMs, outageMs), busyMs: Math.min(busyMs, outageMs) };
}

function sandboxesOf(calls: Calls): Sandboxes {
  const create = async (
    { signal, onProgress, ...wanted }: CreateSandbox & CreateOptions,
    owned: boolean,
  ): Promise<Sandbox> => {
    const info = await new Creation(calls, wanted, { signal, onProgress }).sandbox();
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
    async usage({ signal } = {}) {
      const call = { method: "GET", path: "/v1/resources", idempotent: true, signal } as const;
      return (await calls.json<UsageList>(call)).items;
    },
    async delete(id, options = {}) {
      try {
        await untilGone(calls, id, options, () => {});
      } catch (error) {
        // The answer for what had no record that could be shown.
        if (!(error instanceof GoneError)) throw error;
      }
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
        bytes: tar instanceof Uint8Array ? tar : { pieces: tar, length: null },
        headers: { "content-type": "application/x-tar" },
        idempotent: false,
        waitMs: IMPORT_WAIT_MS,
        signal,
      }),
    remove: (name, { signal } = {}) =>
      calls.json({ method: "DELETE", path: path(name), idempotent: false, signal }),
  };
}

function alertsOf(calls: Calls): Alerts {
  const get = { method: "GET", idempotent: true } as const;
  return {
    list: ({ cleared, signal } = {}) =>
      calls.json({ ...get, path: "/v1/alerts", query: { cleared }, signal }),
    deliveries: ({ signal, ...query } = {}) =>
      calls.json({ ...get, path: "/v1/alerts/deliveries", query, signal }),
    retry: (id, { signal } = {}) =>
      calls.json({
        method: "POST",
        path: `/v1/alerts/deliveries/${encodeURIComponent(id)}/retry`,
        idempotent: false,
        signal,
      }),
  };
}

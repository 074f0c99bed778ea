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
import { checkOptions, GoneError, NotFoundError } from "./errors.ts";
import { eventsOf, momentOf } from "./events.ts";
import { getRun } from "./execs/execs.ts";
import { drivesOf } from "./files/drives.ts";
import { Creation } from "./sandboxes/creation.ts";
import { SandboxHandle, untilGone } from "./sandboxes/sandbox.ts";
import { Calls } from "./transport/calls.ts";
import { FetchTransport } from "./transport/fetch.ts";
import { HttpTransport } from "./transport/http.ts";
import { PATIENCE, type Patience } from "./transport/retry.ts";
import type {
  AuditReport,
  Backup,
  CreateSandbox,
  Drive as DriveInfo,
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
/** How long the server may take to extract an image. */
const IMPORT_WAIT_MS = 600_000;
/**
 * How long an audit or a cleanup may take on the server: an audit lists the host's resources, and a cleanup waits for
 * deletes.
 */
const AUDIT_WAIT_MS = 90_000;
/** How long the server may take to copy a sandbox or drive, before an export begins or after an import was sent. */
const TRANSFER_WAIT_MS = 3_600_000;
const CLEANUP_WAIT_MS = 300_000;

const CLIENT_OPTIONS = { url: true, apiKey: true, timeoutMs: true, outageMs: true, fetch: true } as const;

/** What one archive can contain: a sandbox or a drive. */
type Transferred = "sandboxes" | "drives";

/**
 * A client of one Holdfast server. On the server's machine, `new Holdfast()` finds the server and its key
 * automatically.  @example const holdfast = new Holdfast({ url: "http://localhost:4750", apiKey: "hf_…" });
 */
export class Holdfast {
  readonly #calls: Calls;
  readonly sandboxes: Sandboxes;
  readonly drives: Drives;
  readonly images: Images;
  readonly events: Events;
  readonly alerts: Alerts;
  readonly execs: { get(id: string, options?: CallOptions): Promise<ExecRun> };

  constructor(options: ClientOptions = {}) {
    checkOptions(options, CLIENT_OPTIONS, { method: "new Holdfast", url: options.url ?? "" });
    checkUrl("url", options.url);
    if (!options.url) checkUrl("HOLDFAST_URL", process.env.HOLDFAST_URL);
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

  /** The server's URL. */
  get url(): string {
    return this.#calls.url;
  }

  /**
   * Reads the server's log, newest first. A page with few lines may still have a cursor, because each page searches
   * only a part of the log.
   */
  logs({ signal, since, until, ...filter }: LogFilter = {}): Promise<Page<LogLine>> {
    const query = { ...filter, since: momentOf(since), until: momentOf(until) };
    return this.#calls.json({ method: "GET", path: "/v1/logs", query, idempotent: true, signal });
  }

  stats({ signal, ...unknown }: CallOptions = {}): Promise<Stats> {
    return this.#calls.json({ method: "GET", path: "/v1/stats", idempotent: true, signal, unknown });
  }

  /** Compares records with the host, in both directions, and returns the differences and what was done about them. */
  audit({ signal, ...unknown }: CallOptions = {}): Promise<AuditReport> {
    const waitMs = AUDIT_WAIT_MS;
    return this.#calls.json({ method: "POST", path: "/v1/audit", idempotent: true, waitMs, signal, unknown });
  }

  /** Starts a backup of the installation, to an empty directory on the server's machine. Returns at once. */
  backup(directory: string, { signal, ...unknown }: CallOptions = {}): Promise<Backup> {
    return this.#calls.json({
      method: "POST",
      path: "/v1/backup",
      json: { directory },
      idempotent: false,
      signal,
      unknown,
    });
  }

  /** Returns the state of the last backup that the server started, or null if there was none. */
  async lastBackup({ signal, ...unknown }: CallOptions = {}): Promise<Backup | null> {
    try {
      return await this.#calls.json({ method: "GET", path: "/v1/backup", idempotent: true, signal, unknown });
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }

  /** Exports a sandbox or drive as one archive. The archive contains neither the sandbox's memory nor its drives. */
  export(
    kind: Transferred,
    ref: string,
    { signal, ...unknown }: CallOptions = {},
  ): Promise<AsyncGenerator<Uint8Array>> {
    const path = `/v1/${kind}/${encodeURIComponent(ref)}/export`;
    const type = "application/x-tar";
    return this.#calls.stream({
      ...{ method: "GET", path, type, headers: { accept: type } },
      ...{ idempotent: false, waitMs: TRANSFER_WAIT_MS, signal, unknown },
    });
  }

  /** Creates a sandbox from an exported archive. The sandbox stays in standby until the first call. */
  importSandbox(
    archive: AsyncIterable<Uint8Array>,
    options: CallOptions & { name?: string | undefined } = {},
  ): Promise<SandboxInfo> {
    return this.#import("sandboxes", archive, options);
  }

  /** Creates a drive from an exported archive. */
  importDrive(
    archive: AsyncIterable<Uint8Array>,
    options: CallOptions & { name?: string | undefined } = {},
  ): Promise<DriveInfo> {
    return this.#import("drives", archive, options);
  }

  #import<Result>(
    kind: Transferred,
    archive: AsyncIterable<Uint8Array>,
    { name, signal, ...unknown }: CallOptions & { name?: string | undefined },
  ): Promise<Result> {
    return this.#calls.upload<Result>({
      method: "POST",
      path: `/v1/${kind}/import`,
      query: { name },
      bytes: { pieces: archive, length: null },
      headers: { "content-type": "application/x-tar" },
      idempotent: false,
      waitMs: TRANSFER_WAIT_MS,
      signal,
      unknown,
    });
  }

  /** Returns the last audit, or null if none has run yet. */
  async lastAudit({ signal, ...unknown }: CallOptions = {}): Promise<AuditReport | null> {
    try {
      return await this.#calls.json({ method: "GET", path: "/v1/audit", idempotent: true, signal, unknown });
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }

  /** Runs the periodic cleanup now. It continues on the server if this call is aborted. */
  cleanup({
    dryRun = false,
    emergency = false,
    signal,
    ...unknown
  }: CleanupOptions = {}): Promise<SweepReport> {
    return this.#calls.json({
      method: "POST",
      path: emergency ? "/v1/cleanup/emergency" : "/v1/cleanup",
      json: { dryRun },
      idempotent: true,
      waitMs: CLEANUP_WAIT_MS,
      signal,
      unknown,
    });
  }

  /** Returns whether the server accepts work and, if not, why. Needs no API key. */
  health({ signal, ...unknown }: CallOptions = {}): Promise<Health> {
    return this.#calls.json({
      method: "GET",
      path: "/readyz",
      idempotent: true,
      accept: 503,
      signal,
      unknown,
    });
  }

  /** Closes the connections. Does not affect the server. */
  close(): void {
    this.#calls.close();
  }
}

function checkUrl(name: string, value: string | undefined): void {
  if (!value || (URL.canParse(value) && /^https?:$/.test(new URL(value).protocol))) return;
  throw new TypeError(`${name} is '${value}', which is not an HTTP URL.`);
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
    async get(ref, { signal, ...unknown } = {}) {
      const path = `/v1/sandboxes/${encodeURIComponent(ref)}`;
      const info = await calls.json<SandboxInfo>({ method: "GET", path, idempotent: true, signal, unknown });
      return new SandboxHandle(calls, info, false);
    },
    list({ status, labels, limit, cursor, signal, ...unknown }: SandboxFilter = {}) {
      const label = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
      const query = { status, label, limit, cursor };
      return calls.json({ method: "GET", path: "/v1/sandboxes", query, idempotent: true, signal, unknown });
    },
    async usage({ signal, ...unknown } = {}) {
      const call = { method: "GET", path: "/v1/resources", idempotent: true, signal, unknown } as const;
      return (await calls.json<UsageList>(call)).items;
    },
    async delete(id, options = {}) {
      try {
        await untilGone(calls, id, options, () => {});
      } catch (error) {
        // After its delete, a sandbox without a readable record is reported as gone (status 410), so this error means
        // success.
        if (!(error instanceof GoneError)) throw error;
      }
    },
  };
}

function imagesOf(calls: Calls): Images {
  const path = (name: string) => `/v1/images/${encodeURIComponent(name)}`;
  return {
    async list({ signal, ...unknown } = {}) {
      const { items } = await calls.json<ImageList>({
        method: "GET",
        path: "/v1/images",
        idempotent: true,
        signal,
        unknown,
      });
      return items;
    },
    import: (name, tar, { signal, ...unknown } = {}) =>
      calls.upload<Image>({
        method: "POST",
        path: "/v1/images",
        query: { name },
        bytes: tar instanceof Uint8Array ? tar : { pieces: tar, length: null },
        headers: { "content-type": "application/x-tar" },
        idempotent: false,
        waitMs: IMPORT_WAIT_MS,
        signal,
        unknown,
      }),
    remove: (name, { signal, ...unknown } = {}) =>
      calls.json({ method: "DELETE", path: path(name), idempotent: false, signal, unknown }),
  };
}

function alertsOf(calls: Calls): Alerts {
  const get = { method: "GET", idempotent: true } as const;
  return {
    list: ({ cleared, signal, ...unknown } = {}) =>
      calls.json({ ...get, path: "/v1/alerts", query: { cleared }, signal, unknown }),
    deliveries: ({ signal, ...query } = {}) =>
      calls.json({ ...get, path: "/v1/alerts/deliveries", query, signal }),
    retry: (id, { signal, ...unknown } = {}) =>
      calls.json({
        method: "POST",
        path: `/v1/alerts/deliveries/${encodeURIComponent(id)}/retry`,
        idempotent: false,
        signal,
        unknown,
      }),
  };
}

/**
 * An engine double that answers as the test configures it. It is used to test behaviour on the wire (framing, errors,
 * slow and disconnecting callers), because the real engine could not be stopped at the right moment.
 */
import {
  type Checkpoint,
  DEFAULT_RESOURCES,
  type Drive,
  type Event,
  type Exec,
  type FileStat,
  type Mount,
  NUMBERS,
  type Numbers,
  type Process,
  type Sandbox,
  STATUSES,
  type Stats,
} from "@holdfast/contract";
import type { AlertFigures, EngineApi, Log } from "@holdfast/engine";
import { buildHttp } from "../app.ts";
import type { Adapter } from "../http/adapter.ts";
import type { App } from "../http/context.ts";
import { Metrics } from "../telemetry/metrics.ts";
import type { ServerLog } from "../telemetry/server-log.ts";

type Loose<Part> = { [Name in keyof Part]?: Part[Name] };
export interface EngineDouble {
  sandboxes?: Loose<EngineApi["sandboxes"]>;
  checkpoints?: Loose<EngineApi["checkpoints"]>;
  execs?: Loose<EngineApi["execs"]>;
  processes?: Loose<EngineApi["processes"]>;
  files?: Loose<EngineApi["files"]>;
  mounts?: Loose<EngineApi["mounts"]>;
  drives?: Loose<EngineApi["drives"]>;
  driveFiles?: Loose<EngineApi["driveFiles"]>;
  images?: Loose<EngineApi["images"]>;
  ports?: Loose<EngineApi["ports"]>;
  previews?: Loose<EngineApi["previews"]>;
  alerts?: Loose<EngineApi["alerts"]>;
  events?: EngineApi["events"];
  followEvents?: EngineApi["followEvents"];
  stats?: EngineApi["stats"];
  audit?: EngineApi["audit"];
  lastAudit?: EngineApi["lastAudit"];
  cleanup?: EngineApi["cleanup"];
  unreadiness?: EngineApi["unreadiness"];
}

export const KEY = "hf_test";
export const authorized = { authorization: `Bearer ${KEY}` };

export interface LogLine {
  level: string;
  fields: Record<string, unknown>;
  message: string;
}

function recordingLog(lines: LogLine[] = []): Log {
  const at = (level: string) => (fields: Record<string, unknown>, message: string) => {
    lines.push({ level, fields, message });
  };
  const log: Log = {
    debug: at("debug"),
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    child: () => log,
  };
  return log;
}

export interface TestServer extends AsyncDisposable {
  app: App;
  url: string;
  lines: LogLine[];
  /** Ids of execs with a reader that was disconnected because it had stalled. */
  wedged: string[];
  fetch(path: string, init?: RequestInit): Promise<Response>;
}

/** A listening server with an engine double. */
export async function serve(
  engine: EngineDouble,
  options: {
    numbers?: Partial<Numbers>;
    started?: Promise<void>;
    hostPaths?: string[];
    /** Additional valid keys. */
    keys?: readonly string[];
    logs?: ServerLog;
    linkSecret?: string;
    adapters?: readonly Adapter[];
  } = {},
): Promise<TestServer> {
  const lines: LogLine[] = [];
  const wedged: string[] = [];
  const keys = [KEY, ...(options.keys ?? [])];
  const app = buildHttp({
    engine: {
      ...engine,
      execs: { readerWedged: (id: string) => wedged.push(id), ...engine.execs },
      alerts: { figures: async () => someFigures(), ...engine.alerts },
      ports: { open: 0, ...engine.ports },
    } as EngineApi,
    keys: { findKey: async (secret) => (keys.includes(secret) ? { name: "test" } : null) },
    log: recordingLog(lines),
    numbers: { ...NUMBERS, ...options.numbers },
    version: "0.0.0",
    installation: "test0000",
    metrics: new Metrics({ process: false }),
    ...(options.started ? { started: options.started } : {}),
    ...(options.hostPaths ? { hostPaths: options.hostPaths } : {}),
    logs: options.logs,
    linkSecret: options.linkSecret,
    ...(options.adapters ? { adapters: options.adapters } : {}),
  });
  const url = await app.listen({ host: "127.0.0.1", port: 0 });
  return {
    app,
    url,
    lines,
    wedged,
    fetch: (path, init = {}) =>
      fetch(url + path, { ...init, headers: { ...authorized, ...(init.headers as Record<string, string>) } }),
    [Symbol.asyncDispose]: async () => {
      app.server.closeAllConnections();
      await app.close();
    },
  };
}

export const json = (value: unknown): RequestInit => ({
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(value),
});

export const aSandbox = (over: Partial<Sandbox> = {}): Sandbox => ({
  id: "sbx_0123456789abcdef",
  name: "demo",
  status: "ready",
  cause: null,
  generation: 1,
  image: "host",
  createdAt: "2025-01-01T00:00:00.000Z",
  lastActivityAt: "2025-01-01T00:00:00.000Z",
  endedAt: null,
  keptUntil: null,
  expiresAt: null,
  execsStarted: 0,
  provenAt: "2025-01-01T00:00:00.000Z",
  proof: null,
  lease: { state: "held" },
  recovery: null,
  standbyKind: "memory",
  checkpoint: null,
  forkedFrom: null,
  resources: DEFAULT_RESOURCES,
  lifecycle: {},
  labels: {},
  mounts: [],
  ...over,
});

export const aDrive = (over: Partial<Drive> = {}): Drive => ({
  id: "drv_0123456789abcdef",
  name: "data",
  status: "ready",
  cause: null,
  sizeMb: null,
  usage: { usedBytes: 4_096, freeBytes: 8_192, measuredAt: "2025-01-01T00:00:00.000Z" },
  mounts: [],
  createdAt: "2025-01-01T00:00:00.000Z",
  labels: {},
  ...over,
});

export const aMount = (over: Partial<Mount> = {}): Mount => ({
  drive: "data",
  driveId: "drv_0123456789abcdef",
  path: "/workspace",
  subpath: "/",
  readOnly: false,
  state: "proven",
  cause: null,
  ...over,
});

export const aCheckpoint = (over: Partial<Checkpoint> = {}): Checkpoint => ({
  id: "ckp_0123456789abcdef",
  name: "before",
  sandboxId: "sbx_0123456789abcdef",
  kind: "memory",
  createdAt: "2025-01-01T00:00:00.000Z",
  generation: 1,
  sizeBytes: 8_192,
  memoryBytes: 4_096,
  execs: ["exe_1"],
  ...over,
});

export const aProcess = (over: Partial<Process> = {}): Process => ({
  id: "prc_0123456789abcdef",
  name: "web",
  sandboxId: "sbx_0123456789abcdef",
  status: "ready",
  cause: null,
  ready: { at: "2025-01-01T00:00:00.000Z", how: "port" },
  argv: ["serve"],
  restarts: 0,
  runs: 1,
  nextRunAt: null,
  execId: "prc_0123456789abcdef-1",
  exec: anExec({ id: "prc_0123456789abcdef-1" }),
  restart: { on: "always", max: 10, backoffMs: 1_000 },
  readyWhen: { port: 3_000, withinMs: 60_000 },
  connectBy: null,
  keepAwake: false,
  suspended: false,
  createdAt: "2025-01-01T00:00:00.000Z",
  endedAt: null,
  ...over,
});

export const aStats = (over: Partial<Stats> = {}): Stats => ({
  at: "2025-01-01T00:00:00.000Z",
  sandboxes: Object.fromEntries(STATUSES.map((status) => [status, 0])) as Stats["sandboxes"],
  totals: { created: 0, terminated: 0, failed: 0, execsStarted: 0, execsEnded: 0 },
  execsRunning: 0,
  execsQueued: 0,
  links: { up: 0, down: 0, lost: 0 },
  readers: 0,
  readersCut: { wedged: 0, expired: 0 },
  orphans: 0,
  lastObservationAt: null,
  lastAuditAt: null,
  sweeps: [],
  launches: { state: "open", waiting: 0, failuresInARow: 0 },
  capacity: null,
  driver: { name: "double", capabilities: [] },
  ...over,
});

/** Returns the alert figures of a server that has not evaluated its alerts yet. */
export const someFigures = (over: Partial<AlertFigures> = {}): AlertFigures => ({
  evaluatedAt: null,
  firing: [],
  readings: {},
  deliveries: { pending: 0, delivered: 0, dead: 0 },
  ...over,
});

export const anExec = (over: Partial<Exec> = {}): Exec => ({
  id: "exe_1",
  sandboxId: "sbx_0123456789abcdef",
  status: "exited",
  argv: ["true"],
  exitCode: 0,
  signal: null,
  cause: null,
  dispatched: "yes",
  createdAt: "2025-01-01T00:00:00.000Z",
  startedAt: "2025-01-01T00:00:00.000Z",
  endedAt: "2025-01-01T00:00:00.000Z",
  timeoutMs: null,
  tty: false,
  keepAwake: true,
  suspended: false,
  keptUntil: null,
  truncated: false,
  cursor: "0",
  ...over,
});

export const anEvent = (over: Partial<Event> = {}): Event => ({
  seq: 1,
  at: "2025-01-01T00:00:00.000Z",
  type: "sandbox.ready",
  sandboxId: "sbx_0123456789abcdef",
  execId: null,
  driveId: null,
  generation: 1,
  message: "It serves.",
  data: {},
  ...over,
});

export const aFile = (sizeBytes: number): FileStat => ({
  path: "/home/user/a",
  name: "a",
  kind: "file",
  sizeBytes,
  mode: "0644",
  uid: 1000,
  gid: 1000,
  modifiedAt: "2025-01-01T00:00:00.000Z",
});

/** Resolves when the condition is true; fails after a while, so that no test hangs. */
export async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 15_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error("the condition did not come true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/**
 * An engine that answers what a test tells it to: for what happens on the wire only (framing, errors, slow and leaving
 * callers), where the real one could not be made to stand still at the right moment.
 */
import { type Exec, type FileStat, NUMBERS, type Numbers } from "@holdfast/contract";
import type { EngineApi, Log } from "@holdfast/engine";
import type { App } from "../context.ts";
import { buildHttp } from "../http.ts";
import { Metrics } from "../metrics.ts";

type Loose<Part> = { [Name in keyof Part]?: Part[Name] };
export interface EngineDouble {
  sandboxes?: Loose<EngineApi["sandboxes"]>;
  execs?: Loose<EngineApi["execs"]>;
  files?: Loose<EngineApi["files"]>;
  images?: Loose<EngineApi["images"]>;
  stats?: EngineApi["stats"];
  unreadiness?: EngineApi["unreadiness"];
}

export const KEY = "hf_test";
export const authorized = { authorization: `Bearer ${KEY}` };

export interface LogLine {
  level: string;
  fields: Record<string, unknown>;
  message: string;
}

export function recordingLog(lines: LogLine[] = []): Log {
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
  fetch(path: string, init?: RequestInit): Promise<Response>;
}

/** A listening server over a double. */
export async function serve(
  engine: EngineDouble,
  options: { numbers?: Partial<Numbers>; started?: Promise<void>; hostPaths?: string[] } = {},
): Promise<TestServer> {
  const lines: LogLine[] = [];
  const app = buildHttp({
    engine: engine as EngineApi,
    keys: { findKey: async (secret) => (secret === KEY ? { name: "test" } : null) },
    log: recordingLog(lines),
    numbers: { ...NUMBERS, ...options.numbers },
    version: "0.0.0",
    installation: "test0000",
    metrics: new Metrics({ process: false }),
    ...(options.started ? { started: options.started } : {}),
    ...(options.hostPaths ? { hostPaths: options.hostPaths } : {}),
  });
  const url = await app.listen({ host: "127.0.0.1", port: 0 });
  return {
    app,
    url,
    lines,
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
  truncated: false,
  cursor: "0",
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

/** Resolves when the condition holds; fails after two seconds, so that no test hangs. */
export async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 2_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error("the condition did not come true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

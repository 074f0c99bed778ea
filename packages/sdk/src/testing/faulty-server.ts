import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type {
  Checkpoint,
  Drive,
  Event,
  Exec,
  Mount,
  Preview,
  PreviewToken,
  Process,
} from "../types.generated.ts";

/** A request that the faulty server received. */
export interface Seen {
  method: string;
  url: URL;
  headers: IncomingMessage["headers"];
  body: Buffer;
}

export type Answer = (request: Seen, response: ServerResponse) => void | Promise<void>;

/** A test double of the server that fails as the test requires: the test writes each response by hand. */
export class FaultyServer {
  readonly #server: Server;
  readonly #answers: Answer[] = [];
  readonly seen: Seen[] = [];
  /** Whether the server answers the probes that waiting clients send. Probes are never recorded in `seen`. */
  isAlive = true;
  #early: Answer | null = null;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(port = 0): Promise<FaultyServer> {
    const server = createServer();
    const faulty = new FaultyServer(server);
    server.on("request", (request, response) => void faulty.#handle(request, response));
    await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
    return faulty;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }
  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Answers the next requests with these handlers, in this order. All further requests get the last handler. */
  answer(...answers: Answer[]): void {
    this.#answers.splice(0, this.#answers.length, ...answers);
  }

  /** Sets an answer that every request gets before its body is read. */
  early(answer: Answer): void {
    this.#early = answer;
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.url === "/healthz") {
      if (this.isAlive) response.end("{}");
      return;
    }
    const answer = this.#answers.length > 1 ? this.#answers.shift() : this.#answers[0];
    const pieces: Buffer[] = [];
    const url = new URL(request.url ?? "/", this.url);
    const seen: Seen = { method: request.method ?? "", url, headers: request.headers, body: Buffer.of() };
    this.seen.push(seen);
    try {
      if (this.#early !== null) return await this.#early(seen, response);
      for await (const piece of request) pieces.push(piece as Buffer);
      seen.body = Buffer.concat(pieces);
      await answer?.(seen, response);
    } catch {
      response.destroy();
    }
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}

export const json =
  (status: number, body: unknown): Answer =>
  (_, response) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  };

/** Receives the request, then closes the connection. */
export const drop: Answer = (_, response) => {
  response.socket?.destroy();
};

/** Sends the response's head and half of its body, then closes the connection. */
export const truncate =
  (body: unknown): Answer =>
  (_, response) => {
    const text = JSON.stringify(body);
    response.writeHead(200, { "content-type": "application/json", "content-length": text.length });
    response.write(text.slice(0, text.length / 2), () => response.socket?.destroy());
  };

export const refuse = (status: number, code: string, facts: object = {}): Answer =>
  json(status, { error: anError(status, code, facts) });

export const anError = (status: number, code: string, facts: object = {}) => ({
  code,
  message: `said ${code}`,
  hint: "do better",
  retryable: status === 503,
  dispatched: "no",
  requestId: "req_1",
  ...facts,
});

/** A record of an output stream, as `frame` expects it. */
export type Item =
  | { type: "start" | "end"; cursor: string; exec: Exec }
  | { type: "keepalive"; cursor: string; suspended?: boolean }
  | { type: "stdout" | "stderr"; offset: number; data: Uint8Array };

export const FRAMES = { "content-type": "application/vnd.holdfast.frames" };

/** Time of all output, in microseconds: the beginning of 2026. */
const AT_US = Date.UTC(2026, 0, 1) * 1000;

export function frame(item: Item): Buffer {
  if (!("data" in item)) {
    const json = Buffer.from(JSON.stringify(item));
    const head = Buffer.alloc(5);
    head.writeUInt32LE(json.length, 1);
    return Buffer.concat([head, json]);
  }
  const head = Buffer.alloc(21);
  head.writeUInt8(item.type === "stdout" ? 1 : 2, 0);
  head.writeUInt32LE(item.data.length, 1);
  head.writeBigUInt64LE(BigInt(item.offset), 5);
  head.writeBigUInt64LE(BigInt(AT_US), 13);
  return Buffer.concat([head, item.data]);
}

/** Answers with a stream of output that is then cut, ends normally, or falls silent. */
export const frames =
  (items: readonly Item[], end: "cut" | "close" | "silence" = "close"): Answer =>
  (_, response) => {
    response.writeHead(200, FRAMES);
    response.write(Buffer.concat(items.map(frame)), () => {
      if (end === "cut") response.socket?.destroy();
      if (end === "close") response.end();
    });
  };

/** Answers with a stream of records, one per line, that is then cut, ends normally, or falls silent. */
export const lines =
  (records: readonly object[], end: "cut" | "close" | "silence" = "close"): Answer =>
  (_, response) => {
    response.writeHead(200, { "content-type": "application/x-ndjson; charset=utf-8" });
    response.write(records.map((record) => `${JSON.stringify(record)}\n`).join(""), () => {
      if (end === "cut") response.socket?.destroy();
      if (end === "close") response.end();
    });
  };

/** Creates a progress record of a streamed create. */
export const step = (name: string) => ({ type: "progress", step: name, at: "2026-01-01T00:00:00.000Z" });
/** Creates the last record of a successful streamed create. */
export const made = (facts: object = {}) => ({ type: "sandbox", sandbox: aSandbox(facts), existed: false });

export const chunk = (stream: "stdout" | "stderr", offset: number, data: string | Uint8Array): Item => ({
  type: stream,
  offset,
  data: Buffer.from(data),
});

export const greeting = (facts: Partial<Exec> = {}): Item => ({
  type: "start",
  cursor: "exe_1.0",
  exec: anExec({ status: "running", exitCode: null, ...facts }),
});

export const keepalive = (offset: number, facts: { suspended?: boolean } = {}): Item => ({
  type: "keepalive",
  cursor: `exe_1.${offset}`,
  ...facts,
});

export const ending = (offset: number, facts: Partial<Exec> = {}): Item => ({
  type: "end",
  cursor: `exe_1.${offset}`,
  exec: anExec(facts),
});

export const anExec = (facts: Partial<Exec> = {}): Exec => ({
  id: "exe_1",
  sandboxId: "sbx_0000000000000000",
  status: "exited",
  argv: ["true"],
  exitCode: 0,
  signal: null,
  cause: null,
  dispatched: "yes",
  createdAt: "2026-01-01T00:00:00.000Z",
  startedAt: "2026-01-01T00:00:00.000Z",
  endedAt: "2026-01-01T00:00:01.000Z",
  timeoutMs: null,
  tty: false,
  keepAwake: true,
  suspended: false,
  keptUntil: null,
  stdout: "",
  stderr: "",
  truncated: false,
  cursor: "exe_1.0",
  ...facts,
});

export const aCheckpoint = (facts: Partial<Checkpoint> = {}): Checkpoint => ({
  id: "ckp_0000000000000000",
  name: "before",
  sandboxId: "sbx_0000000000000000",
  kind: "memory",
  createdAt: "2026-01-01T00:00:00.000Z",
  generation: 1,
  sizeBytes: 23_456_789,
  memoryBytes: 12_345_678,
  execs: [],
  ...facts,
});

export const aProcess = (facts: Partial<Process> = {}): Process => ({
  id: "prc_0000000000000000",
  name: "web",
  sandboxId: "sbx_0000000000000000",
  status: "ready",
  cause: null,
  ready: { at: "2026-01-01T00:00:00.000Z", how: "port" },
  argv: ["serve"],
  restarts: 0,
  runs: 1,
  nextRunAt: null,
  execId: "prc_0000000000000000-1",
  exec: null,
  restart: null,
  readyWhen: null,
  connectBy: null,
  keepAwake: false,
  suspended: false,
  createdAt: "2026-01-01T00:00:00.000Z",
  endedAt: null,
  ...facts,
});

export const aDrive = (facts: Partial<Drive> = {}): Drive => ({
  id: "drv_0000000000000000",
  name: "data",
  status: "ready",
  cause: null,
  sizeMb: null,
  usage: { usedBytes: 23_456_789, freeBytes: 1_000_000_000, measuredAt: "2026-01-01T00:00:00.000Z" },
  mounts: [],
  createdAt: "2026-01-01T00:00:00.000Z",
  labels: {},
  ...facts,
});

export const anEvent = (facts: Partial<Event> = {}): Event => ({
  seq: 1,
  at: "2026-01-01T00:00:00.000Z",
  type: "sandbox.ready",
  sandboxId: "sbx_0000000000000000",
  execId: null,
  driveId: null,
  generation: 1,
  message: "It serves.",
  data: {},
  ...facts,
});

export const aMount = (facts: Partial<Mount> = {}): Mount => ({
  drive: "data",
  driveId: "drv_0000000000000000",
  path: "/workspace",
  subpath: "/",
  readOnly: false,
  state: "proven",
  cause: null,
  ...facts,
});

export const aPreview = (facts: Partial<Preview> = {}): Preview => ({
  id: "prv_0000000000000000",
  name: "web",
  sandboxId: "sbx_0000000000000000",
  port: 3000,
  public: false,
  createdAt: "2026-01-01T00:00:00.000Z",
  expiresAt: null,
  url: "http://3000-sbx_0000000000000000.localhost:4750/",
  pathUrl: "http://127.0.0.1:4750/preview/prv_0000000000000000/",
  ...facts,
});

export const aToken = (facts: Partial<PreviewToken> = {}): PreviewToken => ({
  id: "0000000000000000",
  createdAt: "2026-01-01T00:00:00.000Z",
  expiresAt: "2026-01-02T00:00:00.000Z",
  expired: false,
  token: "hfp_secret",
  url: "http://3000-sbx_0000000000000000.localhost:4750/?holdfast_token=hfp_secret",
  pathUrl: "http://127.0.0.1:4750/preview/hfp_secret/",
  ...facts,
});

export const aSandbox = (facts: object = {}) => ({
  id: "sbx_0000000000000000",
  name: "box",
  status: "ready",
  cause: null,
  generation: 1,
  image: "host",
  createdAt: "2026-01-01T00:00:00.000Z",
  lastActivityAt: "2026-01-01T00:00:00.000Z",
  endedAt: null,
  keptUntil: null,
  expiresAt: null,
  execsStarted: 0,
  provenAt: null,
  proof: null,
  lease: { state: "held" },
  standbyKind: "memory",
  checkpoint: null,
  forkedFrom: null,
  resources: { memoryMb: 512, cpus: 2, pids: 512 },
  lifecycle: {},
  labels: {},
  mounts: [],
  ...facts,
});

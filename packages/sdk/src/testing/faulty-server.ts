import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Exec } from "../types.generated.ts";

/** A test double of the server that fails on command: each answer is written by the test, by hand. */
export interface Seen {
  method: string;
  url: URL;
  headers: IncomingMessage["headers"];
  body: Buffer;
}

type Answer = (request: Seen, response: ServerResponse) => void | Promise<void>;

export class FaultyServer {
  readonly #server: Server;
  readonly #answers: Answer[] = [];
  readonly seen: Seen[] = [];
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

  /** The next requests are answered by these, in order; the last one serves all that follow. */
  answer(...answers: Answer[]): void {
    this.#answers.splice(0, this.#answers.length, ...answers);
  }

  /** Answers before the request's body has been read. */
  early(answer: Answer): void {
    this.#early = answer;
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
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

/** The request arrives, and then the connection is gone. */
export const drop: Answer = (_, response) => {
  response.socket?.destroy();
};

/** A head and half a body, and then the connection is gone. */
export const truncate =
  (body: unknown): Answer =>
  (_, response) => {
    const text = JSON.stringify(body);
    response.writeHead(200, { "content-type": "application/json", "content-length": text.length });
    response.write(text.slice(0, text.length / 2), () => response.socket?.destroy());
  };

export const refuse = (status: number, code: string, facts: object = {}): Answer =>
  json(status, {
    error: {
      code,
      message: `said ${code}`,
      hint: "do better",
      retryable: status === 503,
      dispatched: "no",
      requestId: "req_1",
      ...facts,
    },
  });

/** Records as lines; then the stream is cut, or ends as streams do. */
export const lines =
  (records: object[], end: "cut" | "close" = "close"): Answer =>
  (_, response) => {
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    const text = records.map((record) => `${JSON.stringify(record)}\n`).join("");
    response.write(text, () => (end === "cut" ? response.socket?.destroy() : response.end()));
  };

export const chunk = (stream: "stdout" | "stderr", cursor: string, data: string | Uint8Array) => ({
  type: stream,
  cursor,
  at: "2026-01-01T00:00:00.000Z",
  data: Buffer.from(data).toString("base64"),
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
  stdout: "",
  stderr: "",
  truncated: false,
  cursor: "0",
  ...facts,
});

export const aSandbox = (facts: object = {}) => ({
  id: "sbx_0000000000000000",
  name: "box",
  status: "ready",
  lease: { state: "held" },
  ...facts,
});

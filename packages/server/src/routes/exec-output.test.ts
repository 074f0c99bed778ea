import { type ClientRequest, get, type IncomingMessage } from "node:http";
import { createConnection, type Socket } from "node:net";
import { HoldfastError, type StreamRecord } from "@holdfast/contract";
import type { OutputOptions, OutputRecord } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { anExec, authorized, json, serve, until } from "../testing/double.ts";
import { FLOOD_RECORD_BYTES, Flood } from "../testing/flood.ts";
import { FrameReader } from "../testing/frames.ts";

const running = anExec({ status: "running", exitCode: null, endedAt: null });
const start = async () => ({ exec: running, followed: false });
const post = "/v1/sandboxes/a/execs";
const output = "/v1/execs/exe_1/output";
const never = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

const at = Date.UTC(2025, 0);
const records: OutputRecord[] = [
  { type: "start", cursor: "exe_1.k.0", exec: running },
  { type: "stdout", cursor: "exe_1.k.7", at, data: Buffer.from("hi\n") },
  { type: "stderr", cursor: "exe_1.k.20", at, data: Buffer.from("oh\n") },
  { type: "keepalive", cursor: "exe_1.k.20", suspended: true },
  { type: "end", cursor: "exe_1.k.20", exec: anExec({ status: "timed_out" }) },
];
const wire: StreamRecord[] = records.map((record) =>
  "data" in record
    ? { ...record, at: "2025-01-01T00:00:00.000Z", data: Buffer.from(record.data).toString("base64") }
    : record,
);
async function* all() {
  yield* records;
}
/** Yields some records, then nothing while the caller stays connected. */
const open = (count: number) =>
  async function* (_id: string, { signal }: OutputOptions) {
    yield* records.slice(0, count);
    await never(signal);
  };
async function* breaking() {
  yield* records.slice(0, 2);
  throw new Error("the link was lost");
}

describe("a streamed exec", () => {
  test("is sent as one JSON record per line, and ends with the exec", async () => {
    await using server = await serve({ execs: { start, output: all } });
    const request = json({ command: "x" });
    const headers = { ...request.headers, accept: "application/x-ndjson" } as never;
    const response = await server.fetch(post, { ...request, headers });
    expect(response.headers.get("content-type")).toContain("application/x-ndjson");
    const lines = (await response.text()).trimEnd().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual(wire);
  });

  test("is sent as server-sent events with the cursor as id", async () => {
    const cursors: unknown[] = [];
    const read = (_id: string, { cursor }: OutputOptions) => {
      cursors.push(cursor);
      return all();
    };
    await using server = await serve({ execs: { output: read } });
    const headers = { accept: "text/event-stream", "last-event-id": "exe_1.k.7" };
    const response = await server.fetch(`${output}?follow=true`, { headers });
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    const text = await response.text();
    expect(text).toContain(`id: exe_1.k.20\nevent: end\ndata: {"type":"end"`);
    expect(text).toContain(`event: keepalive\ndata: ${JSON.stringify(records[3])}\n`);
    expect(cursors).toEqual(["exe_1.k.7"]);
  });

  test("is sent as binary frames", async () => {
    await using server = await serve({ execs: { output: all } });
    const headers = { accept: "application/vnd.holdfast.frames" };
    const response = await server.fetch(`${output}?follow=true`, { headers });
    expect(response.headers.get("content-type")).toBe("application/vnd.holdfast.frames");
    const frames = new FrameReader().push(await response.bytes());
    expect(frames).toEqual([
      { kind: "json", record: records[0] },
      { kind: "stdout", offset: 7, timeUs: at * 1_000, data: Buffer.from("hi\n") },
      { kind: "stderr", offset: 20, timeUs: at * 1_000, data: Buffer.from("oh\n") },
      { kind: "json", record: records[3] },
      { kind: "json", record: records[4] },
    ]);
  });

  test("can be limited to one stream, from a cursor", async () => {
    const asked: unknown[] = [];
    const read = (_id: string, { cursor, follow, stream }: OutputOptions) => {
      asked.push({ cursor, follow, stream });
      return all();
    };
    await using server = await serve({ execs: { output: read } });
    const cursor = `${"e".repeat(64)}.m8x2k9.${2 ** 48}`;
    await (await server.fetch(`${output}?stream=stderr&cursor=${cursor}`)).text();
    expect(asked).toEqual([{ cursor, follow: false, stream: "stderr" }]);
    expect((await server.fetch(`${output}?stream=stdin`)).status).toBe(400);
    expect((await server.fetch(`${output}?cursor=${"a".repeat(161)}`)).status).toBe(400);
  });

  test.each([
    ["output_dropped", 410],
    ["bad_cursor", 400],
    ["too_many_readers", 429],
  ] as const)("that can't begin (%s) is a typed error, not an empty stream", async (code, status) => {
    const floor = "exe_1.k.512";
    await using server = await serve({
      execs: {
        // biome-ignore lint/correctness/useYield: it fails before it has anything to yield
        output: async function* () {
          throw new HoldfastError(code, code === "output_dropped" ? { floor } : {});
        },
      },
    });
    const response = await server.fetch(output);
    expect(response.status).toBe(status);
    const { error } = (await response.json()) as { error: Record<string, unknown> };
    expect(error).toMatchObject({ code });
    expect(error.floor).toBe(code === "output_dropped" ? floor : undefined);
  });

  test("that was started but cannot be streamed returns its id instead of an error, because a repeat would run it twice", async () => {
    await using server = await serve({
      execs: {
        start,
        // biome-ignore lint/correctness/useYield: it fails before it has anything to yield
        output: async function* () {
          throw new HoldfastError("too_many_readers");
        },
      },
    });
    const request = json({ command: "x" });
    const headers = { ...request.headers, accept: "application/x-ndjson" } as never;
    const response = await server.fetch(post, { ...request, headers });
    expect(response.status).toBe(202);
    expect(await response.json()).toMatchObject({ id: "exe_1", status: "running" });
  });

  test("is sent in few chunks however small its records are, without delaying any", async () => {
    const more = Promise.withResolvers<void>();
    await using server = await serve({
      execs: {
        output: async function* () {
          for (let index = 0; index < 1_000; index += 1) yield records[1] as OutputRecord;
          await more.promise;
          yield* records.slice(-1);
        },
      },
    });
    const headers = { ...authorized, accept: "application/vnd.holdfast.frames" };
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers }));
    const reader = new FrameReader();
    let chunks = 0;
    let frames = 0;
    response.on("data", (chunk: Buffer) => {
      chunks += 1;
      frames += reader.push(chunk).length;
    });
    await until(() => frames === 1_000);
    expect(chunks).toBeLessThan(50);
    more.resolve();
    await until(() => frames === 1_001);
  });

  test("that is interrupted has no end record", async () => {
    await using server = await serve({ execs: { output: breaking } });
    const text = await (await server.fetch(`${output}?follow=true`)).text();
    expect(text).toContain('"stdout"');
    expect(text).not.toContain('"end"');
  });

  test("that is interrupted without follow is visibly cut, because it would have no end record anyway", async () => {
    await using server = await serve({ execs: { output: breaking } });
    await expect(server.fetch(output).then((response) => response.text())).rejects.toThrow();
  });

  test("is cut without an end record when the server shuts down", async () => {
    await using server = await serve({ execs: { output: open(1) } });
    const response = await server.fetch(`${output}?follow=true`);
    await server.app.close();
    const text = await response.text();
    expect(text).toContain('"start"');
    expect(text).not.toContain('"end"');
  });

  test.each(["application/x-ndjson", "application/vnd.holdfast.frames", "application/octet-stream"])(
    "is sent at the reader's pace, and a stalled reader is disconnected: %s",
    async (accept) => {
      const flood = new Flood();
      await using server = await serve(
        { execs: { output: flood.output } },
        { numbers: { httpStallMs: 200 } },
      );
      const response = await server.fetch(`${output}?follow=true`, { headers: { accept } });
      await until(() => flood.isOver);
      expect(flood.produced).toBeLessThan(1_000);
      await expect(response.bytes()).rejects.toThrow();
    },
  );

  test("is not read ahead of a stalled reader, beyond what its socket holds", async () => {
    const flood = new Flood();
    await using server = await serve({ execs: { output: flood.output } });
    const sockets: Socket[] = [];
    server.app.server.on("connection", (socket) => sockets.push(socket));
    const headers = { ...authorized, accept: "application/vnd.holdfast.frames" };
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers }));
    await flood.held();
    expect(flood.isOver).toBe(false);
    expect(sockets).toHaveLength(1);
    const held = sockets[0]?.writableLength;
    expect(held).toBeGreaterThan(0);
    expect(held).toBeLessThan(3 * FLOOD_RECORD_BYTES);
    response.destroy();
    await until(() => flood.isOver);
  });

  test("disconnects a reader that never takes the last bytes", async () => {
    const sockets: Socket[] = [];
    const unsent = () => sockets[0]?.writableLength ?? 0;
    await using server = await serve(
      {
        execs: {
          output: async function* () {
            const data = Buffer.alloc(40_000);
            // The output fills the kernel's buffer and then ends at once, while no write is waiting for room.
            for (let count = 0; count < 1_000 && unsent() === 0; count += 1) {
              yield { type: "stdout", cursor: "exe_1.k.1", at, data };
              await new Promise((resolve) => setTimeout(resolve, 1));
            }
            yield* records.slice(-1);
          },
        },
      },
      { numbers: { httpStallMs: 300 } },
    );
    server.app.server.on("connection", (socket) => sockets.push(socket));
    const { hostname, port } = new URL(server.url);
    const reader = createConnection(Number(port), hostname).pause();
    reader.write(`GET ${output} HTTP/1.1\r\nhost: a\r\nauthorization: ${authorized.authorization}\r\n\r\n`);
    await until(() => unsent() > 0);
    await until(() => sockets[0]?.destroyed === true);
    expect(server.wedged).toEqual(["exe_1"]);
    reader.destroy();
  });

  test("with a stalled reader does not delay a shutdown", async () => {
    const flood = new Flood();
    await using server = await serve({ execs: { output: flood.output } });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: authorized }));
    response.on("error", () => {});
    await server.app.close();
    expect(flood.isOver).toBe(true);
  });

  test("ends when its caller leaves", async () => {
    let isOver = false;
    await using server = await serve({
      execs: {
        output: async function* (_id, { signal }) {
          try {
            yield* records.slice(0, 1);
            await never(signal);
          } finally {
            isOver = true;
          }
        },
      },
    });
    const leaving = new AbortController();
    await server.fetch(`${output}?follow=true`, { signal: leaving.signal });
    leaving.abort();
    await until(() => isOver);
  });
});

describe("raw output", () => {
  const raw = { ...authorized, accept: "application/octet-stream" };

  test("is only the bytes; trailers say how it ended, and where", async () => {
    await using server = await serve({ execs: { output: all } });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: raw }));
    expect(response.headers["content-type"]).toBe("application/octet-stream");
    expect(response.headers.trailer).toBe("Holdfast-End, Holdfast-Cursor, Holdfast-Truncated");
    expect(await bodyOf(response)).toBe("hi\noh\n");
    expect(response.trailers).toEqual({ "holdfast-end": "timed_out", "holdfast-cursor": "exe_1.k.20" });
  });

  test("without follow, of a running exec, reports only its position", async () => {
    await using server = await serve({
      execs: {
        output: async function* () {
          yield* records.slice(0, 2);
        },
      },
    });
    const response = await answerOf(get(`${server.url}${output}`, { headers: raw }));
    expect(await bodyOf(response)).toBe("hi\n");
    expect(response.trailers).toEqual({ "holdfast-cursor": "exe_1.k.7" });
  });

  test.each([
    ["start", 0],
    ["end", 4],
  ])("reports missing output (%s)", async (_name, index) => {
    await using server = await serve({
      execs: {
        output: async function* () {
          for (const [at, record] of records.entries()) {
            if (at === index && "exec" in record)
              yield { ...record, exec: { ...record.exec, truncated: true } };
            else yield record;
          }
        },
      },
    });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: raw }));
    await bodyOf(response);
    expect(response.trailers["holdfast-truncated"]).toBe("true");
  });

  test("of a silent exec starts at once", async () => {
    await using server = await serve({ execs: { output: open(1) } });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: raw }));
    expect(response.statusCode).toBe(200);
    response.destroy();
  });

  test.each([
    ["an error", breaking],
    [
      "a failing source",
      async function* () {
        yield* records.slice(0, 2);
      },
    ],
  ])("that is cut by %s is visibly incomplete", async (_name, source) => {
    await using server = await serve({ execs: { output: source } });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: raw }));
    await expect(bodyOf(response)).rejects.toThrow("aborted");
    expect(response.complete).toBe(false);
    expect(response.trailers).toEqual({});
  });

  test("that is cut by a shutdown is visibly incomplete", async () => {
    await using server = await serve({ execs: { output: open(2) } });
    const response = await answerOf(get(`${server.url}${output}?follow=true`, { headers: raw }));
    const body = bodyOf(response);
    body.catch(() => {});
    await server.app.close();
    await expect(body).rejects.toThrow("aborted");
    expect(response.complete).toBe(false);
  });

  test("is refused over HTTP/1.0, where a cut looks like an end", async () => {
    await using server = await serve({ execs: { output: all } });
    const { hostname, port } = new URL(server.url);
    const socket = createConnection(Number(port), hostname);
    socket.write(
      `GET ${output} HTTP/1.0\r\nauthorization: ${raw.authorization}\r\naccept: ${raw.accept}\r\n\r\n`,
    );
    let answer = "";
    for await (const chunk of socket) answer += chunk;
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer).toContain("HTTP/1.1: its trailers");
  });
});

const answerOf = (request: ClientRequest) =>
  new Promise<IncomingMessage>((resolve, reject) => request.on("response", resolve).on("error", reject));

async function bodyOf(response: IncomingMessage): Promise<string> {
  let body = "";
  for await (const chunk of response) body += chunk;
  return body;
}

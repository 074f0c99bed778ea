import type { Exec, StreamRecord } from "@holdfast/contract";
import { HoldfastError } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { anExec, json, serve, until } from "../testing/double.ts";

const running = anExec({ status: "running", exitCode: null, endedAt: null });
const start = async () => ({ exec: running, followed: false });
const post = "/v1/sandboxes/a/execs";
const never = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

describe("an exec that is waited for", () => {
  test.each<[string, Partial<Exec>, number]>([
    ["ended well", {}, 200],
    ["failed", { exitCode: 3 }, 200],
    ["timed out", { status: "timed_out", exitCode: null }, 200],
    ["was lost", { status: "lost", exitCode: null }, 200],
    ["still runs", { status: "running", exitCode: null }, 202],
  ])("that %s is data", async (_name, over, status) => {
    await using server = await serve({
      execs: { start, wait: async () => anExec({ ...over, stdout: "x" }) },
    });
    const response = await server.fetch(post, json({ command: "x" }));
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ ...over, stdout: "x" });
  });

  test("waits as long as asked, and no longer than allowed", async () => {
    const waits: number[] = [];
    const wait = async (_id: string, { waitMs }: { waitMs: number }) => {
      waits.push(waitMs);
      return running;
    };
    await using server = await serve({ execs: { start, wait } }, { numbers: { execWaitMaxMs: 1_000 } });
    await server.fetch(post, json({ command: "x" }));
    await server.fetch(post, json({ command: "x", waitMs: 5 }));
    await server.fetch("/v1/execs/exe_1?waitMs=9000");
    expect(waits).toEqual([1_000, 5, 1_000]);
  });

  test("detached answers at once", async () => {
    await using server = await serve({ execs: { start } });
    expect((await server.fetch(post, json({ command: "x", detach: true }))).status).toBe(202);
  });

  test("needs exactly one of command and argv", async () => {
    await using server = await serve({ execs: { start } });
    expect((await server.fetch(post, json({}))).status).toBe(400);
    expect((await server.fetch(post, json({ command: "a", argv: ["a"] }))).status).toBe(400);
  });

  test("hands the idempotency key on", async () => {
    const keys: unknown[] = [];
    await using server = await serve({
      execs: {
        start: async (_ref, _input, { idempotencyKey }) => {
          keys.push(idempotencyKey);
          return { exec: running, followed: false };
        },
      },
    });
    const request = json({ command: "a", detach: true });
    await server.fetch(post, {
      ...request,
      headers: { ...request.headers, "idempotency-key": "k1" } as never,
    });
    await server.fetch(post, request);
    expect(keys).toEqual(["k1", undefined]);
  });

  test("a caller that leaves while held aborts the start", async () => {
    let held: AbortSignal | undefined;
    await using server = await serve({
      execs: {
        start: (_ref, _input, { signal }) => {
          held = signal;
          return never(signal);
        },
      },
    });
    const leaving = new AbortController();
    const call = server.fetch(post, { ...json({ command: "x" }), signal: leaving.signal });
    await until(() => held !== undefined);
    expect(held?.aborted).toBe(false);
    leaving.abort();
    await expect(call).rejects.toThrow();
    await until(() => held?.aborted === true);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });

  test("a shutdown answers a waiting caller with the exec, which goes on", async () => {
    let waiting = false;
    await using server = await serve({
      execs: {
        start,
        wait: (_id, { signal }) => {
          waiting = true;
          return never(signal);
        },
      },
    });
    const call = server.fetch(post, json({ command: "x" }));
    await until(() => waiting);
    await server.app.close();
    const response = await call;
    expect(response.status).toBe(202);
    expect(await response.json()).toMatchObject({ id: "exe_1", status: "running" });
  });
});

describe("an exec that is streamed", () => {
  const records: StreamRecord[] = [
    { type: "start", cursor: "0", exec: running },
    { type: "stdout", cursor: "7", at: "2025-01-01T00:00:00.000Z", data: "aGkK" },
    { type: "keepalive", cursor: "7" },
    { type: "end", cursor: "7", exec: anExec() },
  ];
  async function* all() {
    yield* records;
  }

  test("comes as one JSON record a line, and ends with the exec", async () => {
    await using server = await serve({ execs: { start, output: all } });
    const request = json({ command: "x" });
    const headers = { ...request.headers, accept: "application/x-ndjson" } as never;
    const response = await server.fetch(post, { ...request, headers });
    expect(response.headers.get("content-type")).toContain("application/x-ndjson");
    const lines = (await response.text()).trimEnd().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual(records);
  });

  test("comes as server-sent events with the cursor as id", async () => {
    const cursors: unknown[] = [];
    const output = (_id: string, { cursor }: { cursor?: string | undefined }) => {
      cursors.push(cursor);
      return all();
    };
    await using server = await serve({ execs: { output } });
    const headers = { accept: "text/event-stream", "last-event-id": "7" };
    const response = await server.fetch("/v1/execs/exe_1/output?follow=true", { headers });
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    expect(await response.text()).toContain(`id: 7\nevent: end\ndata: {"type":"end"`);
    expect(cursors).toEqual(["7"]);
  });

  test("that can't begin is a typed error, not an empty stream", async () => {
    await using server = await serve({
      execs: {
        // biome-ignore lint/correctness/useYield: it fails before it has anything to yield
        output: async function* () {
          throw new HoldfastError("output_dropped");
        },
      },
    });
    const response = await server.fetch("/v1/execs/exe_1/output");
    expect(response.status).toBe(410);
    expect(await response.json()).toMatchObject({ error: { code: "output_dropped" } });
  });

  test("that breaks off has no end record", async () => {
    await using server = await serve({
      execs: {
        output: async function* () {
          yield* records.slice(0, 2);
          throw new Error("the link was lost");
        },
      },
    });
    const text = await (await server.fetch("/v1/execs/exe_1/output")).text();
    expect(text).toContain('"stdout"');
    expect(text).not.toContain('"end"');
  });

  test("is cut without an end record when the server shuts down", async () => {
    await using server = await serve({
      execs: {
        output: async function* (_id, { signal }) {
          yield* records.slice(0, 1);
          await never(signal);
        },
      },
    });
    const response = await server.fetch("/v1/execs/exe_1/output?follow=true");
    await server.app.close();
    const text = await response.text();
    expect(text).toContain('"start"');
    expect(text).not.toContain('"end"');
  });

  test("goes at the pace of its reader, and a reader that stalls is cut off", async () => {
    let produced = 0;
    let finished = false;
    await using server = await serve(
      {
        execs: {
          output: async function* () {
            try {
              for (;;) {
                produced += 1;
                yield { type: "stdout", cursor: "1", at: "", data: "A".repeat(65_536) } as const;
              }
            } finally {
              finished = true;
            }
          },
        },
      },
      { numbers: { httpStallMs: 200 } },
    );
    const response = await server.fetch("/v1/execs/exe_1/output?follow=true");
    await until(() => finished);
    expect(produced).toBeLessThan(1_000);
    await expect(response.text()).rejects.toThrow();
  });

  test("ends when its caller leaves", async () => {
    let finished = false;
    await using server = await serve({
      execs: {
        output: async function* (_id, { signal }) {
          try {
            yield* records.slice(0, 1);
            await never(signal);
          } finally {
            finished = true;
          }
        },
      },
    });
    const leaving = new AbortController();
    await server.fetch("/v1/execs/exe_1/output?follow=true", { signal: leaving.signal });
    leaving.abort();
    await until(() => finished);
  });
});

test("stdin is handed on byte for byte with its offset", async () => {
  const chunks: unknown[] = [];
  await using server = await serve({
    execs: {
      writeStdin: async (_id, { offset, data, end }) => {
        chunks.push([offset, Buffer.from(data).toString("hex"), end]);
        return { accepted: offset + data.length };
      },
    },
  });
  const body = Buffer.from([0, 255, 10]);
  const response = await server.fetch("/v1/execs/exe_1/stdin?offset=4", { method: "POST", body });
  expect(await response.json()).toEqual({ accepted: 7 });
  await server.fetch("/v1/execs/exe_1/stdin?offset=7&end=true", { method: "POST" });
  expect(chunks).toEqual([
    [4, "00ff0a", false],
    [7, "", true],
  ]);
});

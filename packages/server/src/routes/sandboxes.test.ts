import { createConnection } from "node:net";
import { type CreateSandbox, HoldfastError } from "@holdfast/contract";
import type { CreateOptions } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { aSandbox, authorized, json, serve, type TestServer, until } from "../testing/double.ts";

const at = Date.UTC(2025, 0);
const isoAt = "2025-01-01T00:00:00.000Z";
const sandbox = aSandbox();
const STEPS = ["accepted", "launching", "proving", "ready"];

const made = async (_input: CreateSandbox, { onProgress }: CreateOptions) => {
  for (const step of STEPS) onProgress?.({ step, at });
  return { sandbox, existed: false };
};
const accept = (type: string, path = "/v1/sandboxes") => ({
  path,
  init: { ...json({}), headers: { "content-type": "application/json", accept: type } },
});
const ask = (server: TestServer, type = "application/x-ndjson", path?: string) => {
  const { path: url, init } = accept(type, path);
  return server.fetch(url, init);
};
const recordsOf = (text: string) =>
  text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, unknown>);

describe("a create whose steps are streamed", () => {
  test("reports each step as it happens, and ends with the sandbox", async () => {
    await using server = await serve({ sandboxes: { create: made } });
    const response = await ask(server);
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toContain("application/x-ndjson");
    expect(response.headers.get("x-request-id")).toMatch(/^req_/);
    expect(recordsOf(await response.text())).toEqual([
      ...STEPS.map((step) => ({ type: "progress", step, at: isoAt })),
      { type: "sandbox", sandbox, existed: false },
    ]);
  });

  test("is available as server-sent events too", async () => {
    await using server = await serve({ sandboxes: { create: made } });
    const response = await ask(server, "text/event-stream");
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    const events = (await response.text()).split("\n\n");
    expect(events[0]).toBe(
      `event: progress\ndata: ${JSON.stringify({ type: "progress", step: "accepted", at: isoAt })}`,
    );
    expect(events[4]).toMatch(/^event: sandbox\ndata: \{"type":"sandbox"/);
    expect(events[5]).toBe("");
  });

  test("reports a step while the next one is pending", async () => {
    const rest = Promise.withResolvers<void>();
    const create = async (_input: CreateSandbox, { onProgress }: CreateOptions) => {
      onProgress?.({ step: "waiting", at });
      await rest.promise;
      return { sandbox, existed: false };
    };
    await using server = await serve({ sandboxes: { create } });
    const reader = (await ask(server)).body?.getReader();
    const first = await reader?.read();
    expect(recordsOf(Buffer.from(first?.value ?? []).toString())).toMatchObject([{ step: "waiting" }]);
    rest.resolve();
    const last = await reader?.read();
    expect(recordsOf(Buffer.from(last?.value ?? []).toString())).toMatchObject([{ type: "sandbox" }]);
    expect((await reader?.read())?.done).toBe(true);
  });

  test("sends keepalives while no step happens", async () => {
    const rest = Promise.withResolvers<void>();
    const create = async () => {
      await rest.promise;
      return { sandbox, existed: true };
    };
    await using server = await serve({ sandboxes: { create } }, { numbers: { streamKeepaliveMs: 20 } });
    const reader = (await ask(server)).body?.getReader();
    let text = "";
    while (text.split("\n").length <= 3) text += Buffer.from((await reader?.read())?.value ?? []).toString();
    rest.resolve();
    for (let read = await reader?.read(); read && !read.done; read = await reader?.read()) {
      text += Buffer.from(read.value).toString();
    }
    const records = recordsOf(text);
    expect(records.slice(0, 3)).toEqual(Array(3).fill({ type: "keepalive" }));
    expect(records.at(-1)).toMatchObject({ type: "sandbox", existed: true });
  });

  test("that fails ends with the error body, because the status was already sent", async () => {
    const create = async (_input: CreateSandbox, { onProgress }: CreateOptions) => {
      onProgress?.({ step: "launching", at });
      throw new HoldfastError("launch_failed", { sandboxId: sandbox.id, message: "No room in /state/x" });
    };
    await using server = await serve({ sandboxes: { create } }, { hostPaths: ["/state"] });
    const response = await ask(server);
    expect(response.status).toBe(200);
    const [, last, ...none] = recordsOf(await response.text());
    expect(none).toEqual([]);
    expect(last).toMatchObject({
      type: "error",
      error: {
        code: "launch_failed",
        message: "No room in <host path>",
        operation: "createSandbox",
        requestId: response.headers.get("x-request-id"),
        sandboxId: sandbox.id,
        hint: expect.any(String),
        retryable: true,
      },
    });
  });

  test("that is refused before the first step is an ordinary error response", async () => {
    const create = () => Promise.reject(new HoldfastError("low_memory", { message: "64 MB are free." }));
    await using server = await serve({ sandboxes: { create } });
    const response = await ask(server);
    expect(response.status).toBe(507);
    expect(response.headers.get("retry-after")).not.toBeNull();
    expect(response.headers.get("content-type")).toContain("application/json");
    expect(await response.json()).toMatchObject({ error: { code: "low_memory" } });
  });

  test("ends with a typed error on shutdown, which says that the create may continue", async () => {
    const create = (_input: CreateSandbox, { onProgress, signal }: CreateOptions) => {
      onProgress?.({ step: "launching", at });
      return new Promise<never>((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
      });
    };
    await using server = await serve({ sandboxes: { create } });
    const response = await ask(server);
    const closed = server.app.close();
    expect(recordsOf(await response.text()).at(-1)).toMatchObject({
      type: "error",
      error: { code: "shutting_down", dispatched: "unknown", retryable: true },
    });
    await closed;
  });

  test("whose caller leaves is not awaited, and a later step causes no error", async () => {
    let options: CreateOptions | undefined;
    const create = (_input: CreateSandbox, given: CreateOptions) => {
      options = given;
      given.onProgress?.({ step: "launching", at });
      return new Promise<never>((_, reject) => {
        given.signal.addEventListener("abort", () => reject(given.signal.reason));
      });
    };
    await using server = await serve({ sandboxes: { create } }, { numbers: { streamKeepaliveMs: 5 } });
    const { hostname, port } = new URL(server.url);
    const socket = createConnection(Number(port), hostname);
    socket.write(
      `POST /v1/sandboxes HTTP/1.1\r\nhost: a\r\nauthorization: ${authorized.authorization}\r\naccept: application/x-ndjson\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}`,
    );
    await new Promise((resolve) => socket.once("data", resolve));
    socket.destroy();
    await until(() => options?.signal.aborted === true);
    options?.onProgress?.({ step: "ready", at });
    expect((await server.fetch("/healthz")).status).toBe(200);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });

  test("ends with its last record: a later step is not sent", async () => {
    const later = async ({ onProgress }: CreateOptions) => {
      // Passes the time in which the response waits for everything else, but was not sent yet.
      for (let hop = 0; hop < 50; hop += 1) await null;
      onProgress?.({ step: "launching", at });
    };
    const create = async (_input: CreateSandbox, options: CreateOptions) => {
      void later(options);
      return { sandbox, existed: false };
    };
    await using server = await serve({ sandboxes: { create } });
    expect(recordsOf(await (await ask(server)).text())).toMatchObject([{ type: "sandbox" }]);
  });

  test("is not streamed with wait=false", async () => {
    const create = async (_input: CreateSandbox, { onProgress, wait }: CreateOptions) => {
      expect({ onProgress, wait }).toEqual({ onProgress: undefined, wait: false });
      return { sandbox: aSandbox({ status: "queued" }), existed: false };
    };
    await using server = await serve({ sandboxes: { create } });
    const response = await ask(server, "application/x-ndjson", "/v1/sandboxes?wait=false");
    expect(response.status).toBe(202);
    expect(await response.json()).toMatchObject({ status: "queued" });
  });

  test.each(["application/json", "*/*", "application/octet-stream", "application/vnd.holdfast.frames"])(
    "falls back to a plain response if Accept is %s",
    async (type) => {
      await using server = await serve({ sandboxes: { create: made } });
      const response = await ask(server, type);
      expect(response.status).toBe(201);
      expect(await response.json()).toEqual(sandbox);
    },
  );
});

test("a create that a shutdown interrupts says that it may have been recorded", async () => {
  let waits = false;
  const create = (_input: CreateSandbox, { signal }: CreateOptions) => {
    waits = true;
    return new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  };
  await using server = await serve({ sandboxes: { create } });
  const call = server.fetch("/v1/sandboxes", json({}));
  await until(() => waits);
  const closed = server.app.close();
  expect(await (await call).json()).toMatchObject({
    error: { code: "shutting_down", dispatched: "unknown" },
  });
  await closed;
});

test("a create sets the idle time before standby", async () => {
  const seen: unknown[] = [];
  const create = async ({ lifecycle }: CreateSandbox) => {
    seen.push(lifecycle);
    return { sandbox, existed: false };
  };
  await using server = await serve({ sandboxes: { create } });
  const ask = (idleStandbyMs: unknown) =>
    server.fetch("/v1/sandboxes", json({ lifecycle: { idleStandbyMs } }));
  expect((await ask(15_000)).status).toBe(201);
  expect(seen).toEqual([{ idleStandbyMs: 15_000 }]);
  for (const wrong of [0, 999, 1.5, "15s", 604_800_001]) expect((await ask(wrong)).status).toBe(400);
});

test.each([
  ["ready", 200],
  ["standby", 200],
  ["waking", 202],
] as const)("an existing sandbox that is %s is answered with %d", async (status, code) => {
  const create = async () => ({ sandbox: aSandbox({ status }), existed: true });
  await using server = await serve({ sandboxes: { create } });
  expect((await server.fetch("/v1/sandboxes?wait=false", json({ ifExists: "return" }))).status).toBe(code);
});

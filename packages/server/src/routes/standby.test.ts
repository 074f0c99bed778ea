import { request } from "node:http";
import { ERRORS, type ErrorCode, HoldfastError, type Sandbox } from "@holdfast/contract";
import type { SandboxApi } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { aFile, anExec, aSandbox, authorized, json, serve, until } from "../testing/double.ts";

const VERBS = ["pause", "resume", "standby", "wake"] as const;
type Verb = (typeof VERBS)[number];
const REACHED: Readonly<Record<Verb, Partial<Sandbox>>> = {
  pause: { status: "paused" },
  resume: { status: "ready" },
  standby: {
    status: "standby",
    checkpoint: { id: "ckp_0123456789abcdef", takenAt: "2025-01-01T00:00:00.000Z", sizeBytes: 4_096 },
  },
  wake: { status: "ready" },
};
const url = (verb: Verb) => `/v1/sandboxes/demo/${verb}`;
const post = { method: "POST" };
const only = (verb: Verb, act: SandboxApi[Verb]) => ({ sandboxes: { [verb]: act } });
const untilAborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

describe.each(VERBS)("%s", (verb) => {
  test("returns the sandbox once the state is reached, with and without a body", async () => {
    const refs: string[] = [];
    const reached = Promise.withResolvers<void>();
    await using server = await serve(
      only(verb, async (ref) => {
        refs.push(ref);
        await reached.promise;
        return aSandbox(REACHED[verb]);
      }),
    );
    let isAnswered = false;
    const first = server.fetch(url(verb), post).finally(() => {
      isAnswered = true;
    });
    await until(() => refs.length === 1);
    expect(isAnswered).toBe(false);
    reached.resolve();
    for (const response of [await first, await server.fetch(url(verb), json({}))]) {
      expect(response.status).toBe(200);
      expect(await response.json()).toEqual(aSandbox(REACHED[verb]));
    }
    expect(refs).toEqual(["demo", "demo"]);
  });

  test.each<ErrorCode>([
    "wrong_state",
    "standby_cancelled",
    "standby_failed",
    "wake_timeout",
    "too_many_held",
    "sandbox_failed",
  ])("that fails (%s) reports the code and the cause", async (code) => {
    const cause = new HoldfastError("disk_full", { message: "2 MB are free." });
    await using server = await serve(
      only(verb, () => Promise.reject(new HoldfastError(code, { sandboxId: "sbx_a", cause }))),
    );
    const response = await server.fetch(url(verb), post);
    expect(response.status).toBe(ERRORS[code].status);
    expect(await response.json()).toMatchObject({
      error: {
        code,
        sandboxId: "sbx_a",
        operation: `${verb}Sandbox`,
        retryable: ERRORS[code].retryable,
        cause: { code: "disk_full", message: "2 MB are free." },
      },
    });
    expect(response.headers.has("retry-after")).toBe(
      ERRORS[code].status !== 409 && code !== "sandbox_failed",
    );
  });

  test("reports that it may continue if a shutdown interrupts the wait", async () => {
    let waits = false;
    await using server = await serve(
      only(verb, (_ref, signal) => {
        waits = true;
        return untilAborted(signal);
      }),
    );
    const call = server.fetch(url(verb), post);
    await until(() => waits);
    const closed = server.app.close();
    expect(await (await call).json()).toMatchObject({
      error: { code: "shutting_down", dispatched: "unknown", retryable: true },
    });
    await closed;
  });

  test("is not awaited for a disconnected caller, which is not an error", async () => {
    let given: AbortSignal | undefined;
    await using server = await serve(
      only(verb, (_ref, signal) => {
        given = signal;
        return untilAborted(signal);
      }),
    );
    const leaving = new AbortController();
    const call = server.fetch(url(verb), { ...post, signal: leaving.signal });
    await until(() => given !== undefined);
    leaving.abort();
    await expect(call).rejects.toThrow();
    await until(() => given?.aborted === true);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });
});

describe("a call that is held while its sandbox wakes", () => {
  const PATIENCE_MS = 2_000;
  /** Longer than any time limit other than the wake's own. */
  const HELD_MS = PATIENCE_MS + 500;
  const impatient = {
    httpStallMs: PATIENCE_MS,
    httpReceiveMs: PATIENCE_MS,
    httpKeepAliveMs: PATIENCE_MS,
    startHoldMs: PATIENCE_MS,
  };
  const held = () => new Promise((resolve) => setTimeout(resolve, HELD_MS));

  test("is limited only by the wake's own deadline", async () => {
    await using server = await serve(
      {
        execs: {
          start: async () => {
            await held();
            return { exec: anExec({ status: "running" }), followed: false };
          },
          wait: async () => anExec({ stdout: "woken" }),
        },
        files: {
          read: async () => {
            await held();
            return { stat: aFile(5), body: (async function* () {})() };
          },
        },
      },
      { numbers: impatient },
    );
    const [exec, file] = await Promise.all([
      server.fetch("/v1/sandboxes/demo/execs", json({ command: "x" })),
      server.fetch("/v1/sandboxes/demo/files?path=/a"),
    ]);
    expect(exec.status).toBe(200);
    expect(await exec.json()).toMatchObject({ stdout: "woken" });
    expect(file.status).toBe(200);
  });

  test("keeps its upload until then, byte for byte", async () => {
    const content = Buffer.alloc(3_000_000, "0123456789");
    const chunks: Uint8Array[] = [];
    await using server = await serve(
      {
        files: {
          write: async (_ref, _path, body) => {
            await held();
            for await (const chunk of body) chunks.push(chunk);
            return aFile(content.length);
          },
        },
      },
      { numbers: impatient },
    );
    const put = { method: "PUT", body: content };
    expect((await server.fetch("/v1/sandboxes/demo/files?path=/a", put)).status).toBe(200);
    expect(Buffer.concat(chunks).equals(content)).toBe(true);
  });

  test("is not dispatched if its caller left meanwhile", async () => {
    const woken = Promise.withResolvers<void>();
    const dispatched: string[] = [];
    const held = new Map<string, AbortSignal>();
    await using server = await serve({
      execs: {
        /** Like the engine's gate: wakes first, then checks whether the caller is still connected. */
        start: async (_ref, { command = "" }, { signal }) => {
          held.set(command, signal);
          await woken.promise;
          signal.throwIfAborted();
          dispatched.push(command);
          return { exec: anExec(), followed: false };
        },
        wait: async () => anExec(),
      },
    });
    const start = (command: string, signal?: AbortSignal) =>
      server.fetch("/v1/sandboxes/demo/execs", { ...json({ command }), ...(signal ? { signal } : {}) });
    const leaving = new AbortController();
    const [left, stayed] = [start("left", leaving.signal), start("stayed")];
    await until(() => held.size === 2);
    leaving.abort();
    await expect(left).rejects.toThrow();
    await until(() => held.get("left")?.aborted === true);
    woken.resolve();
    expect((await stayed).status).toBe(200);
    expect(dispatched).toEqual(["stayed"]);
  });

  test("that is refused for its upload leaves the connection usable", async () => {
    await using server = await serve({
      files: {
        write: () => Promise.reject(new HoldfastError("wake_timeout")),
        stat: async () => aFile(1),
      },
    });
    const { hostname, port } = new URL(server.url);
    const upload = request({
      hostname,
      port,
      path: "/v1/sandboxes/demo/files?path=/a",
      method: "PUT",
      headers: authorized,
    });
    const answered = new Promise<number | undefined>((resolve, reject) => {
      upload.on("response", (response) => resolve(response.resume().statusCode));
      upload.on("error", reject);
    });
    upload.end(Buffer.alloc(2_000_000));
    expect(await answered).toBe(503);
    expect((await server.fetch("/v1/sandboxes/demo/files/stat?path=/a")).status).toBe(200);
  });
});

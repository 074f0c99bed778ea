import type { Exec } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { anExec, json, serve, until } from "../testing/double.ts";

const running = anExec({ status: "running", exitCode: null, endedAt: null });
const start = async () => ({ exec: running, followed: false });
const post = "/v1/sandboxes/a/execs";
const never = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

describe("an awaited exec", () => {
  test.each<[string, Partial<Exec>, number]>([
    ["ended well", {}, 200],
    ["failed", { exitCode: 3 }, 200],
    ["timed out", { status: "timed_out", exitCode: null }, 200],
    ["was lost", { status: "lost", exitCode: null }, 200],
    ["still runs", { status: "running", exitCode: null }, 202],
  ])("that %s is a normal response", async (_name, over, status) => {
    await using server = await serve({
      execs: { start, wait: async () => anExec({ ...over, stdout: "x" }) },
    });
    const response = await server.fetch(post, json({ command: "x" }));
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ ...over, stdout: "x" });
  });

  test("waits as long as requested, and no longer than allowed", async () => {
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

  test("returns at once if detached", async () => {
    await using server = await serve({ execs: { start } });
    expect((await server.fetch(post, json({ command: "x", detach: true }))).status).toBe(202);
  });

  test("needs exactly one of command and argv", async () => {
    await using server = await serve({ execs: { start } });
    expect((await server.fetch(post, json({}))).status).toBe(400);
    expect((await server.fetch(post, json({ command: "a", argv: ["a"] }))).status).toBe(400);
  });

  test("passes the idempotency key on", async () => {
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

  test("counts as awaited only if its caller waits for a while", async () => {
    const seen: unknown[] = [];
    await using server = await serve({
      execs: {
        start: async (_ref, _input, { awaited }) => {
          seen.push(awaited);
          return { exec: running, followed: false };
        },
        wait: async () => anExec(),
        output: async function* () {},
      },
    });
    const call = (body: object, accept = "*/*") => {
      const request = json({ command: "a", ...body });
      return server.fetch(post, { ...request, headers: { ...request.headers, accept } as never });
    };
    await call({});
    await call({ waitMs: 999 });
    await call({ detach: true });
    await (await call({}, "text/event-stream")).text();
    expect(seen).toEqual([true, false, false, false]);
  });

  test("is aborted if its caller leaves while held", async () => {
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

  test("accepts only valid behaviours for standby", async () => {
    const seen: unknown[] = [];
    await using server = await serve({
      execs: {
        start: async (_ref, { keepAwake, onWake }) => {
          seen.push({ keepAwake, onWake });
          return { exec: anExec({ status: "running", keepAwake: false, suspended: true }), followed: false };
        },
      },
    });
    const ask = (how: object) => server.fetch(post, json({ command: "a", detach: true, ...how }));
    const wishes = [
      {},
      { keepAwake: false, onWake: { signal: "SIGHUP" } },
      { keepAwake: true, onWake: { argv: ["reconnect", "--now"] } },
    ];
    for (const wish of wishes) {
      expect(await (await ask(wish)).json()).toMatchObject({ keepAwake: false, suspended: true });
    }
    expect(seen).toEqual(wishes);
    for (const wrong of [
      { keepAwake: "no" },
      { onWake: {} },
      { onWake: { signal: "HUP" } },
      { onWake: { argv: [] } },
      { onWake: { signal: "SIGHUP", argv: ["a"] } },
      { onWake: "SIGHUP" },
    ]) {
      const response = await ask(wrong);
      expect(response.status, JSON.stringify(wrong)).toBe(400);
      expect(await response.json()).toMatchObject({ error: { code: "invalid_request" } });
    }
    expect(seen).toHaveLength(wishes.length);
  });

  test("is returned to its waiting caller on shutdown, and keeps running", async () => {
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

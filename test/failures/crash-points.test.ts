import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { ExecResult, ExecRun, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from "vitest";
import { sample } from "../setup/long.ts";
import { type CrashPoint, crashAt } from "../support/crash/exec-crash-points.ts";
import { FaultProxy } from "../support/faults/fault-proxy.ts";
import { TestServer } from "../support/server/test-server.ts";

const CRASHING = join(import.meta.dirname, "..", "support", "crash", "server-crashing-in-execs.ts");
const DYING = join(import.meta.dirname, "..", "support", "crash", "crashing-client.ts");
const LINES = 20_000;
const SAID = `${Array.from({ length: LINES }, (_, i) => i + 1).join("\n")}\nend\n`;

let server: TestServer;
let proxy: FaultProxy;
let boxId: string;
beforeAll(async () => {
  server = await TestServer.start();
  proxy = await FaultProxy.toUrl(server.url);
  const client = server.client();
  boxId = (await client.sandboxes.create({ name: "crashes" })).id;
  client.close();
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await proxy[Symbol.asyncDispose]();
});

const idOf = (point: CrashPoint): string => `at-${point.replaceAll(/[^a-z]+/g, "-")}`;
/** A command that appends a line to a file each time it runs, to detect repeated runs. */
const talking = (id: string) => `echo ran >> /tmp/${id}; seq 1 ${LINES}; sleep 0.3; echo end; exit 7`;
const journal = (id: string) => join(server.dir, "sandboxes", boxId, "control", "journals", id);

interface Case {
  point: CrashPoint;
  /** Whether the keeper received the exec before the server died. */
  arrived: boolean;
  /** The call of the caller, which must not notice the server's death. */
  call: (
    box: Sandbox,
    id: string,
  ) => Promise<Pick<ExecResult, "status" | "exitCode"> & { stdout?: string | undefined }>;
}

const run: Case["call"] = (box, id) => box.exec(talking(id), { id });

async function streamed(run: ExecRun): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const { data } of run.output()) pieces.push(data);
  return Buffer.concat(pieces).toString();
}
const follow: Case["call"] = async (box, id) => {
  const run = await box.execs.start(talking(id), { id });
  const stdout = await streamed(run);
  return { ...(await run.result()), stdout };
};
const cancel: Case["call"] = async (box, id) => {
  const run = await box.execs.start(`echo ran >> /tmp/${id}; sleep 300`, { id });
  while (!(await box.files.exists(`/tmp/${id}`))) await sleep(20);
  await run.cancel();
  return run.result();
};
const feed: Case["call"] = async (box, id) => {
  const run = await box.execs.start(`echo ran >> /tmp/${id}; cat; exit 7`, { id, openStdin: true });
  await run.writeStdin(SAID.slice(0, 50_000));
  await run.writeStdin(SAID.slice(50_000), { end: true });
  return run.result();
};

const CASES: Case[] = [
  { point: "before the exec is stored", arrived: false, call: run },
  { point: "when the exec is stored", arrived: false, call: run },
  { point: "when the start was sent", arrived: true, call: run },
  { point: "when the start was answered", arrived: true, call: run },
  { point: "when the end was received", arrived: true, call: run },
  { point: "before the end is stored", arrived: true, call: run },
  { point: "when the end is stored", arrived: true, call: run },
  { point: "when output was requested", arrived: true, call: run },
  { point: "when output was read", arrived: true, call: run },
  { point: "in the middle of the response", arrived: true, call: run },
  { point: "when output was requested", arrived: true, call: follow },
  { point: "when output was read", arrived: true, call: follow },
  { point: "in the middle of the stream", arrived: true, call: follow },
  { point: "before the cancel is sent", arrived: true, call: cancel },
  { point: "when the cancel was sent", arrived: true, call: cancel },
  { point: "when the cancel was answered", arrived: true, call: cancel },
  { point: "when stdin was sent", arrived: true, call: feed },
  { point: "when stdin was accepted", arrived: true, call: feed },
];

const FORGETTING: CrashPoint[] = [
  "when the forget request was sent",
  "when the forget request was answered",
  "before the exec's deletion is stored",
  "when the exec's deletion is stored",
];

/** The point of the current exec at which the running server dies. */
let armed = "";
async function arm(point: CrashPoint, id: string): Promise<void> {
  await server.start({ main: CRASHING, env: crashAt(point, id) });
  proxy.retarget(server.url);
  armed = `${point} ${id}`;
}

/** Makes the server die at a point while `work` is in progress. Its successor is prepared for the next point. */
async function through<Result>(
  { point, id, next }: { point: CrashPoint; id: string; next: { point: CrashPoint; id: string } | undefined },
  work: (client: Holdfast) => Promise<Result>,
  whileDead: () => void,
): Promise<Result> {
  if (armed !== `${point} ${id}`) {
    await server.kill("SIGTERM");
    await arm(point, id);
  }
  const client = server.client({ url: proxy.url, timeoutMs: 5_000 });
  const working = work(client);
  working.catch(() => undefined);
  expect(await Promise.race([server.died(), working])).toBe("SIGKILL");
  whileDead();
  if (next === undefined) await server.start();
  else await arm(next.point, next.id);
  proxy.retarget(server.url);
  const result = await working;
  client.close();
  return result;
}

describe("a server that is killed", () => {
  const cases = sample(CASES, 2).map((one) => ({ ...one, id: `${idOf(one.point)}-${one.call.name}` }));
  it.each(cases.map((one, i) => ({ ...one, next: cases[i + 1] })))(
    "$point gives its caller the one right outcome and runs nothing twice ($call.name)",
    async (one) => {
      const { id, call, arrived } = one;
      const outcome = await through(
        one,
        async (client) => call(await client.sandboxes.get(boxId), id),
        () => expect(existsSync(journal(id))).toBe(arrived),
      );
      if (call === cancel) expect(outcome).toMatchObject({ status: "cancelled", exitCode: null });
      else expect(outcome).toMatchObject({ status: "exited", exitCode: 7 });
      if (call !== cancel) expect(outcome.stdout === SAID).toBe(true);
      const client = server.client();
      const box = await client.sandboxes.get(boxId);
      expect(await box.files.readText(`/tmp/${id}`)).toBe("ran\n");
      const { items } = await box.events({ types: ["exec.ended"], limit: 1000 });
      expect(items.filter(({ execId }) => execId === id)).toHaveLength(1);
      const again = await (await client.execs.get(id)).result();
      expect(again).toMatchObject({ status: outcome.status, exitCode: outcome.exitCode });
      const { totals } = await client.stats();
      expect(totals.execsEnded).toBe(totals.execsStarted);
      client.close();
    },
  );
});

describe("a server that is killed while it deletes an ended exec", () => {
  const retention = {
    HOLDFAST_NUMBERS_JSON: JSON.stringify({ execRetentionMs: 1_000, retentionEveryMs: 200 }),
  };
  const points = sample(FORGETTING, 2).map((point) => ({ point }));

  it.each(points)("$point still deletes the exec and its journal, and nothing else", async ({ point }) => {
    const id = idOf(point);
    await server.kill("SIGTERM");
    await server.start({ main: CRASHING, env: { ...crashAt(point, id), ...retention } });
    const client = server.client();
    const box = await client.sandboxes.get(boxId);
    const running = await box.execs.start("sleep 300", { id: `${id}-bystander` });
    expect((await box.exec(talking(id), { id })).exitCode).toBe(7);
    client.close();
    expect(await server.died()).toBe("SIGKILL");
    await server.start({ env: retention });
    const after = server.client();
    await vi.waitFor(() => expect(existsSync(journal(id))).toBe(false), { timeout: 20_000, interval: 50 });
    await vi.waitFor(() => expect(after.execs.get(id)).rejects.toMatchObject({ code: "exec_not_found" }), {
      timeout: 20_000,
      interval: 50,
    });
    const bystander = await after.execs.get(running.id);
    expect(bystander.info.status).toBe("running");
    await bystander.cancel();
    expect(await (await after.sandboxes.get(boxId)).files.readText(`/tmp/${id}`)).toBe("ran\n");
    after.close();
  });
});

/** Starts a client that will be killed. `printed` resolves when it has printed a matching line. */
function dyingClient(step: string, id: string, command: string) {
  const child = spawn(process.execPath, [DYING, step, boxId, id, command], {
    env: { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key },
    stdio: ["ignore", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  let heard = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    heard += text;
  });
  const exited = once(child, "exit");
  return {
    printed: (pattern: RegExp) =>
      vi.waitFor(() => expect(heard).toMatch(pattern), { timeout: 20_000, interval: 5 }),
    kill: async () => {
      child.kill("SIGKILL");
      expect((await exited)[1]).toBe("SIGKILL");
    },
    died: async () => expect((await exited)[1]).toBe("SIGKILL"),
  };
}

describe("a client that is killed", () => {
  let client: Holdfast;
  let box: Sandbox;
  beforeAll(async () => {
    await server.kill("SIGTERM");
    await server.start();
    client = server.client();
    box = await client.sandboxes.get(boxId);
  });
  afterAll(() => client.close());
  const ranOnce = async (id: string) => expect(await box.files.readText(`/tmp/${id}`)).toBe("ran\n");

  it("after sending leaves an exec that another client finds, or none: with the same id it runs once", async () => {
    const id = "sends";
    await dyingClient("sends", id, talking(id)).died();
    const result = await box.exec(talking(id), { id });
    expect(result).toMatchObject({ status: "exited", exitCode: 7 });
    expect(result.stdout === SAID).toBe(true);
    await ranOnce(id);
  });

  it("while waiting does not affect the exec", async () => {
    const id = "waits";
    const dying = dyingClient("waits", id, `echo ran >> /tmp/${id}; sleep 2; echo through; exit 8`);
    await dying.printed(/waiting/);
    await vi.waitFor(async () => expect((await client.execs.get(id)).info.status).toBe("running"), {
      timeout: 20_000,
      interval: 5,
    });
    await dying.kill();
    const result = await (await client.execs.get(id)).result();
    expect(result).toMatchObject({ status: "exited", exitCode: 8, stdout: "through\n" });
    await ranOnce(id);
  });

  it("while streaming does not affect the exec, and another client reads all of its output", async () => {
    const id = "streams";
    const dying = dyingClient("streams", id, talking(id));
    await dying.printed(/read \d+/);
    await dying.kill();
    const run = await client.execs.get(id);
    expect((await streamed(run)) === SAID).toBe(true);
    expect(await run.result()).toMatchObject({ status: "exited", exitCode: 7 });
    await ranOnce(id);
  });

  it("while writing stdin leaves stdin open, and another client continues at its position", async () => {
    const id = "writes";
    const command = `echo ran >> /tmp/${id}; sha256sum; exit 9`;
    const dying = dyingClient("writes stdin", id, command);
    await dying.printed(/wrote 20\n/);
    await dying.kill();
    const all = Buffer.concat(Array.from({ length: 400 }, (_, i) => Buffer.alloc(65_536, i % 256)));
    const asked = await server.fetch(`/v1/execs/${id}/stdin?offset=0`, { method: "POST" });
    const { accepted } = (await asked.json()) as { accepted: number };
    expect(accepted).toBeGreaterThanOrEqual(20 * 65_536);
    const run = await client.execs.get(id);
    expect(run.info.status).toBe("running");
    await run.writeStdin(all.subarray(accepted), { end: true });
    const { exitCode, stdout } = await run.result();
    expect([exitCode, stdout.slice(0, 64)]).toEqual([9, createHash("sha256").update(all).digest("hex")]);
    await ranOnce(id);
  });
});

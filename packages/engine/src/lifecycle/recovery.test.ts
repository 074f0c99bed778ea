import type { SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { EngineApi } from "../ports/api.ts";
import type { Log } from "../ports/index.ts";
import { eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

/** Calls of the driver that hang do so for longer than the test runs. */
const PATIENT = { stopAttemptMs: 600_000, freezeMs: 600_000, driveCallMs: 600_000 };

type World = Awaited<ReturnType<typeof testEngine>>;
type Hang = (id: SandboxId) => Promise<void>;

/** Creates sandboxes with these names, and stops the server. Returns their ids. */
async function left(all: World, names: readonly string[], prepare?: (engine: EngineApi) => Promise<unknown>) {
  const ids: SandboxId[] = [];
  for (const name of names) ids.push((await all.create(name)).sandbox.id as SandboxId);
  await prepare?.(all.engine);
  await all.engine.stop();
  return ids;
}

const statusOf = async (engine: EngineApi, ref: string) => (await engine.sandboxes.get(ref)).status;
const serves = async (engine: EngineApi, ref: string) =>
  (await engine.execs.wait((await start(engine, ref, ["exit", "0"])).id, { waitMs: 10_000, signal })).status;

describe("a start of the server", () => {
  it.each<
    [what: string, prepare: (engine: EngineApi) => Promise<unknown>, fault: "recover" | "discard" | "freeze"]
  >([
    ["that can't be found again", async () => undefined, "recover"],
    ["whose old checkpoints are removed", (engine) => engine.sandboxes.standby("hung", signal), "discard"],
    ["that is paused", (engine) => engine.sandboxes.pause("hung", signal), "freeze"],
  ])("does not wait for a sandbox %s while the driver hangs", async (_what, prepare, fault) => {
    const all = await testEngine(PATIENT);
    const [hung] = await left(all, ["hung", "other"], prepare);
    const isReleased = Promise.withResolvers<void>();
    const hang: Hang = (id) => (id === hung ? isReleased.promise : Promise.resolve());
    all.driver.faults = { [fault]: hang };
    const next = await all.restart();
    expect(await serves(next, "other")).toBe("exited");
    isReleased.resolve();
  });

  it("continues with a sandbox that takes long, and calls on it are held meanwhile", async () => {
    const all = await testEngine({ ...PATIENT, linkWaitMs: 60_000 });
    await left(all, ["slow"]);
    const isFound = Promise.withResolvers<void>();
    all.driver.faults.recover = () => isFound.promise;
    const next = await all.restart();
    const served = serves(next, "slow");
    await new Promise((resolve) => setTimeout(resolve, 200));
    isFound.resolve();
    expect(await served).toBe("exited");
  });

  it("leaves a sandbox alone that was deleted before it was found again", async () => {
    const all = await testEngine(PATIENT);
    const [id = ""] = await left(all, ["slow"]);
    const isFound = Promise.withResolvers<void>();
    all.driver.faults.recover = () => isFound.promise;
    const next = await all.restart();
    expect((await remove(next, id)).status).toBe("terminated");
    isFound.resolve();
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(await statusOf(next, id)).toBe("terminated");
    expect(all.driver.instances.size).toBe(0);
  });

  it("does not freeze a paused sandbox that was resumed before it was found again", async () => {
    const all = await testEngine({ ...PATIENT, linkWaitMs: 100 });
    const [id = ""] = await left(all, ["slow"], (engine) => engine.sandboxes.pause("slow", signal));
    const isFound = Promise.withResolvers<void>();
    all.driver.faults.recover = () => isFound.promise;
    const next = await all.restart();
    expect(await statusOf(next, id)).toBe("paused");
    await next.sandboxes.resume(id, signal);
    isFound.resolve();
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(all.driver.frozen.size).toBe(0);
    expect(await serves(next, id)).toBe("exited");
  });

  it("deletes sandboxes that expired meanwhile at once", async () => {
    const all = await testEngine({ maintainEveryMs: 600_000, sweepAgeMs: 600_000 });
    const lifecycle = { ttlMs: 1_500 };
    const { sandbox } = await all.engine.sandboxes.create({ lifecycle }, { wait: true, signal });
    await all.engine.stop();
    await eventually(() => expect(Date.now()).toBeGreaterThan(Date.parse(sandbox.expiresAt ?? "")));
    const next = await all.restart();
    await eventually(async () => expect(await statusOf(next, sandbox.id)).toBe("terminated"));
  });

  it("reports nothing about a sandbox that serves all the time", async () => {
    const lines: string[] = [];
    const note = (_fields: unknown, message: string) => void lines.push(message);
    const log = { debug() {}, info() {}, warn: note, error: note, child: () => log } as unknown as Log;
    const all = await testEngine({}, ":memory:", { log });
    await left(all, ["box"]);
    all.driver.faults.connect = () => new Promise((resolve) => setTimeout(resolve, 200));
    lines.splice(0);
    const next = await all.restart();
    await eventually(async () => expect(await statusOf(next, "box")).toBe("ready"));
    const types = await eventsOf(next, "box");
    expect(types).not.toContain("sandbox.degraded");
    expect(types).not.toContain("sandbox.recovered");
    expect(lines).toEqual([]);
  });
});

it("a sandbox that serves again is logged as information, not as a warning", async () => {
  const lines: string[] = [];
  const note = (level: string) => (_fields: unknown, message: string) =>
    void lines.push(`${level}: ${message}`);
  const levels = { debug: note("debug"), info: note("info"), warn: note("warn"), error: note("error") };
  const log = { ...levels, child: () => log } as unknown as Log;
  const all = await testEngine({ healAfterMs: 1e9 }, ":memory:", { log });
  const { sandbox } = await all.create("box");
  const instance = all.driver.instances.get(sandbox.id as SandboxId);
  if (instance !== undefined) instance.root = false;
  await eventually(async () => expect(await statusOf(all.engine, "box")).toBe("degraded"));
  if (instance !== undefined) instance.root = true;
  await eventually(async () => expect(await statusOf(all.engine, "box")).toBe("ready"));
  expect(lines).toContain("info: The sandbox serves again.");
  expect(lines).not.toContain("warn: The sandbox serves again.");
});

it("a sandbox whose recovery is retried and hangs does not keep maintenance from serving others", async () => {
  const all = await testEngine(PATIENT);
  const { sandbox } = await all.create("hung");
  const lifecycle = { idleStandbyMs: 1_000 };
  await all.engine.sandboxes.create({ name: "idle", lifecycle }, { wait: true, signal });
  await all.engine.stop();
  let tries = 0;
  all.driver.faults.recover = async (id) => {
    if (id !== sandbox.id) return;
    tries += 1;
    if (tries === 1) throw new Error("it can't be observed");
    await never();
  };
  const next = await all.restart();
  await eventually(() => expect(tries).toBe(2));
  await eventually(async () => expect(await statusOf(next, "idle")).toBe("standby"));
  expect(await codeOf(start(next, "idle", ["exit", "0"]))).toBe("fulfilled");
});

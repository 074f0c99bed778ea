import type { SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { HostileDriver } from "../testing/hostile-driver.ts";
import { aborted, asleep, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

describe("concurrent operations", () => {
  it("a wake that is proven right at its deadline continues and serves", async () => {
    const { engine, store } = await asleep({ wakeDeadlineMs: 300 });
    const gate = Promise.withResolvers<void>();
    const commit = store.commit.bind(store);
    store.commit = async (change) => {
      if (change.events?.some(({ type }) => type === "sandbox.woke")) await gate.promise;
      return commit(change);
    };
    // The wake began before the second call, so the wake's deadline has passed when that call is refused.
    for (let call = 0; call < 2; call += 1)
      expect(await codeOf(start(engine, "box", ["true"]))).toBe("wake_timeout");
    gate.resolve();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("ready"));
    expect((await start(engine, "box", ["exit", "0"])).id).toBeDefined();
  });

  it("an idle sandbox that is used while its suspension is queued stays awake", async () => {
    const { engine, driver, create } = await testEngine({ standbysAtOnce: 1 });
    await create("first");
    await create("last");
    const lifecycle = { idleStandbyMs: 1_000 };
    const { sandbox } = await engine.sandboxes.create({ name: "idle", lifecycle }, { wait: true, signal });
    const gate = Promise.withResolvers<void>();
    driver.faults.checkpoint = () => gate.promise;
    const first = engine.sandboxes.standby("first", signal);
    const idleFor = () => Date.now() - Date.parse(sandbox.lastActivityAt);
    await eventually(() => expect(idleFor()).toBeGreaterThan(1_500));
    const exec = await start(engine, "idle", ["sleep"]);
    const last = engine.sandboxes.standby("last", signal);
    gate.resolve();
    await Promise.all([first, last]);
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: false });
    expect((await engine.sandboxes.get("idle")).status).toBe("ready");
    expect((await engine.sandboxes.standby("idle", signal)).status).toBe("standby");
  });

  it("a start that is observing up while its sandbox falls asleep wakes it", async () => {
    const { engine, store, create } = await testEngine({ execStartDeadlineMs: 500 });
    await create("box");
    const gate = Promise.withResolvers<void>();
    const idempotent = store.idempotent.bind(store);
    store.idempotent = async (...key) => {
      await gate.promise;
      return idempotent(...key);
    };
    const run = engine.execs.start("box", { argv: ["exit", "3"] }, { signal, idempotencyKey: "key" });
    await engine.sandboxes.standby("box", signal);
    gate.resolve();
    const { exec } = await run;
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 3 });
  });

  it("a call that waits for a proof while its sandbox is suspended is served after the wake", async () => {
    const { engine, driver, create } = await testEngine({ proofFreshMs: 0, observeEveryMs: 60_000 });
    await create("box");
    const gate = Promise.withResolvers<void>();
    const observing = heldObservation(driver, gate.promise);
    const run = start(engine, "box", ["exit", "3"]);
    await observing;
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
    gate.resolve();
    const { id } = await run;
    expect(await engine.execs.wait(id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 3 });
  });

  it("a proof from before the standby does not count for the wake", async () => {
    const numbers = { proofDeadlineMs: 60_000, observeEveryMs: 60_000, wakeDeadlineMs: 5_000 };
    const { engine, driver, create } = await testEngine(numbers);
    await create("box");
    const gate = Promise.withResolvers<void>();
    const observing = heldObservation(driver, gate.promise);
    const old = engine.sandboxes.verify("box", signal);
    await observing;
    await engine.sandboxes.standby("box", signal);
    expect((await engine.sandboxes.wake("box", signal)).status).toBe("ready");
    gate.resolve();
    await old;
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
  });

  it("a suspension waits for a call on an exec", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    const [link] = driver.instances.get(sandbox.id as SandboxId)?.links ?? [];
    if (link === undefined) throw new Error("there is no link");
    const gate = Promise.withResolvers<void>();
    const sending = Promise.withResolvers<void>();
    link.signalExec = async () => {
      sending.resolve();
      await gate.promise;
      await link.ping();
    };
    const call = codeOf(engine.execs.signal(exec.id, "SIGHUP", signal));
    await sending.promise;
    const order = engine.sandboxes.standby("box", signal);
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).not.toBe("ready"));
    gate.resolve();
    expect(await call).toBe("fulfilled");
    expect((await order).status).toBe("standby");
  });

  it("a call queued for a wake is refused when the sandbox is deleted", async () => {
    const { engine, driver, create } = await testEngine({ wakesAtOnce: 1 });
    for (const name of ["first", "box"]) {
      await create(name);
      await engine.sandboxes.standby(name, signal);
    }
    driver.faults.restore = (_, inner) => aborted(inner);
    const first = codeOf(start(engine, "first", ["true"]));
    await eventually(() => expect(driver.restores).toBe(1));
    const held = codeOf(start(engine, "box", ["true"]));
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("standby"));
    const { id } = await engine.sandboxes.get("box");
    await remove(engine, id);
    expect(["wrong_state", "sandbox_gone"]).toContain(await held);
    await remove(engine, "first");
    await first;
  });

  it("the disk guard does not freeze a sandbox in standby, nor keep it frozen after a wake", async () => {
    const { engine, driver, create } = await testEngine({ diskGuardEveryMs: 20 });
    driver.standby = { kind: "files", why: "no luck" };
    const { sandbox } = await create("box");
    const id = sandbox.id as SandboxId;
    driver.writes.set(id, 1 << 30);
    const gate = Promise.withResolvers<void>();
    const written = driver.written.bind(driver);
    let samples = 0;
    driver.written = async (ids) => {
      samples += 1;
      if (samples === 2) await gate.promise;
      return written(ids);
    };
    driver.diskFreeBytes = 1;
    await eventually(() => expect(samples).toBe(2));
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
    gate.resolve();
    await eventually(() => expect(samples).toBeGreaterThan(2));
    expect(driver.frozen.size).toBe(0);
    await engine.sandboxes.wake("box", signal);
    await eventually(() => expect(driver.frozen.has(id)).toBe(true));
    driver.writes.clear();
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
    expect((await engine.sandboxes.wake("box", signal)).status).toBe("ready");
  });
});

/** Blocks the driver's next observation until the gate opens; resolves when the observation has begun. */
function heldObservation(driver: HostileDriver, gate: Promise<void>): Promise<void> {
  const begun = Promise.withResolvers<void>();
  const observe = driver.observe.bind(driver);
  driver.observe = async (ids) => {
    driver.observe = observe;
    begun.resolve();
    await gate;
    return observe(ids);
  };
  return begun.promise;
}

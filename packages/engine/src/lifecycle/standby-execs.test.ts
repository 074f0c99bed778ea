import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { asleep, eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, signal, testEngine } from "../testing/test-engine.ts";

describe("a sleeping sandbox", () => {
  it("stays in standby with its execs after a restart of the server, until a call wakes it", async () => {
    const { engine, driver, create, restart } = await testEngine({ linkWaitMs: 60_000 });
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.faults.stop = never;
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("suspending");
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("box")).lease.state).toBe("none"));
    await next.audit();
    expect((await next.sandboxes.get("box")).status).toBe("standby");
    expect(driver.restores).toBe(0);
    expect(await next.execs.get(exec.id)).toMatchObject({ status: "running", suspended: true });
    expect(await codeOf(next.execs.signal(exec.id, "SIGHUP", signal))).toBe("fulfilled");
    expect(driver.restores).toBe(1);
  });

  it("loses an exec that is missing in its memory after a restart, and does not start it again", async () => {
    const { engine, driver, exec, restart } = await asleep();
    await engine.stop();
    for (const { execs } of driver.checkpoints.values()) execs.delete(exec.id as ExecId);
    const next = await restart();
    await next.sandboxes.wake("box", signal);
    expect(await next.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ status: "lost" });
  });

  it("allows reading output while paused", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.instances.get(sandbox.id as SandboxId)?.print(exec.id as ExecId, "so far");
    await engine.sandboxes.pause("box", signal);
    expect(await engine.execs.wait(exec.id, { waitMs: 0, signal })).toMatchObject({ stdout: "so far" });
    const types = [];
    for await (const { type } of engine.execs.output(exec.id, { follow: false, signal })) types.push(type);
    expect(types).toEqual(["start", "stdout"]);
  });

  it("answers a file request in time although its disk does not respond", async () => {
    const { engine, driver } = await asleep({ keeperCallMs: 200 });
    const files = driver.files.bind(driver);
    driver.files = async (id) => {
      const jail = await files(id);
      return { ...jail, files: { ...jail.files, stat: () => new Promise<never>(() => undefined) } };
    };
    expect(await codeOf(engine.files.stat("box", "/home/user/a", { wake: true }, signal))).toBe("deadline");
    expect(driver.restores).toBe(0);
  });

  it("stays paused if a second pause fails", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    driver.faults.freeze = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(engine.sandboxes.pause("box", signal))).toBe("sandbox_degraded");
    expect((await engine.sandboxes.get("box")).status).toBe("paused");
    expect(driver.frozen.has(sandbox.id as SandboxId)).toBe(true);
  });

  it("is not suspended again at once if its memory could not be measured", async () => {
    const { engine, driver } = await testEngine();
    const lifecycle = { idleStandbyMs: 1_000 };
    let tries = 0;
    let triedAt = 0;
    driver.memoryBytes = async () => {
      tries += 1;
      triedAt ||= Date.now();
      throw new Error("no luck");
    };
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    await eventually(() => expect(tries).toBe(1));
    await eventually(() => expect(Date.now() - triedAt).toBeGreaterThan(500));
    expect(tries).toBe(1);
  });

  it("has its checkpoint discarded after a cold start", async () => {
    const { engine, driver } = await testEngine({ proofDeadlineMs: 300, wakeDeadlineMs: 1_500 });
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    await engine.sandboxes.standby("box", signal);
    driver.faults.connect = async () => {
      if (driver.launches === 1) throw new Error("the keeper does not answer");
    };
    expect((await engine.sandboxes.wake("box", signal)).status).toBe("ready");
    expect({ restores: driver.restores, launches: driver.launches }).toEqual({ restores: 1, launches: 2 });
    await eventually(() => expect(driver.checkpoints.size).toBe(0));
  });

  it("starts counting OOM kills from zero after a wake", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    let oomKills = 3;
    const observe = driver.observe.bind(driver);
    driver.observe = async (ids) => {
      const seen = await observe(ids);
      return new Map([...seen].map(([id, one]) => [id, one.seen === "present" ? { ...one, oomKills } : one]));
    };
    const oomEvents = async () => (await eventsOf(engine, "box")).filter((type) => type === "sandbox.oom");
    await eventually(async () => expect(await oomEvents()).toHaveLength(1));
    await engine.sandboxes.standby("box", signal);
    oomKills = 0;
    await engine.sandboxes.wake("box", signal);
    oomKills = 1;
    await eventually(async () => expect(await oomEvents()).toHaveLength(2));
  });
});

describe("execs of a sandbox in standby, after a restart of the server", () => {
  it("stay suspended if its memory has them, and wake it if they have not reached it", async () => {
    const { engine, driver, create, restart } = await testEngine({ execsPerSandbox: 1 });
    const { sandbox } = await create("box");
    const start = (argv: string[]) =>
      engine.execs.start("box", { argv, keepAwake: false }, { signal }).then(({ exec }) => exec);
    const first = await start(["sleep"]);
    await engine.sandboxes.standby("box", signal);
    await engine.stop();
    let next = await restart();
    await next.audit();
    expect((await next.sandboxes.get("box")).status).toBe("standby");
    expect(driver.restores).toBe(0);
    await next.sandboxes.wake("box", signal);
    const { exec: second } = await next.execs.start(
      "box",
      { argv: ["exit", "4"], keepAwake: false },
      { signal },
    );
    expect(second.status).toBe("queued");
    await next.sandboxes.standby("box", signal);
    await next.stop();
    next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("box")).status).toBe("ready"));
    driver.instances.get(sandbox.id as SandboxId)?.end(first.id as ExecId, 0, "");
    expect(await next.execs.wait(second.id, { waitMs: 10_000, signal })).toMatchObject({ exitCode: 4 });
  });
});

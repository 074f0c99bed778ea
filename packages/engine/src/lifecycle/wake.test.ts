import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { asleep, eventsOf, start } from "./testing/asleep.ts";
import { codeOf, eventually, never, signal, world } from "./testing/world.ts";

describe("a wake that fails", () => {
  it("before anything ran is tried once more", async () => {
    const { engine, driver, exec } = await asleep();
    let failures = 1;
    driver.faults.restoreAnswer = async () => {
      failures -= 1;
      if (failures >= 0) throw new Error("the answer was lost");
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 3 });
    expect(driver.restores).toBe(2);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("twice ends with everything kept", async () => {
    const { engine, driver, id, exec } = await asleep();
    driver.faults.restore = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_failed");
    expect(driver.restores).toBe(2);
    expect(driver.directories.has(id)).toBe(true);
    expect(driver.checkpoints.size).toBe(1);
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "lost" });
    expect(await eventsOf(engine, "box")).toContain("sandbox.memory_lost");
  });

  it("for a checkpoint that can't be used is not tried twice, and starts anew where its policy says so", async () => {
    const { engine, driver } = await world();
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    const exec = await start(engine, "box", ["sleep"]);
    await engine.sandboxes.standby("box", signal);
    driver.checkpoints.clear();
    const run = await start(engine, "box", ["exit", "0"]);
    expect(await engine.execs.wait(run.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 0 });
    expect({ restores: driver.restores, launches: driver.launches }).toEqual({ restores: 1, launches: 2 });
    expect(await engine.execs.get(exec.id)).toMatchObject({
      status: "lost",
      cause: { code: "checkpoint_missing" },
    });
    expect(await eventsOf(engine, "box")).toContain("sandbox.memory_lost");
  });

  it("after it was thawed is never restored from the same checkpoint again", async () => {
    const { engine, driver, id } = await asleep();
    driver.faults.connect = async () => {
      throw new Error("the keeper does not answer");
    };
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("sandbox_failed");
    expect(driver.restores).toBe(1);
    await eventually(() => expect(driver.instances.get(id)?.alive).toBe(false));
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "failed" });
  });

  it("after it was thawed gives execs the end that they come to until it is stopped", async () => {
    const { engine, driver, id, exec } = await asleep();
    const gate = Promise.withResolvers<void>();
    driver.faults.stop = () => gate.promise;
    driver.faults.connect = async () => {
      throw new Error("the keeper does not answer");
    };
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("sandbox_failed");
    driver.instances.get(id)?.end(exec.id as ExecId, 7, "out");
    gate.resolve();
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 7 });
  });

  it("holds callers no longer than the deadline, with an error that says to try again", async () => {
    const { engine, driver } = await asleep({ wakeDeadlineMs: 200 });
    driver.faults.restore = never;
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("wake_timeout");
  });

  it("a caller that leaves while it is held is not served later", async () => {
    const { engine, driver, id } = await asleep();
    const gate = Promise.withResolvers<void>();
    driver.faults.restore = () => gate.promise;
    const leaver = new AbortController();
    const left = engine.execs.start("box", { argv: ["exit", "1"] }, { signal: leaver.signal });
    const stayed = start(engine, "box", ["exit", "2"]);
    await eventually(() => expect(driver.restores).toBe(1));
    leaver.abort(new Error("gone"));
    await expect(left).rejects.toThrow("gone");
    gate.resolve();
    await stayed;
    expect(
      [...(driver.instances.get(id)?.execs.values() ?? [])].map(({ order }) => order.argv[1]),
    ).not.toContain("1");
  });

  it("refuses callers beyond the bound", async () => {
    const { engine, driver } = await asleep({ heldPerSandbox: 2 });
    const gate = Promise.withResolvers<void>();
    driver.faults.restore = () => gate.promise;
    const held = [1, 2].map(() => start(engine, "box", ["exit", "0"]));
    await eventually(() => expect(driver.restores).toBe(1));
    expect(await codeOf(start(engine, "box", ["exit", "0"]))).toBe("too_many_held");
    gate.resolve();
    await Promise.all(held);
  });
});

describe("a command that asks to be told of wakes", () => {
  it("is told once after each, and the outcome is an event", async () => {
    const { engine, driver, create } = await world();
    const { sandbox } = await create("box");
    await start(engine, "box", ["sleep"], { onWake: { argv: ["exit", "4"] } });
    await start(engine, "box", ["sleep"], { onWake: { signal: "SIGUSR1" } });
    expect(await codeOf(start(engine, "box", ["sleep"], { onWake: { signal: "SIGNONE" } }))).toBe(
      "invalid_request",
    );
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    const told = async () =>
      (await engine.events({ ref: "box", types: ["exec.woken"], limit: 100 })).items.map(
        ({ message }) => message,
      );
    await eventually(async () => expect(await told()).toHaveLength(2));
    expect((await told()).join("\n")).toMatch(/ended: exited with 4\./);
    expect((await told()).join("\n")).toMatch(/It was sent SIGUSR1\./);
    expect(driver.instances.get(sandbox.id as SandboxId)?.starts).toBeGreaterThan(1);
  });

  it("whose command for that outlives the server is said to have ended by nobody", async () => {
    const { engine, create, restart } = await world();
    await create("box");
    await start(engine, "box", ["sleep"], { onWake: { argv: ["sleep"] } });
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    await eventually(async () =>
      expect((await engine.execs.list("box", { limit: 10 })).items).toHaveLength(2),
    );
    await engine.stop();
    const next = await restart();
    expect(await eventsOf(next, "box")).not.toContain("exec.woken");
  });
});

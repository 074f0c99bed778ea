import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { eventsOf, start } from "./testing/asleep.ts";
import { codeOf, eventually, remove, signal, world } from "./testing/world.ts";

describe("pause and resume", () => {
  it("freezes it, refuses calls, and lets it go on, proven", async () => {
    const { engine, driver, create } = await world();
    const { sandbox } = await create("box");
    const id = sandbox.id as SandboxId;
    expect((await engine.sandboxes.pause("box", signal)).status).toBe("paused");
    expect(driver.frozen.has(id)).toBe(true);
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("wrong_state");
    expect((await engine.sandboxes.pause("box", signal)).status).toBe("paused");
    expect((await engine.sandboxes.resume("box", signal)).status).toBe("ready");
    expect(driver.frozen.size).toBe(0);
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.degraded");
    expect((await start(engine, "box", ["exit", "0"])).dispatched).not.toBe("no");
    expect((await engine.sandboxes.resume("box", signal)).status).toBe("ready");
  });

  it("is paused after a restart of the server as well, and can be deleted", async () => {
    const { engine, driver, create, restart } = await world();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    await engine.stop();
    driver.frozen.clear();
    const next = await restart();
    expect((await next.sandboxes.get("box")).status).toBe("paused");
    expect(driver.frozen.has(sandbox.id as SandboxId)).toBe(true);
    expect((await remove(next, "box")).status).toBe("terminated");
  });

  it("does not run behind a record that says it doesn't, when neither the freeze nor the thaw behind it worked", async () => {
    const { engine, driver, create } = await world();
    const { sandbox } = await create("box");
    driver.faults.freeze = driver.faults.thaw = async () => {
      delete driver.faults.freeze;
      throw new Error("no luck");
    };
    expect(await codeOf(engine.sandboxes.pause("box", signal))).toBe("sandbox_degraded");
    await eventually(() => expect(driver.frozen.has(sandbox.id as SandboxId)).toBe(true));
    expect((await engine.sandboxes.get("box")).status).toBe("paused");
    expect(await codeOf(engine.sandboxes.resume("box", signal))).toBe("sandbox_degraded");
    driver.faults = {};
    expect((await engine.sandboxes.resume("box", signal)).status).toBe("ready");
  });

  it("gives a command the rest of its stdin when it goes on", async () => {
    const { engine, driver, create } = await world();
    const { sandbox } = await create("box");
    const stdin = "some words for stdin";
    const exec = await start(engine, "box", ["cat"], { stdin });
    await engine.sandboxes.pause("box", signal);
    const instance = driver.instances.get(sandbox.id as SandboxId);
    await engine.sandboxes.resume("box", signal);
    await eventually(() => expect(instance?.stdin(exec.id as ExecId)).toBe(stdin));
  });

  it("is noticed when it dies while it is paused", async () => {
    const { engine, driver, create } = await world();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("failed"));
  });
});

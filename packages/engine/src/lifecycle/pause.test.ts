import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

describe("pause and resume", () => {
  it("freezes the sandbox, refuses calls, then thaws and proves it", async () => {
    const { engine, driver, create } = await testEngine();
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

  it("survives a restart of the server, and a paused sandbox can be deleted", async () => {
    const { engine, driver, create, restart } = await testEngine();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    await engine.stop();
    driver.frozen.clear();
    const next = await restart();
    expect((await next.sandboxes.get("box")).status).toBe("paused");
    expect(driver.frozen.has(sandbox.id as SandboxId)).toBe(true);
    expect((await remove(next, "box")).status).toBe("terminated");
  });

  it("freezes a sandbox recorded as paused later, if both the freeze and its undo failed", async () => {
    const { engine, driver, create } = await testEngine();
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

  it("delivers the rest of a command's stdin after the resume", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const stdin = "some words for stdin";
    const exec = await start(engine, "box", ["cat"], { stdin });
    await engine.sandboxes.pause("box", signal);
    const instance = driver.instances.get(sandbox.id as SandboxId);
    await engine.sandboxes.resume("box", signal);
    await eventually(() => expect(instance?.stdin(exec.id as ExecId)).toBe(stdin));
  });

  it("reports a sandbox that dies while paused as failed", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("failed"));
  });

  it("finishes a pause whose caller leaves during the freeze", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const freeze = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    driver.faults.freeze = () => {
      begun.resolve();
      return freeze.promise;
    };
    const caller = new AbortController();
    const pause = engine.sandboxes.pause("box", caller.signal);
    await begun.promise;
    caller.abort(new Error("the caller left"));
    await expect(pause).rejects.toThrow("the caller left");
    freeze.resolve();
    await eventually(() => expect(driver.frozen.has(sandbox.id as SandboxId)).toBe(true));
    expect((await engine.sandboxes.get("box")).status).toBe("paused");
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.resumed");
  });

  it("finishes a resume whose caller leaves during the thaw", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    await engine.sandboxes.pause("box", signal);
    const thaw = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    driver.faults.thaw = () => {
      begun.resolve();
      return thaw.promise;
    };
    const caller = new AbortController();
    const resume = engine.sandboxes.resume("box", caller.signal);
    await begun.promise;
    caller.abort(new Error("the caller left"));
    await expect(resume).rejects.toThrow("the caller left");
    thaw.resolve();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("ready"));
  });

  it("does nothing for a caller that leaves before its turn", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    await engine.sandboxes.pause("box", signal);
    const thaw = Promise.withResolvers<void>();
    driver.faults.thaw = () => thaw.promise;
    const resume = engine.sandboxes.resume("box", signal);
    const caller = new AbortController();
    const queued = engine.sandboxes.pause("box", caller.signal);
    caller.abort(new Error("the caller left"));
    await expect(queued).rejects.toThrow("the caller left");
    thaw.resolve();
    expect((await resume).status).toBe("ready");
    // A pause that was queued nevertheless would begin only now.
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect((await eventsOf(engine, "box")).filter((type) => type === "sandbox.paused")).toHaveLength(1);
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
  });
});

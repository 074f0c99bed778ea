import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { eventually, signal, testEngine } from "../testing/test-engine.ts";

/** A sandbox with a running command whose end a caller waits for. */
async function awaited(numbers: Parameters<typeof testEngine>[0] = {}) {
  const all = await testEngine(numbers);
  const { sandbox } = await all.create("box");
  const exec = await start(all.engine, "box", ["sleep"]);
  const caller = new AbortController();
  const wait = all.engine.execs.wait(exec.id, { waitMs: 60_000, signal: caller.signal });
  const end = () => all.driver.instances.get(sandbox.id as SandboxId)?.end(exec.id as ExecId, 7, "out");
  return { ...all, exec, caller, wait, end };
}

describe("a requested standby while a caller waits for the end of an exec", () => {
  it("is refused after a while and names the exec; the sandbox keeps serving", async () => {
    const { engine, exec, wait, end } = await awaited({ quietWaitMs: 50 });
    const error = await engine.sandboxes.standby("box", signal).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "sandbox_busy", execId: exec.id, dispatched: "no" });
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.standby_failed");
    end();
    expect(await wait).toMatchObject({ status: "exited", exitCode: 7, stdout: "out" });
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
  });

  it("begins when the exec has ended", async () => {
    const { engine, wait, end } = await awaited({ quietWaitMs: 60_000 });
    const standby = engine.sandboxes.standby("box", signal);
    end();
    expect(await wait).toMatchObject({ exitCode: 7 });
    expect((await standby).status).toBe("standby");
  });

  it("begins when the caller has left", async () => {
    const { engine, caller, wait, exec } = await awaited({ quietWaitMs: 60_000 });
    const standby = engine.sandboxes.standby("box", signal);
    caller.abort();
    await wait.catch(() => null);
    expect((await standby).status).toBe("standby");
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: true });
  });

  it("is cancelled by a caller that begins to wait before the freeze", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    const measured = Promise.withResolvers<void>();
    driver.memoryBytes = async () => {
      await measured.promise;
      return 1;
    };
    const standby = engine.sandboxes.standby("box", signal).catch((thrown: unknown) => thrown);
    await eventually(() => expect(driver.frozen.size).toBe(0));
    const caller = new AbortController();
    const wait = engine.execs.wait(exec.id, { waitMs: 60_000, signal: caller.signal }).catch(() => null);
    measured.resolve();
    expect(await standby).toMatchObject({
      code: expect.stringMatching(/^(standby_cancelled|sandbox_busy)$/),
    });
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    caller.abort();
    await wait;
  });

  it("does not happen by idleness, even if the exec may sleep", async () => {
    const { engine } = await testEngine();
    const lifecycle = { idleStandbyMs: 1_000 };
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    const exec = await start(engine, "box", ["sleep"], { keepAwake: false });
    await engine.execs.wait(exec.id, { waitMs: 2_000, signal });
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.standby");
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("standby"));
  });
});

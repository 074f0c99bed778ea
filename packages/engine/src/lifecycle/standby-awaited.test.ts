import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { OutputOptions } from "../ports/api.ts";
import { eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, signal, testEngine } from "../testing/test-engine.ts";

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
    const asked = Promise.withResolvers<void>();
    const measured = Promise.withResolvers<void>();
    // The memory is measured after the first look for waiting callers, and before the suspension is recorded.
    driver.memoryBytes = async () => {
      asked.resolve();
      await measured.promise;
      return 1;
    };
    const standby = engine.sandboxes.standby("box", signal).catch((thrown: unknown) => thrown);
    await asked.promise;
    const caller = new AbortController();
    const wait = engine.execs.wait(exec.id, { waitMs: 60_000, signal: caller.signal }).catch(() => null);
    measured.resolve();
    expect(await standby).toMatchObject({ code: "standby_cancelled" });
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    caller.abort();
    await wait;
  });

  it("does not suspend a caller that begins to wait in the moment in which another one leaves", async () => {
    const { engine, driver, create } = await testEngine({ quietWaitMs: 30 });
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    const begin = () => {
      const caller = new AbortController();
      const wait = engine.execs.wait(exec.id, { waitMs: 60_000, signal: caller.signal }).catch(() => null);
      return { leave: () => caller.abort(), wait };
    };
    // Each round lets a different number of steps pass between the end of the one wait and the begin of the other.
    for (let steps = 0; steps < 40; steps += 1) {
      const measured = Promise.withResolvers<number>();
      driver.memoryBytes = () => measured.promise;
      const first = begin();
      const standby = codeOf(engine.sandboxes.standby("box", signal));
      await new Promise((resolve) => setImmediate(resolve));
      first.leave();
      for (let step = 0; step < steps; step += 1) await Promise.resolve();
      const second = begin();
      await new Promise((resolve) => setImmediate(resolve));
      measured.resolve(1);
      expect(await standby).toMatch(/^(standby_cancelled|sandbox_busy)$/);
      second.leave();
      await Promise.all([first.wait, second.wait]);
    }
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

/** A sandbox with a running command whose output a reader follows. `text` has all output once the stream has ended. */
async function followed(
  { numbers = {}, exec: more = {} }: { numbers?: Parameters<typeof testEngine>[0]; exec?: object },
  options: Partial<OutputOptions> = {},
) {
  const all = await testEngine(numbers);
  const { sandbox } = await all.create("box");
  const exec = await start(all.engine, "box", ["sleep"], more);
  const reader = new AbortController();
  const records = all.engine.execs.output(exec.id, { follow: true, signal: reader.signal, ...options });
  const iterator = records[Symbol.asyncIterator]();
  expect((await iterator.next()).value).toMatchObject({ type: "start" });
  const text = (async () => {
    let said = "";
    for (let each = await iterator.next(); !each.done; each = await iterator.next())
      if ("data" in each.value) said += Buffer.from(each.value.data).toString();
    return said;
  })();
  text.catch(() => undefined);
  const end = () => all.driver.instances.get(sandbox.id as SandboxId)?.end(exec.id as ExecId, 0, "done");
  return { ...all, exec, reader, text, end };
}

describe("a requested standby while a reader follows an exec", () => {
  it("is refused after a while and names the exec; the reader gets the rest of the output", async () => {
    const { engine, exec, text, end } = await followed({ numbers: { quietWaitMs: 50 } });
    const error = await engine.sandboxes.standby("box", signal).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "sandbox_busy", execId: exec.id, dispatched: "no" });
    end();
    expect(await text).toBe("done");
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
  });

  it("begins when the reader has left", async () => {
    const { engine, reader, text } = await followed({ numbers: { quietWaitMs: 60_000 } });
    const standby = engine.sandboxes.standby("box", signal);
    reader.abort(new Error("the reader left"));
    await expect(text).rejects.toThrow("the reader left");
    expect((await standby).status).toBe("standby");
  });

  it.each([
    ["for which the command does not wait", {}, { hold: false }],
    ["of an exec that does not keep its sandbox awake", { keepAwake: false }, {}],
  ])("does not wait for a reader %s, whose stream continues after the wake", async (_who, exec, options) => {
    const { engine, text, end } = await followed({ exec }, options);
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
    await engine.sandboxes.wake("box", signal);
    end();
    expect(await text).toBe("done");
  });
});

describe("a requested standby while a reader is announced", () => {
  const announced = async (numbers: Parameters<typeof testEngine>[0]) => {
    const all = await testEngine(numbers);
    await all.create("box");
    const options = { signal, expectsReader: true };
    const { exec } = await all.engine.execs.start("box", { argv: ["sleep"] }, options);
    return { ...all, exec };
  };

  it("is refused until the first reader has come and left", async () => {
    const { engine, exec } = await announced({ quietWaitMs: 50 });
    expect(await codeOf(engine.sandboxes.standby("box", signal))).toBe("sandbox_busy");
    const reader = new AbortController();
    const records = engine.execs.output(exec.id, { follow: true, signal: reader.signal });
    for await (const { type } of records) if (type === "start") break;
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
  });

  it("begins when the reader does not come in time", async () => {
    const { engine } = await announced({ quietWaitMs: 60_000, outputReturnMs: 50 });
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
  });
});

import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { type InstanceIdentity, KeeperRefusal } from "../ports/index.ts";
import { asleep, eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, signal, testEngine } from "../testing/test-engine.ts";

/** A wake gives up soon, with time for two or three proofs. */
const IMPATIENT = { wakeDeadlineMs: 2_500, proofDeadlineMs: 1_000 };

describe("a wake whose restored instance runs", () => {
  it("proves it again if a link breaks during the proof, and keeps its memory", async () => {
    const { engine, driver, id, exec } = await asleep();
    let breaks = 3;
    driver.faults.prove = async () => {
      breaks -= 1;
      if (breaks < 0) return;
      for (const link of [...(driver.instances.get(id)?.links ?? [])]) link.drop("cut");
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(breaks).toBeLessThan(0);
    expect(driver.restores).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.memory_lost");
  });

  it("proves it again over another link if a link carries no answer", async () => {
    const { engine, driver, exec } = await asleep();
    let silences = 1;
    driver.faults.prove = async () => {
      silences -= 1;
      if (silences >= 0) await never();
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(driver.restores).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("waits for a keeper that does not accept a link at first", async () => {
    const { engine, driver, exec } = await asleep({ linkWaitMs: 50 });
    const since = Date.now();
    driver.faults.connect = async () => {
      if (Date.now() - since < 500) throw new Error("connection refused");
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("proves it again if the host refuses a proof's command for a moment", async () => {
    const { engine, driver, exec } = await asleep();
    let refusals = 2;
    driver.faults.prove = async () => {
      refusals -= 1;
      if (refusals >= 0) throw new KeeperRefusal("system", "resource temporarily unavailable", "EAGAIN");
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(driver.restores).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("brings it into service on a full disk, where it can free space", async () => {
    const { engine, driver, id, exec } = await asleep();
    driver.faults.restoreAnswer = async () => {
      const instance = driver.instances.get(id);
      if (instance !== undefined) instance.full = "blocks";
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("thaws it again if the thaw fails", async () => {
    const { engine, driver, exec } = await asleep();
    let failures = 2;
    driver.faults.thaw = async () => {
      failures -= 1;
      if (failures >= 0) throw new Error("the freezer did not answer");
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(driver.restores).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("stores its proof again if the store refuses it once", async () => {
    const { engine, store, driver, exec } = await asleep();
    const commit = store.commit.bind(store);
    let failures = 1;
    store.commit = async (given) => {
      if (given.events?.some(({ type }) => type === "sandbox.woke") && failures-- > 0) throw new Error("EIO");
      return commit(given);
    };
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(failures).toBeLessThan(1);
    expect(driver.restores).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("fails soon if the instance has ended", async () => {
    const { engine, driver, id } = await asleep();
    driver.faults.prove = async () => driver.instances.get(id)?.die();
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_failed");
    expect((await engine.sandboxes.get("box")).cause?.message).toMatch(/have ended/);
  });
});

describe("a wake of a sandbox whose files were moved away", () => {
  it("is refused and costs nothing: the sandbox continues once the files are back", async () => {
    const { engine, driver, id, exec } = await asleep();
    driver.filesRemoved.add(id);
    for (let tries = 0; tries < 3; tries += 1)
      await expect(engine.sandboxes.wake("box", signal)).rejects.toMatchObject({
        code: "wake_failed",
        message: expect.stringContaining("files is missing"),
        cause: { code: "files_gone" },
      });
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "standby", generation: 1 });
    expect(driver.restores).toBe(0);
    driver.filesRemoved.delete(id);
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });
});

describe("a wake that fails", () => {
  it("before anything ran is tried a second time", async () => {
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

  it("twice fails the sandbox and keeps its files and checkpoint", async () => {
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

  it("because of an unusable checkpoint is not retried, and cold-starts the sandbox if its policy says so", async () => {
    const { engine, driver } = await testEngine();
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

  it("after the thaw never restores the same checkpoint again", async () => {
    const { engine, driver, id } = await asleep(IMPATIENT);
    driver.faults.connect = async () => {
      throw new Error("the keeper does not answer");
    };
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("sandbox_failed");
    expect(driver.restores).toBe(1);
    await eventually(() => expect(driver.instances.get(id)?.alive).toBe(false));
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "failed" });
  });

  it("after the thaw reports the real outcomes of execs that end before the stop", async () => {
    const { engine, driver, id, exec } = await asleep(IMPATIENT);
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

  it("holds callers no longer than the deadline, and refuses them with wake_timeout", async () => {
    const { engine, driver } = await asleep({ wakeDeadlineMs: 200 });
    driver.faults.restore = never;
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("wake_timeout");
  });

  it("refuses callers of a wake that fails before its deadline with wake_failed and the cause", async () => {
    const { engine, driver, id } = await asleep({ wakeDeadlineMs: 60_000 });
    driver.faults.observe = () => ({ seen: "unknown", at: 0, why: "the host is silent" });
    const error = await start(engine, "box", ["true"]).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "wake_failed", sandboxId: id, dispatched: "no" });
    expect(String(error)).toContain("the host is silent");
    expect(driver.restores).toBe(0);
    driver.faults = {};
    await start(engine, "box", ["exit", "0"]);
  });

  it("does not serve a caller that disconnected while it was held", async () => {
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

  it("refuses callers beyond the limit of held calls", async () => {
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

describe("a command with onWake", () => {
  it("is notified once after each wake, and the outcome is an event", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    await start(engine, "box", ["sleep"], { onWake: { argv: ["exit", "4"] } });
    await start(engine, "box", ["sleep"], { onWake: { signal: "SIGUSR1" } });
    expect(await codeOf(start(engine, "box", ["sleep"], { onWake: { signal: "SIGNONE" } }))).toBe(
      "invalid_request",
    );
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    const woken = async () =>
      (await engine.events({ ref: "box", types: ["exec.woken"], limit: 100 })).items.map(
        ({ message }) => message,
      );
    await eventually(async () => expect(await woken()).toHaveLength(2));
    expect((await woken()).join("\n")).toMatch(/ended: exited with 4\./);
    expect((await woken()).join("\n")).toMatch(/The exec was sent SIGUSR1\./);
    expect(driver.instances.get(sandbox.id as SandboxId)?.starts).toBeGreaterThan(1);
  });

  it("gets no event if its onWake command outlives the server", async () => {
    const { engine, create, restart } = await testEngine();
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

it("a wake gives up after a limited number of stops if the last instance is still seen, and stays in standby", async () => {
  const { engine, driver } = await asleep({ callTriesMax: 3 });
  let stops = 0;
  driver.faults.stop = async () => {
    stops += 1;
  };
  const identity = { pid: 1 } as unknown as InstanceIdentity;
  const own = { identity, state: "running", root: null, oomKills: 0 } as const;
  driver.faults.observe = () => ({ seen: "present", at: Date.now(), ...own, mounts: [], problems: [] });
  await expect(engine.sandboxes.wake("box", signal)).rejects.toMatchObject({
    code: "wake_failed",
    message: expect.stringContaining("after 3 stops"),
  });
  driver.faults = {};
  expect(stops).toBeLessThanOrEqual(3);
  expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready" });
});

it("a call on a sandbox that is suspended each time it was woken is refused after a limited number of tries", async () => {
  const { engine, driver } = await asleep({ callTriesMax: 3, proofFreshMs: 0, healAfterMs: 1e9 });
  let standbys = 0;
  // The proof before the call is overtaken by a standby. The proof of the wake itself is not.
  driver.faults.prove = async () => {
    if ((await engine.sandboxes.get("box")).status !== "ready") return;
    standbys += 1;
    await engine.sandboxes.standby("box", signal);
  };
  expect(await codeOf(start(engine, "box", ["true"]))).toBe("sandbox_busy");
  expect(standbys).toBe(3);
});

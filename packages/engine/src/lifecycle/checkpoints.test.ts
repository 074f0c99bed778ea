import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { fork, nameIn, save, saved, textOf, waited } from "../testing/forked-sandbox.ts";
import { SAVED_BYTES } from "../testing/hostile-driver.ts";
import { aborted, asleep, eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const fails = async () => {
  throw new Error("no luck");
};

describe("a checkpoint", () => {
  it("is stored while its sandbox keeps running unchanged", async () => {
    const { engine, driver, id, exec, checkpoint, checkpointId } = await saved();
    expect(checkpoint).toMatchObject({
      name: "one",
      sandboxId: id,
      kind: "memory",
      generation: 1,
      sizeBytes: SAVED_BYTES,
      memoryBytes: 1,
      execs: [exec.id],
    });
    expect(await engine.checkpoints.list("box")).toEqual({ items: [checkpoint], nextCursor: null });
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 1 });
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: false });
    expect(driver.frozen.size).toBe(0);
    expect(driver.instances.get(id)?.starts).toBeGreaterThan(1);
    driver.instances.get(id)?.end(exec.id as ExecId, 7, "after");
    expect(await waited(engine, exec.id)).toMatchObject({ exitCode: 7, stdout: "before after" });
    expect(driver.saved.has(checkpointId)).toBe(true);
    expect(await eventsOf(engine, "box")).toEqual(
      expect.arrayContaining(["sandbox.saving", "sandbox.checkpointed"]),
    );
    expect((await engine.stats()).totals).toMatchObject({ execsStarted: 1, execsEnded: 1 });
  });

  it("contains the state at its creation and nothing the sandbox does later", async () => {
    const { engine, driver, id, exec, checkpointId } = await saved();
    driver.instances.get(id)?.end(exec.id as ExecId, 7, "after");
    await waited(engine, exec.id);
    const kept = driver.saved.get(checkpointId)?.execs.get(exec.id as ExecId);
    expect(kept).toMatchObject({ known: { state: "running" } });
    expect(kept?.records.map(({ data }) => Buffer.from(data).toString())).toEqual(["before "]);
  });

  it("holds calls while it is created, and they are served afterwards", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const gate = Promise.withResolvers<void>();
    driver.faults.save = () => gate.promise;
    const order = save(engine, "box");
    await eventually(() => expect(driver.saves).toBe(1));
    expect((await engine.sandboxes.get("box")).status).toBe("suspending");
    const runs = [1, 2, 3].map((code) => start(engine, "box", ["exit", String(code)]));
    let served = false;
    void Promise.any(runs).then(() => (served = true));
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(served).toBe(false);
    gate.resolve();
    expect((await order).execs).toEqual([]);
    for (const [index, run] of (await Promise.all(runs)).entries())
      expect(await waited(engine, run.id)).toMatchObject({ exitCode: index + 1 });
    expect(driver.restores).toBe(0);
  });

  it("waits until the calls in progress have ended", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const gate = Promise.withResolvers<void>();
    driver.faults.startAnswer = () => gate.promise;
    const run = start(engine, "box", ["sleep"]);
    await eventually(async () =>
      expect((await engine.execs.list("box", { limit: 9 })).items).toHaveLength(1),
    );
    const order = save(engine, "box");
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("suspending"));
    expect(driver.saves).toBe(0);
    driver.faults = {};
    gate.resolve();
    expect((await order).execs).toEqual([(await run).id]);
  });

  it("gets a generated name if none is given, and is refused if its name is taken", async () => {
    const { engine, driver } = await saved();
    expect(await codeOf(save(engine, "box", "one"))).toBe("checkpoint_exists");
    expect(driver.saves).toBe(1);
    const { name } = await save(engine, "box");
    expect(name).not.toBe("one");
    expect((await engine.checkpoints.list("box")).items.map((each) => each.name)).toEqual(["one", name]);
  });

  it("is refused beyond the limit per sandbox, until one is removed", async () => {
    const { engine, driver } = await saved({ checkpointsPerSandbox: 2 });
    await save(engine, "box", "two");
    expect(await codeOf(save(engine, "box", "three"))).toBe("too_many_checkpoints");
    await engine.checkpoints.remove("box", "one", signal);
    expect(driver.saved.size).toBe(1);
    await save(engine, "box", "three");
    expect((await engine.checkpoints.list("box")).items.map(({ name }) => name)).toEqual(["two", "three"]);
  });

  it("is removed once, by name or id, with its files, also while the sandbox is in standby", async () => {
    const { engine, driver, checkpoint } = await saved();
    const second = await save(engine, "box", "two");
    await engine.sandboxes.standby("box", signal);
    await engine.checkpoints.remove("box", "one", signal);
    await engine.checkpoints.remove("box", second.id, signal);
    expect(driver.saved.size).toBe(0);
    expect(driver.restores).toBe(0);
    expect(await codeOf(engine.checkpoints.remove("box", "one", signal))).toBe("checkpoint_not_found");
    expect(await codeOf(engine.checkpoints.remove("box", checkpoint.id, signal))).toBe(
      "checkpoint_not_found",
    );
    expect(await eventsOf(engine, "box")).toContain("checkpoint.removed");
  });

  it("is unaffected by a standby and the following wake", async () => {
    const { engine, driver, exec, checkpointId } = await saved();
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    await eventually(() => expect(driver.checkpoints.size).toBe(0));
    expect(driver.saved.has(checkpointId)).toBe(true);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("is deleted with its sandbox", async () => {
    const { engine, driver, store, id } = await saved();
    expect((await remove(engine, "box")).status).toBe("terminated");
    expect(driver.saved.size).toBe(0);
    expect(await store.checkpointIds(id)).toEqual([]);
  });

  it("of files only contains no commands, and leaves them running", async () => {
    const { engine, driver, create } = await testEngine();
    driver.standby = { kind: "files", why: "no luck" };
    const { sandbox } = await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    expect(await save(engine, "box")).toMatchObject({ kind: "files", memoryBytes: 0, execs: [] });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    driver.instances.get(sandbox.id as SandboxId)?.end(exec.id as ExecId, 3, "");
    expect(await waited(engine, exec.id)).toMatchObject({ exitCode: 3 });
  });

  it("contains a command whose end was not announced, and none whose end is recorded", async () => {
    const { engine, driver, create } = await testEngine({ maintainEveryMs: 60_000 });
    const { sandbox } = await create("box");
    const done = await start(engine, "box", ["exit", "0"]);
    await waited(engine, done.id);
    const silent = await start(engine, "box", ["sleep"]);
    driver.instances
      .get(sandbox.id as SandboxId)
      ?.end(silent.id as ExecId, 5, "", "exited", { silently: true });
    const checkpoint = await save(engine, "box");
    expect(checkpoint.execs).toEqual([silent.id]);
    expect(await waited(engine, silent.id)).toMatchObject({ exitCode: 5 });
    const child = await fork(engine, checkpoint.id);
    expect(await waited(engine, nameIn(child, silent.id))).toMatchObject({ exitCode: 5 });
  });

  it("contains no queued exec; the exec is started after the checkpoint", async () => {
    const { engine, driver, create } = await testEngine({ execsPerSandbox: 1 });
    const { sandbox } = await create("box");
    const first = await start(engine, "box", ["sleep"]);
    const second = await start(engine, "box", ["exit", "4"]);
    const { execs, id } = await save(engine, "box");
    expect(execs).toEqual([first.id]);
    driver.instances.get(sandbox.id as SandboxId)?.end(first.id as ExecId, 0, "");
    expect(await waited(engine, second.id)).toMatchObject({ exitCode: 4 });
    expect(Object.values((await fork(engine, id)).forkedFrom?.execs ?? {})).toEqual([first.id]);
  });
});

describe("a checkpoint that fails", () => {
  it.each([
    ["fails", { save: fails }],
    ["is cut off at its end", { saveAnswer: fails }],
    ["never ends", { save: never }],
    ["can't freeze it", { freeze: fails }],
  ])("because it %s leaves the sandbox serving and no files", async (_, faults) => {
    const { engine, driver, create } = await testEngine({ standbyDeadlineMs: 300, freezeMs: 300 });
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.faults = faults;
    const order = codeOf(save(engine, "box", "one"));
    const held = start(engine, "box", ["exit", "5"]);
    expect(await order).toBe("checkpoint_failed");
    expect(await waited(engine, (await held).id)).toMatchObject({ exitCode: 5 });
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 1 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    expect(driver.frozen.size).toBe(0);
    expect(await eventsOf(engine, "box")).toContain("sandbox.checkpoint_failed");
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.standby_failed");
    expect(await engine.checkpoints.list("box")).toMatchObject({ items: [] });
    await eventually(() => expect([driver.saved.size, driver.halfSaved.size]).toEqual([0, 0]));
    driver.faults = {};
    expect(await save(engine, "box", "one")).toMatchObject({ execs: [exec.id] });
  });

  it("for lack of disk space is not begun, and one that outgrows the space is aborted", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    driver.diskFreeBytes = 1_000_000;
    expect(await codeOf(save(engine, "box"))).toBe("disk_full");
    expect(await eventsOf(engine, "box")).not.toContain("sandbox.saving");
    driver.diskFreeBytes = 1_000_000 + SAVED_BYTES / 2;
    expect(await codeOf(save(engine, "box"))).toBe("checkpoint_failed");
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    driver.diskFreeBytes = 2_000_000;
    expect((await save(engine, "box")).sizeBytes).toBe(SAVED_BYTES);
  });

  it("on a host that can't be measured fails in time, without a freeze", async () => {
    const { engine, driver, create } = await testEngine({ keeperCallMs: 200 });
    await create("box");
    driver.faults.capacity = never;
    expect(await codeOf(save(engine, "box"))).toBe("checkpoint_failed");
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
  });

  it("because its name was taken meanwhile leaves the other checkpoint untouched", async () => {
    const { engine, driver, store, create } = await testEngine();
    await create("box");
    const checkpoints = store.checkpoints.bind(store);
    await save(engine, "box", "one");
    store.checkpoints = async () => [];
    expect(await codeOf(save(engine, "box", "one"))).toBe("checkpoint_exists");
    store.checkpoints = checkpoints;
    expect((await engine.checkpoints.list("box")).items.map(({ name }) => name)).toEqual(["one"]);
    expect(driver.saved.size).toBe(1);
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
  });

  it("because it could not be stored has its files removed", async () => {
    const { engine, driver, store, create } = await testEngine();
    await create("box");
    const commit = store.commit.bind(store);
    store.commit = async (change) => {
      if (change.changes.some(({ kind }) => kind === "checkpoint.insert")) throw new Error("no luck");
      return commit(change);
    };
    expect(await codeOf(save(engine, "box"))).toBe("checkpoint_failed");
    store.commit = commit;
    expect(driver.saved.size).toBe(0);
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready" });
  });

  it("has its files removed later if they can't be removed at once", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    driver.faults = { saveAnswer: fails, unsave: fails };
    expect(await codeOf(save(engine, "box"))).toBe("checkpoint_failed");
    expect(driver.saved.size).toBe(1);
    driver.faults = {};
    await eventually(() => expect(driver.saved.size).toBe(0));
  });

  it("while the driver still copies leaves no files once the copy ends", async () => {
    const { engine, driver, create } = await testEngine({ standbyDeadlineMs: 200, freezeMs: 100 });
    await create("box");
    const gate = Promise.withResolvers<void>();
    const landed = Promise.withResolvers<void>();
    const late = { save: () => gate.promise, saveAnswer: async () => landed.resolve() };
    driver.faults = late;
    expect(await codeOf(save(engine, "box"))).toBe("checkpoint_failed");
    driver.faults = {};
    const { id } = await save(engine, "box", "next");
    driver.faults = late;
    gate.resolve();
    await landed.promise;
    await eventually(() => expect([...driver.saved.keys()]).toEqual([id]));
  });
});

describe("during a checkpoint", () => {
  /** Creates a sandbox whose checkpoint is in progress until the gate is opened. */
  async function saving(numbers = {}) {
    const all = await testEngine(numbers);
    const { sandbox } = await all.create("box");
    const exec = await start(all.engine, "box", ["sleep"]);
    const gate = Promise.withResolvers<void>();
    all.driver.faults.save = (_, inner) => Promise.race([gate.promise, aborted(inner)]);
    const order = save(all.engine, "box", "one");
    order.catch(() => undefined);
    await eventually(() => expect(all.driver.saves).toBe(1));
    return { ...all, id: sandbox.id as SandboxId, exec, gate, order };
  }

  it("a delete aborts the checkpoint and leaves nothing", async () => {
    const { engine, driver, store, id, exec, order } = await saving();
    expect((await remove(engine, id)).status).toBe("terminated");
    expect(["wrong_state", "sandbox_gone"]).toContain(await codeOf(order));
    expect([driver.saved.size, driver.halfSaved.size, driver.directories.size]).toEqual([0, 0, 0]);
    expect(await store.checkpointIds(id)).toEqual([]);
    expect((await engine.execs.get(exec.id)).status).toBe("cancelled");
  });

  it("the caller disconnects, and the checkpoint is completed", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const gate = Promise.withResolvers<void>();
    driver.faults.save = () => gate.promise;
    const leaver = new AbortController();
    const order = engine.checkpoints.create("box", { name: "one" }, leaver.signal);
    await eventually(() => expect(driver.saves).toBe(1));
    leaver.abort(new Error("gone"));
    await expect(order).rejects.toThrow("gone");
    gate.resolve();
    await eventually(async () =>
      expect((await engine.checkpoints.list("box")).items.map(({ name }) => name)).toEqual(["one"]),
    );
  });

  it("a second checkpoint is queued, and both are created", async () => {
    const { engine, driver, gate, order } = await saving();
    const second = save(engine, "box", "two");
    const same = codeOf(save(engine, "box", "one"));
    gate.resolve();
    expect((await order).name).toBe("one");
    expect((await second).name).toBe("two");
    expect(await same).toBe("checkpoint_exists");
    expect(driver.saved.size).toBe(2);
  });

  it("a standby waits for it and takes effect before later checkpoints", async () => {
    const { engine, driver, id, gate, order } = await saving();
    const second = save(engine, "box", "two");
    const third = codeOf(save(engine, "box", "three"));
    const standby = engine.sandboxes.standby("box", signal);
    gate.resolve();
    await order;
    expect((await standby).status).toBe("standby");
    // The later checkpoints wake the sandbox again.
    await Promise.all([second, third]);
    expect((await engine.checkpoints.list("box")).items.map(({ name }) => name)).toEqual([
      "one",
      "two",
      "three",
    ]);
    expect(driver.instances.get(id)?.alive).toBe(true);
  });

  it("a removal of another checkpoint waits for it, and removes only that other one", async () => {
    const { engine, driver, checkpointId } = await saved();
    const gate = Promise.withResolvers<void>();
    driver.faults.save = () => gate.promise;
    const order = save(engine, "box", "two");
    await eventually(() => expect(driver.saves).toBe(2));
    const removal = engine.checkpoints.remove("box", "one", signal);
    gate.resolve();
    await removal;
    const { id } = await order;
    expect([...driver.saved.keys()]).toEqual([id]);
    expect(id).not.toBe(checkpointId);
  });

  it("the sandbox dies, and no file of the checkpoint is kept", async () => {
    const { engine, driver, id, exec, order } = await saving({ standbyDeadlineMs: 1_000, freezeMs: 300 });
    driver.instances.get(id)?.die();
    expect(["sandbox_failed", "checkpoint_failed"]).toContain(await codeOf(order));
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("failed"));
    expect((await engine.execs.get(exec.id)).status).toBe("lost");
    await eventually(() => expect([driver.saved.size, driver.halfSaved.size]).toEqual([0, 0]));
  });

  it("the sandbox dies and is launched again, and the old instance is not linked again", async () => {
    const { engine, driver } = await testEngine({ standbyDeadlineMs: 2_000, freezeMs: 300 });
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    const { sandbox } = await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    const gate = Promise.withResolvers<void>();
    driver.faults.save = () => gate.promise;
    const order = codeOf(save(engine, "box"));
    await eventually(() => expect(driver.saves).toBe(1));
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect(await eventsOf(engine, "box")).toContain("sandbox.restarting"));
    gate.resolve();
    expect(["wrong_state", "checkpoint_failed"]).toContain(await order);
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 2 }),
    );
    await eventually(() => expect(driver.saved.size).toBe(0));
    expect(driver.instances.get(sandbox.id as SandboxId)?.links.size).toBe(1);
    const asked: number[] = [];
    const connect = driver.connect.bind(driver);
    driver.connect = (instance) => {
      asked.push(instance.generation);
      return connect(instance);
    };
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(asked).toEqual([]);
  });

  it("the server stops, and the next one finds the sandbox running and removes the partial files", async () => {
    const { engine, driver, restart, exec } = await saving();
    await engine.stop();
    driver.faults = {};
    await eventually(() => expect(driver.frozen.size).toBe(0));
    const next = await restart();
    expect(await next.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 1 });
    expect((await next.execs.get(exec.id)).status).toBe("running");
    expect(await eventsOf(next, "box")).toContain("sandbox.checkpoint_failed");
    await eventually(() => expect([driver.saved.size, driver.halfSaved.size]).toEqual([0, 0]));
    expect(await save(next, "box", "one")).toMatchObject({ execs: [exec.id] });
  });

  it("the server stops after the copy and before the record, and the next one removes the copy", async () => {
    const { engine, driver, create, restart, store } = await testEngine();
    await create("box");
    const commit = store.commit.bind(store);
    store.commit = (change) =>
      change.changes.some(({ kind }) => kind === "checkpoint.insert") ? new Promise(never) : commit(change);
    void save(engine, "box", "one").catch(() => undefined);
    await eventually(() => expect(driver.saved.size).toBe(1));
    store.commit = commit;
    await engine.stop();
    const next = await restart();
    await eventually(() => expect(driver.saved.size).toBe(0));
    expect((await next.checkpoints.list("box")).items).toEqual([]);
  });
});

describe("a checkpoint of a sandbox that does not run", () => {
  it("wakes a sandbox in standby, and contains its memory", async () => {
    const { engine, driver, exec } = await asleep();
    const checkpoint = await save(engine, "box");
    expect(checkpoint).toMatchObject({ generation: 2, execs: [exec.id] });
    expect(driver.restores).toBe(1);
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    expect(await textOf(engine, nameIn(await fork(engine, checkpoint.id), exec.id))).toBe("");
  });

  it("is refused for a sandbox that is paused or deleted", async () => {
    const { engine, create } = await testEngine();
    const { sandbox } = await create("box");
    await engine.sandboxes.pause("box", signal);
    expect(await codeOf(save(engine, "box"))).toBe("wrong_state");
    await remove(engine, "box");
    expect(["sandbox_gone", "sandbox_not_found"]).toContain(await codeOf(save(engine, sandbox.id)));
  });
});

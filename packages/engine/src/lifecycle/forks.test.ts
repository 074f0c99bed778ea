import type { ExecId, ProcessId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { forkExecIds } from "../live/fork-exec-ids.ts";
import { CheckpointUnusable } from "../ports/index.ts";
import type { Origin } from "../ports/records.ts";
import { fork, nameIn, save, saved, textOf, waited } from "../testing/forked-sandbox.ts";
import { aborted, eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const totalsOf = async (engine: Parameters<typeof fork>[0]) => {
  const { execsStarted, execsEnded } = (await engine.stats()).totals;
  return { execsStarted, execsEnded };
};

describe("a fork", () => {
  it("continues the running execs under new ids and leaves the source unchanged", async () => {
    const { engine, driver, id, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, { name: "child" });
    const name = nameIn(child, exec.id);
    expect(child).toMatchObject({
      name: "child",
      status: "ready",
      generation: 2,
      forkedFrom: { sandboxId: id, checkpointId: checkpoint.id, execs: { [name]: exec.id } },
    });
    expect(name).not.toBe(exec.id);
    expect(await engine.execs.get(name)).toMatchObject({ sandboxId: child.id, status: "running" });
    const inside = driver.instances.get(child.id as SandboxId);
    // The fork's keeper has the exec under the old id, and was not asked to start it.
    inside?.end(exec.id as ExecId, 7, "in the fork");
    expect(await waited(engine, name)).toMatchObject({ exitCode: 7, stdout: "before in the fork" });
    expect(await engine.execs.get(exec.id)).toMatchObject({ sandboxId: id, status: "running" });
    driver.instances.get(id)?.end(exec.id as ExecId, 3, "in the source");
    expect(await waited(engine, exec.id)).toMatchObject({ exitCode: 3, stdout: "before in the source" });
    expect(await engine.execs.get(name)).toMatchObject({ exitCode: 7 });
    expect(await totalsOf(engine)).toEqual({ execsStarted: 2, execsEnded: 2 });
    expect(await eventsOf(engine, child.id)).toEqual(
      expect.arrayContaining(["sandbox.created", "exec.started", "sandbox.launched", "sandbox.ready"]),
    );
  });

  it("can be created several times from one checkpoint, also concurrently", async () => {
    const { engine, driver, exec, checkpoint } = await saved();
    const children = await Promise.all([1, 2, 3].map(() => fork(engine, checkpoint.id)));
    const names = children.map((child) => nameIn(child, exec.id));
    expect(new Set(names).size).toBe(3);
    for (const [code, child] of children.entries())
      driver.instances.get(child.id as SandboxId)?.end(exec.id as ExecId, code, `as ${code}`);
    for (const [code, name] of names.entries())
      expect(await waited(engine, name)).toMatchObject({ exitCode: code, stdout: `before as ${code}` });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    expect(await totalsOf(engine)).toEqual({ execsStarted: 4, execsEnded: 3 });
  });

  it("serves stdin, signals and cancels of its inherited execs", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const { id } = await start(engine, "box", ["cat"], { stdin: "abc", openStdin: true });
    await engine.execs.writeStdin(id, { offset: null, data: Buffer.from("def"), end: false }, signal);
    const child = await fork(engine, (await save(engine, "box")).id);
    const name = nameIn(child, id);
    const data = Buffer.from("ghi");
    await engine.execs.writeStdin(name, { offset: null, data, end: false }, signal);
    const [own, other] = [child.id, (await engine.sandboxes.get("box")).id].map((each) =>
      driver.instances.get(each as SandboxId)?.stdin(id as ExecId),
    );
    expect([own, other]).toEqual(["abcdefghi", "abcdef"]);
    await engine.execs.signal(name, "SIGHUP", signal);
    expect((await engine.execs.cancel(name, signal)).status).toBe("cancelled");
    expect((await engine.execs.get(id)).status).toBe("running");
  });

  it("neither lists nor keeps execs that ended before the checkpoint", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const done = await start(engine, "box", ["exit", "0"]);
    await waited(engine, done.id);
    const child = await fork(engine, (await save(engine, "box")).id);
    const inside = driver.instances.get(child.id as SandboxId);
    expect((await engine.execs.list(child.id, { limit: 9 })).items).toEqual([]);
    await eventually(() => expect([inside?.execs.size, inside?.journals.size]).toEqual([0, 0]));
    expect(driver.instances.get(sandbox.id as SandboxId)?.execs.has(done.id as ExecId)).toBe(true);
    expect((await waited(engine, done.id)).exitCode).toBe(0);
  });

  it("keeps what has ended in it, also where that was woken while it was paused", async () => {
    const { engine, driver, store, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, { name: "child" });
    const name = nameIn(child, exec.id);
    const gate = Promise.withResolvers<void>();
    const commit = store.commit.bind(store);
    store.commit = async (change) => {
      if (change.changes.some(({ kind }) => kind === "exec.end")) await gate.promise;
      return commit(change);
    };
    driver.instances.get(child.id as SandboxId)?.end(exec.id as ExecId, 7, "out");
    await engine.sandboxes.pause("child", signal);
    gate.resolve();
    expect((await waited(engine, name)).exitCode).toBe(7);
    await engine.sandboxes.resume("child", signal);
    expect(await textOf(engine, name)).toBe("before out");
  });

  it("has the files of the checkpoint, with its own host name", async () => {
    const { engine, driver, create } = await testEngine();
    const { sandbox } = await create("box");
    const source = driver.instances.get(sandbox.id as SandboxId);
    source?.files.set("/home/user/a", Buffer.from("then"));
    const { id } = await save(engine, "box");
    source?.files.set("/home/user/a", Buffer.from("now"));
    const child = await fork(engine, id, { name: "child" });
    const files = driver.instances.get(child.id as SandboxId)?.files;
    const text = (path: string) => Buffer.from(files?.get(path) ?? []).toString();
    expect(text("/home/user/a")).toBe("then");
    expect(text("/etc/hostname")).toBe("child\n");
    expect(text("/etc/hosts")).toContain("127.0.1.1 child\n");
    expect(Buffer.from(source?.files.get("/etc/hostname") ?? []).toString()).toBe("box\n");
  });

  it("ends an inherited exec that its keeper lacks as lost, and never starts it", async () => {
    const { engine, driver, id, exec, checkpoint } = await saved();
    driver.faults.launchAnswer = async () => {
      for (const [other, { execs }] of driver.instances) if (other !== id) execs.clear();
    };
    const child = await fork(engine, checkpoint.id);
    const name = nameIn(child, exec.id);
    expect(await waited(engine, name)).toMatchObject({ status: "lost", dispatched: "yes" });
    const inside = driver.instances.get(child.id as SandboxId);
    expect([...(inside?.execs.values() ?? [])].map(({ order }) => order.argv[0])).not.toContain("sleep");
    expect(await textOf(engine, name)).toBe("before ");
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("notifies commands with onWake once", async () => {
    const { engine, create } = await testEngine();
    await create("box");
    const exec = await start(engine, "box", ["sleep"], { onWake: { argv: ["exit", "4"] } });
    const child = await fork(engine, (await save(engine, "box")).id);
    const woken = async (ref: string) =>
      (await engine.events({ ref, types: ["exec.woken"], limit: 9 })).items.map(({ execId }) => execId);
    await eventually(async () => expect(await woken(child.id)).toEqual([nameIn(child, exec.id)]));
    expect(await woken("box")).toEqual([]);
  });

  it("has the source's settings, overridden by those in the create request", async () => {
    const { engine } = await testEngine();
    const { sandbox } = await engine.sandboxes.create(
      { name: "box", env: { A: "1", B: "2" }, labels: { team: "one" }, resources: { memoryMb: 99 } },
      { wait: true, signal },
    );
    const { id } = await save(engine, "box");
    const same = await fork(engine, id);
    expect(same).toMatchObject({ labels: { team: "one" }, resources: sandbox.resources });
    const other = await fork(engine, id, { labels: { team: "two" }, lifecycle: { ttlMs: 60_000 } });
    expect(other).toMatchObject({ labels: { team: "two" }, lifecycle: { ttlMs: 60_000 } });
  });

  it("can't change image or resources, and needs a valid, free name", async () => {
    const { engine, checkpoint } = await saved();
    const made = async (input: object) => codeOf(fork(engine, checkpoint.id, input));
    expect(await made({ image: "host" })).toBe("invalid_request");
    expect(await made({ resources: { memoryMb: 64 } })).toBe("invalid_request");
    expect(await made({ name: "No Name" })).toBe("invalid_request");
    expect(await made({ cwd: "relative" })).toBe("invalid_path");
    expect(await made({ name: "box" })).toBe("name_taken");
    expect((await engine.stats()).totals.created).toBe(1);
  });

  it("is refused if the checkpoint is unknown, there is no room, or memory can't be restored", async () => {
    const { engine, driver, checkpoint } = await saved({ keeperCallMs: 200 });
    expect(await codeOf(fork(engine, "ckp_0000000000000000"))).toBe("checkpoint_not_found");
    expect(await codeOf(fork(engine, "nonsense"))).toBe("checkpoint_not_found");
    driver.diskFreeBytes = 1_000_001;
    expect(await codeOf(fork(engine, checkpoint.id))).toBe("disk_full");
    driver.diskFreeBytes = 1 << 30;
    driver.faults.capacity = never;
    expect(await codeOf(fork(engine, checkpoint.id))).toBe("capacity");
    driver.faults = {};
    driver.standby = { kind: "files", why: "no luck" };
    expect(await codeOf(fork(engine, checkpoint.id))).toBe("checkpoint_unusable");
    await engine.checkpoints.remove("box", "one", signal);
    expect(await codeOf(fork(engine, checkpoint.id))).toBe("checkpoint_not_found");
    expect(await totalsOf(engine)).toEqual({ execsStarted: 1, execsEnded: 0 });
  });

  it("of a checkpoint with files only starts with the files and without execs", async () => {
    const { engine, driver, create } = await testEngine();
    driver.standby = { kind: "files", why: "no luck" };
    const { sandbox } = await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.instances.get(sandbox.id as SandboxId)?.files.set("/a", Buffer.from("then"));
    const child = await fork(engine, (await save(engine, "box")).id);
    expect(child).toMatchObject({ status: "ready", forkedFrom: { execs: {} } });
    expect(driver.instances.get(child.id as SandboxId)?.files.has("/a")).toBe(true);
    expect((await engine.execs.list(child.id, { limit: 9 })).items).toEqual([]);
    const run = await start(engine, child.id, ["exit", "4"]);
    expect(await waited(engine, run.id)).toMatchObject({ exitCode: 4 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("requested under an existing name returns that sandbox, even if the checkpoint is deleted", async () => {
    const { engine, checkpoint } = await saved();
    const make = () => fork(engine, checkpoint.id, { name: "child", ifExists: "return" });
    const first = await make();
    await engine.checkpoints.remove("box", "one", signal);
    expect((await make()).id).toBe(first.id);
  });

  it("requested again with the same idempotency key is the same, even if the checkpoint is deleted", async () => {
    const { engine, checkpoint } = await saved();
    const make = () =>
      engine.sandboxes.create(
        { fromCheckpoint: checkpoint.id },
        { wait: true, signal, idempotencyKey: "key" },
      );
    const first = await make();
    await engine.checkpoints.remove("box", "one", signal);
    expect(await make()).toMatchObject({ existed: true, sandbox: { id: first.sandbox.id } });
  });
});

describe("a fork of a fork", () => {
  it("has the execs of both under new ids", async () => {
    const { engine, driver, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, { name: "child" });
    const own = await start(engine, "child", ["sleep"]);
    const inherited = nameIn(child, exec.id);
    const second = await save(engine, "child");
    expect(new Set(second.execs)).toEqual(new Set([inherited, own.id]));
    const grandchild = await fork(engine, second.id, { name: "grandchild" });
    expect(grandchild).toMatchObject({ generation: 3, forkedFrom: { sandboxId: child.id } });
    const inside = driver.instances.get(grandchild.id as SandboxId);
    // The keeper still has the exec under the id of the first sandbox.
    inside?.end(exec.id as ExecId, 5, "grandchild");
    inside?.end(own.id as ExecId, 6, "");
    expect(await waited(engine, nameIn(grandchild, inherited))).toMatchObject({
      exitCode: 5,
      stdout: "before grandchild",
    });
    expect(await waited(engine, nameIn(grandchild, own.id))).toMatchObject({ exitCode: 6 });
    for (const id of [exec.id, inherited, own.id])
      expect((await engine.execs.get(id)).status).toBe("running");
    expect(await totalsOf(engine)).toEqual({ execsStarted: 5, execsEnded: 2 });
  });

  it("outlives the fork, and the fork outlives the source", async () => {
    const { engine, driver, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, { name: "child" });
    await remove(engine, "box");
    const { id } = await save(engine, "child");
    const grandchild = await fork(engine, id);
    await remove(engine, "child");
    const name = nameIn(grandchild, nameIn(child, exec.id));
    driver.instances.get(grandchild.id as SandboxId)?.end(exec.id as ExecId, 5, "");
    expect(await waited(engine, name)).toMatchObject({ exitCode: 5 });
    expect(driver.saved.size).toBe(0);
  });
});

describe("the exec ids of a fork", () => {
  it("stay the same after a standby and a restart of the server", async () => {
    const { engine, driver, restart, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, { name: "child" });
    const name = nameIn(child, exec.id);
    await engine.sandboxes.standby("child", signal);
    expect(await engine.execs.get(name)).toMatchObject({ status: "running", suspended: true });
    expect(await textOf(engine, name)).toBe("before ");
    await engine.sandboxes.wake("child", signal);
    await engine.stop();
    const next = await restart();
    expect(await next.execs.get(name)).toMatchObject({ status: "running", suspended: false });
    driver.instances.get(child.id as SandboxId)?.end(exec.id as ExecId, 7, "after");
    expect(await waited(next, name)).toMatchObject({ exitCode: 7, stdout: "before after" });
    expect((await next.execs.get(exec.id)).status).toBe("running");
  });

  it("that its keeper uses for inherited execs can be given to new ones", async () => {
    const { engine, driver, create } = await testEngine({ execRetentionMs: 50, retentionEveryMs: 20 });
    await create("box");
    const exec = await start(engine, "box", ["sleep"], { id: "mine" });
    const child = await fork(engine, (await save(engine, "box")).id, { name: "child" });
    const inherited = nameIn(child, "mine");
    await remove(engine, "box");
    await eventually(async () => expect(await codeOf(engine.execs.get(exec.id))).toBe("exec_not_found"));
    const again = await start(engine, "child", ["sleep"], { id: "mine" });
    expect(again).toMatchObject({ id: "mine", sandboxId: child.id, status: "running" });
    const inside = driver.instances.get(child.id as SandboxId);
    inside?.end("mine" as ExecId, 7, "");
    expect(await waited(engine, inherited)).toMatchObject({ exitCode: 7 });
    expect((await engine.execs.get("mine")).status).toBe("running");
    expect((await engine.execs.cancel("mine", signal)).status).toBe("cancelled");
  });

  it("are translated in both directions", () => {
    const id = (text: string) => text as ExecId;
    const execs = [
      { id: id("n1"), from: id("f1"), keeperId: id("k1") },
      { id: id("n2"), from: id("f2"), keeperId: id("k2") },
    ];
    const process = (letter: string) => `prc_${letter.repeat(16)}` as ProcessId;
    const processes = [{ id: process("n"), from: process("f"), keeperId: process("k") }];
    const names = forkExecIds({ forkedFrom: { execs, processes } as unknown as Origin });
    expect(names?.translate(id(`${process("n")}-12`))).toBe(`${process("k")}-12`);
    expect(names?.translate(id(`${process("k")}-3`))).toBe(`${process("n")}-3`);
    expect(names?.translate(id(`${process("f")}-3`))).toBe(`${process("f")}-3`);
    expect(names?.translate(id("n1"))).toBe("k1");
    expect(names?.translate(id("k2"))).toBe("n2");
    for (const each of ["n1", "n2", "k1", "k2", "f1", "other"].map(id)) {
      expect(names?.translate(names.translate(each))).toBe(each);
    }
    expect(forkExecIds({ forkedFrom: null })).toBeNull();
  });

  it("are not mixed up by a keeper that reports an exec of another sandbox", async () => {
    const { engine, driver, exec, checkpoint } = await saved();
    const other = await start(engine, "box", ["sleep"]);
    const child = await fork(engine, checkpoint.id);
    const [link] = driver.instances.get(child.id as SandboxId)?.links ?? [];
    const known = driver.instances.get(child.id as SandboxId)?.execs.get(exec.id as ExecId)?.known;
    if (known === undefined) throw new Error("its keeper does not know it");
    link?.announceEnd({ ...known, id: other.id as ExecId, state: "exited", exitCode: 9, endedAt: 1 });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect((await engine.execs.get(other.id)).status).toBe("running");
  });
});

describe("a fork that can't be launched", () => {
  it("releases its name, ends its execs as lost, and leaves the source unchanged", async () => {
    const { engine, driver, store, exec, checkpoint } = await saved();
    driver.faults.launch = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(fork(engine, checkpoint.id, { name: "child" }))).toBe("launch_failed");
    const [record] = (await store.sandboxes({ includeGone: true, limit: 9 })).filter(
      ({ forkedFrom }) => forkedFrom !== null,
    );
    const name = record?.forkedFrom?.execs[0]?.id ?? "none";
    expect(await engine.execs.get(name)).toMatchObject({ status: "lost", dispatched: "yes" });
    expect(await textOf(engine, name)).toBe("");
    expect(driver.directories.size).toBe(1);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    driver.faults = {};
    expect(await fork(engine, checkpoint.id, { name: "child" })).toMatchObject({ status: "ready" });
    expect(await totalsOf(engine)).toEqual({ execsStarted: 3, execsEnded: 1 });
  });

  it("although its instance ran reports the real outcomes of its execs", async () => {
    const { engine, driver, store, exec, checkpoint } = await saved();
    driver.faults.connect = async () => {
      throw new Error("the keeper does not answer");
    };
    const made = codeOf(fork(engine, checkpoint.id));
    await eventually(() => expect(driver.instances.size).toBe(2));
    const [record] = (await store.liveSandboxes()).filter(({ forkedFrom }) => forkedFrom !== null);
    driver.instances.get(record?.id as SandboxId)?.end(exec.id as ExecId, 7, "out");
    expect(await made).toBe("launch_failed");
    const name = record?.forkedFrom?.execs[0]?.id ?? "none";
    expect(await engine.execs.get(name)).toMatchObject({ status: "exited", exitCode: 7 });
    expect(await textOf(engine, name)).toBe("before out");
  });

  it("because its checkpoint was removed while it was queued reports that", async () => {
    const { engine, driver, create, exec, checkpoint } = await saved({ launchesAtOnce: 1 });
    const gate = Promise.withResolvers<void>();
    driver.faults.launch = ({ fork: source }) => (source ? Promise.resolve() : gate.promise);
    const first = create("first");
    await eventually(() => expect(driver.launches).toBe(2));
    const made = fork(engine, checkpoint.id);
    made.catch(() => undefined);
    await eventually(async () => expect((await engine.stats()).launches.waiting).toBe(1));
    await engine.checkpoints.remove("box", "one", signal);
    gate.resolve();
    await first;
    await expect(made).rejects.toMatchObject({
      code: "launch_failed",
      cause: { code: "checkpoint_missing" },
    });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    // A removed checkpoint does not mean that the host can't launch.
    expect((await engine.stats()).launches.failuresInARow).toBe(0);
  });

  it("because the source was deleted during the copy fails and leaves nothing", async () => {
    const { engine, driver, checkpoint } = await saved();
    const gate = Promise.withResolvers<void>();
    driver.faults.launch = () => gate.promise;
    const made = codeOf(fork(engine, checkpoint.id));
    await eventually(() => expect(driver.launches).toBe(2));
    expect((await remove(engine, "box")).status).toBe("terminated");
    gate.resolve();
    expect(await made).toBe("launch_failed");
    expect([driver.directories.size, driver.saved.size]).toEqual([0, 0]);
    expect(await totalsOf(engine)).toEqual({ execsStarted: 2, execsEnded: 2 });
  });

  it("because of an unusable checkpoint does not block other launches", async () => {
    const { engine, driver, create, checkpoint } = await saved({ launchFailuresMax: 1 });
    driver.faults.launch = async ({ fork: source }) => {
      if (source) throw new CheckpointUnusable("checkpoint_damaged", "a file is shorter than it should be");
    };
    expect(await codeOf(fork(engine, checkpoint.id))).toBe("launch_failed");
    expect((await create("other")).sandbox.status).toBe("ready");
  });

  it("because it is deleted leaves nothing", async () => {
    const { engine, driver, checkpoint } = await saved();
    driver.faults.launch = (_, inner) => aborted(inner);
    const made = codeOf(fork(engine, checkpoint.id, { name: "child" }));
    await eventually(() => expect(driver.launches).toBe(2));
    expect((await remove(engine, "child")).status).toBe("terminated");
    expect(["wrong_state", "sandbox_gone"]).toContain(await made);
    expect(driver.directories.size).toBe(1);
    expect(await totalsOf(engine)).toEqual({ execsStarted: 2, execsEnded: 1 });
  });
});

describe("a server that stops while a fork is launched", () => {
  /** Stops a server while the driver copies the checkpoint, or right after that, and returns the state it leaves. */
  async function cut(fault: "launch" | "launchAnswer" | "connect", numbers = {}) {
    const all = await saved(numbers);
    const { engine, driver, store, checkpoint } = all;
    driver.faults[fault] = never;
    void fork(engine, checkpoint.id, { name: "child" }).catch(() => undefined);
    await eventually(() => expect(driver.launches).toBe(2));
    if (fault !== "launch") await eventually(() => expect(driver.instances.size).toBe(2));
    const record = await store.sandboxByName("child");
    if (record === null) throw new Error("there is no child");
    if (fault === "connect")
      await eventually(async () => expect((await store.sandbox(record.id))?.instance).not.toBeNull());
    const { id } = record;
    await engine.stop();
    const first = driver.instances.get(id);
    driver.faults = {};
    const name = record.forkedFrom?.execs[0]?.id ?? ("none" as ExecId);
    return { ...all, childId: id, name, first };
  }

  it.each(["launch", "launchAnswer"] as const)(
    "is followed by one that launches the fork again from the checkpoint: %s",
    async (fault) => {
      const { driver, restart, exec, childId, name, first } = await cut(fault);
      // Output of the first launch is removed with its files.
      first?.print(exec.id as ExecId, "the first time ");
      const next = await restart();
      await eventually(async () => expect((await next.sandboxes.get("child")).status).toBe("ready"));
      expect(await next.sandboxes.get("child")).toMatchObject({ generation: 3 });
      expect(driver.launches).toBe(3);
      expect(first?.alive ?? false).toBe(false);
      expect(driver.archivedJournals.size).toBe(0);
      expect(await next.execs.get(name)).toMatchObject({ status: "running" });
      const inside = driver.instances.get(childId);
      expect(inside?.execs.get(name)).toBeUndefined();
      inside?.end(exec.id as ExecId, 7, "the second time");
      expect(await waited(next, name)).toMatchObject({ exitCode: 7, stdout: "before the second time" });
      expect((await next.execs.get(exec.id)).status).toBe("running");
      expect(await totalsOf(next)).toEqual({ execsStarted: 2, execsEnded: 1 });
    },
  );

  it("is followed by one that launches it a second time, but not a third", async () => {
    const { driver, restart, name } = await cut("launch");
    driver.faults.launch = never;
    const second = await restart();
    await eventually(() => expect(driver.launches).toBe(3));
    await second.stop();
    driver.faults = {};
    const third = await restart();
    await eventually(async () => expect((await third.execs.get(name)).status).toBe("lost"));
    expect(driver.launches).toBe(3);
    await eventually(() => expect(driver.directories.size).toBe(1));
  });

  it("is followed by one that reports the cause if the checkpoint is deleted by then", async () => {
    const { driver, restart, name } = await cut("launch");
    driver.saved.clear();
    const next = await restart();
    await eventually(async () => expect((await next.execs.get(name)).status).toBe("lost"));
    expect(await next.execs.get(name)).toMatchObject({ cause: { code: "checkpoint_missing" } });
    expect(driver.directories.size).toBe(1);
  });

  it("is followed by one that proves a running fork instead of launching it", async () => {
    const { driver, restart, exec, childId, name, first } = await cut("connect");
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("child")).status).toBe("ready"));
    expect(driver.launches).toBe(2);
    expect(driver.instances.get(childId)).toBe(first);
    first?.end(exec.id as ExecId, 7, "");
    expect(await waited(next, name)).toMatchObject({ exitCode: 7 });
  });

  it("is followed by one that does not rerun the commands of a fork that ran and died", async () => {
    const { driver, restart, exec, name, first } = await cut("connect");
    first?.end(exec.id as ExecId, 7, "out");
    first?.die();
    const next = await restart();
    await eventually(async () => expect((await next.execs.get(name)).exitCode).toBe(7));
    expect(driver.launches).toBe(2);
    expect(await textOf(next, name)).toBe("before out");
    expect(await codeOf(next.sandboxes.get("child"))).toBe("sandbox_not_found");
  });

  it("before the launch began is followed by one that launches it", async () => {
    const { engine, driver, restart, create, exec, checkpoint } = await saved({ launchesAtOnce: 1 });
    driver.faults.launch = never;
    void create("first").catch(() => undefined);
    await eventually(() => expect(driver.launches).toBe(2));
    const { sandbox } = await engine.sandboxes.create(
      { fromCheckpoint: checkpoint.id, name: "child" },
      { wait: false, signal },
    );
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("child")).status).toBe("ready"));
    driver.instances.get(sandbox.id as SandboxId)?.end(exec.id as ExecId, 7, "");
    expect(await waited(next, nameIn(sandbox, exec.id))).toMatchObject({ exitCode: 7 });
  });
});

describe("a fork that ends", () => {
  it("keeps the output of its execs readable until their retention ends", async () => {
    const { engine, driver, exec, checkpoint } = await saved({
      execRetentionMs: 1_500,
      retentionEveryMs: 20,
    });
    const child = await fork(engine, checkpoint.id, { name: "child" });
    const name = nameIn(child, exec.id);
    driver.instances.get(child.id as SandboxId)?.print(exec.id as ExecId, "in the fork");
    await remove(engine, "child");
    expect(await engine.execs.get(name)).toMatchObject({ status: "cancelled" });
    expect(await textOf(engine, name)).toBe("before in the fork");
    expect(driver.archivedJournals.has(child.id as SandboxId)).toBe(true);
    await eventually(async () => expect(await codeOf(engine.execs.get(name))).toBe("exec_not_found"));
    await eventually(() => expect(driver.archivedJournals.size).toBe(0));
    // The exec of the source, which has the same id in the keeper, is untouched.
    expect(await textOf(engine, exec.id)).toBe("before ");
  });

  it("is cold-started on its own files if its policy says so, and its execs are lost", async () => {
    const { engine, driver, exec, checkpoint } = await saved();
    const child = await fork(engine, checkpoint.id, {
      name: "child",
      lifecycle: { onMemoryLoss: "cold-start" },
    });
    const id = child.id as SandboxId;
    driver.instances.get(id)?.files.set("/a", Buffer.from("own"));
    await engine.checkpoints.remove("box", "one", signal);
    driver.instances.get(id)?.die();
    await eventually(async () =>
      expect(await engine.sandboxes.get("child")).toMatchObject({ status: "ready", generation: 3 }),
    );
    expect(driver.instances.get(id)?.files.has("/a")).toBe(true);
    expect(await engine.execs.get(nameIn(child, exec.id))).toMatchObject({ status: "lost" });
    const run = await start(engine, "child", ["exit", "2"]);
    expect(await waited(engine, run.id)).toMatchObject({ exitCode: 2 });
    expect(await textOf(engine, nameIn(child, exec.id))).toBe("before ");
  });
});

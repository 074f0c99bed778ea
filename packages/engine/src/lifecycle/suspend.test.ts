import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { aborted, asleep, eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

describe("standby", () => {
  it("leaves nothing in memory and reports its checkpoint", async () => {
    const { engine, driver, id, exec, info } = await asleep();
    expect(info).toMatchObject({ status: "standby", standbyKind: "memory", lease: { state: "none" } });
    expect(info.checkpoint).toMatchObject({ sizeBytes: 1 });
    expect(driver.instances.get(id)?.alive).toBe(false);
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: true });
    expect((await engine.sandboxes.standby("box", signal)).status).toBe("standby");
    expect(driver.checkpoints.size).toBe(1);
  });

  it("wakes once for all callers, with its execs still running", async () => {
    const { engine, driver, id, exec } = await asleep();
    const runs = await Promise.all(Array.from({ length: 16 }, () => start(engine, "box", ["exit", "3"])));
    expect(driver.restores).toBe(1);
    for (const { id: run } of runs)
      expect(await engine.execs.wait(run, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 3 });
    const now = await engine.sandboxes.get("box");
    expect(now).toMatchObject({ status: "ready", generation: 2, checkpoint: null });
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: false });
    driver.instances.get(id)?.end(exec.id as ExecId, 7, "out");
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({
      exitCode: 7,
      stdout: "out",
    });
    await eventually(() => expect(driver.checkpoints.size).toBe(0));
    expect(driver.instances.get(id)?.starts).toBe(17);
  });

  it("keeps its memory through many cycles", async () => {
    const { engine, driver, exec, id } = await asleep();
    for (let cycle = 0; cycle < 10; cycle += 1) {
      expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready" });
      expect(await engine.sandboxes.standby("box", signal)).toMatchObject({ status: "standby" });
    }
    await engine.sandboxes.wake("box", signal);
    driver.instances.get(id)?.end(exec.id as ExecId, 0, "");
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 0 });
  });

  it("allows reading files, journals and events without a wake", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    async function* body() {
      yield Buffer.from("hello");
    }
    await engine.files.write("box", "/home/user/a", body(), { parents: true }, signal);
    const exec = await start(engine, "box", ["sleep"]);
    const { id } = await engine.sandboxes.get("box");
    driver.instances.get(id as SandboxId)?.print(exec.id as ExecId, "so far");
    await engine.sandboxes.standby("box", signal);
    const range = { offset: 0, length: null, wake: false };
    const { body: read } = await engine.files.read("box", "/home/user/a", range, signal);
    const parts = [];
    for await (const part of read) parts.push(part);
    expect(Buffer.concat(parts).toString()).toBe("hello");
    expect(await codeOf(engine.files.read("box", "/proc/self/stat", range, signal))).toBe("not_on_disk");
    expect((await engine.execs.wait(exec.id, { waitMs: 0, signal })).stdout).toBe("so far");
    expect((await engine.sandboxes.get("box")).status).toBe("standby");
    expect(driver.restores).toBe(0);
    await codeOf(engine.files.read("box", "/proc/self/stat", { ...range, wake: true }, signal));
    expect(driver.restores).toBe(1);
  });

  it("wakes for a read if its disk can't be opened, unless the caller forbids a wake", async () => {
    const { engine, driver } = await asleep();
    driver.faults.files = async () => {
      throw new Error("no luck");
    };
    const read = (wake: boolean) =>
      codeOf(engine.files.read("box", "/home/user/a", { offset: 0, length: null, wake }, signal));
    expect(await read(false)).toBe("not_on_disk");
    expect(driver.restores).toBe(0);
    expect(await read(true)).toBe("file_not_found");
    expect(driver.restores).toBe(1);
  });

  it("reports to readers of a quiet exec that the sandbox is suspended", async () => {
    const { engine, exec } = await asleep({ streamKeepaliveMs: 20 });
    for await (const record of engine.execs.output(exec.id, { follow: true, signal })) {
      if (record.type !== "keepalive") continue;
      expect(record.suspended).toBe(true);
      break;
    }
  });

  it("delivers output written after the wake to readers at once", async () => {
    const { engine, driver, exec, id } = await asleep({ streamKeepaliveMs: 60_000 });
    const output: string[] = [];
    const reading = (async () => {
      for await (const record of engine.execs.output(exec.id, { follow: true, signal }))
        if (record.type === "stdout") output.push(Buffer.from(record.data).toString());
    })();
    await engine.sandboxes.wake("box", signal);
    driver.instances.get(id)?.end(exec.id as ExecId, 0, "after");
    await reading;
    expect(output.join("")).toBe("after");
  });

  it("begins by itself in an idle sandbox, but not while an exec keeps it awake", async () => {
    const { engine, driver } = await testEngine();
    const lifecycle = { idleStandbyMs: 1_000 };
    const create = (name: string) =>
      engine.sandboxes.create({ name, lifecycle }, { wait: true, signal }).then(({ sandbox }) => sandbox);
    await create("idle");
    const busy = await create("busy");
    await create("kept");
    const exec = await start(engine, "busy", ["sleep"]);
    await start(engine, "kept", ["sleep"], { keepAwake: false });
    await eventually(async () => expect((await engine.sandboxes.get("idle")).status).toBe("standby"));
    await eventually(async () => expect((await engine.sandboxes.get("kept")).status).toBe("standby"));
    expect((await engine.sandboxes.get("busy")).status).toBe("ready");
    driver.instances.get(busy.id as SandboxId)?.end(exec.id as ExecId, 0, "");
    await eventually(async () => expect((await engine.sandboxes.get("busy")).status).toBe("standby"));
  });

  it("that fails leaves the sandbox running and proven, with an event that names the cause", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.faults.checkpoint = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(engine.sandboxes.standby("box", signal))).toBe("standby_failed");
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 1 });
    expect(await eventsOf(engine, "box")).toContain("sandbox.standby_failed");
    expect(driver.frozen.size).toBe(0);
    expect((await engine.execs.get(exec.id)).status).toBe("running");
    expect((await start(engine, "box", ["exit", "0"])).id).toBeDefined();
  });

  it("that takes too long is aborted, and held calls are served", async () => {
    const { engine, driver, create } = await testEngine({ standbyDeadlineMs: 300, freezeMs: 300 });
    await create("box");
    driver.faults.checkpoint = never;
    const order = codeOf(engine.sandboxes.standby("box", signal));
    await eventually(() => expect(driver.frozen.size).toBe(1));
    const run = start(engine, "box", ["exit", "5"]);
    expect(await order).toBe("standby_failed");
    const { id } = await run;
    expect(await engine.execs.wait(id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 5 });
    expect(driver.restores).toBe(0);
  });

  it("is answered in time if the host can't be measured or the instance can't be stopped", async () => {
    const { engine, driver, create } = await testEngine({ keeperCallMs: 200 });
    await create("box");
    driver.faults.capacity = never;
    expect(await codeOf(engine.sandboxes.standby("box", signal))).toBe("standby_failed");
    driver.faults = { stop: never };
    expect(await engine.sandboxes.standby("box", signal)).toMatchObject({
      status: "suspending",
      lease: { reason: "standby" },
    });
  });

  it("keeps its checkpoint although older ones are still being removed", async () => {
    const { engine, driver, exec } = await asleep();
    const gate = Promise.withResolvers<void>();
    driver.faults.discard = () => gate.promise;
    await engine.sandboxes.wake("box", signal);
    const order = engine.sandboxes.standby("box", signal);
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("suspending"));
    gate.resolve();
    expect((await order).status).toBe("standby");
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 3 });
    expect((await engine.execs.get(exec.id)).status).toBe("running");
  });

  it("that is overtaken by a delete reports that", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    driver.faults.checkpoint = (_, inner) => aborted(inner);
    const order = codeOf(engine.sandboxes.standby("box", signal));
    await eventually(() => expect(driver.frozen.size).toBe(1));
    await remove(engine, "box");
    expect(["wrong_state", "sandbox_gone"]).toContain(await order);
  });

  it("holds a call that comes after the freeze, and the wake serves it", async () => {
    const { engine, driver, create } = await testEngine();
    await create("box");
    const gate = Promise.withResolvers<void>();
    driver.faults.checkpoint = () => gate.promise;
    const order = engine.sandboxes.standby("box", signal);
    await eventually(() => expect(driver.frozen.size).toBe(1));
    const run = start(engine, "box", ["exit", "5"]);
    gate.resolve();
    await order;
    const { id } = await run;
    expect(await engine.execs.wait(id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 5 });
    expect(driver.restores).toBe(1);
  });

  it("keeps only files if memory can't be saved, and the wake is a cold start on them", async () => {
    const { engine, driver, create } = await testEngine();
    driver.standby = { kind: "files", why: "no luck" };
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    const info = await engine.sandboxes.standby("box", signal);
    expect(info).toMatchObject({ status: "standby", standbyKind: "files", checkpoint: null });
    expect(await engine.execs.get(exec.id)).toMatchObject({
      status: "lost",
      cause: { code: "files_standby" },
    });
    const { id } = await start(engine, "box", ["exit", "0"]);
    expect(await engine.execs.wait(id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 0 });
    expect(driver.launches).toBe(2);
  });

  it("keeps the files if the cold start on them fails", async () => {
    const { engine, driver, create } = await testEngine();
    driver.standby = { kind: "files", why: "no luck" };
    const { sandbox } = await create("box");
    await engine.sandboxes.standby("box", signal);
    driver.faults.launch = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("sandbox_failed");
    await eventually(async () => expect((await engine.sandboxes.get("box")).lease.state).toBe("none"));
    expect(driver.directories.has(sandbox.id as SandboxId)).toBe(true);
  });

  it("that kept only files continues while launches are suspended", async () => {
    const { engine, driver, create } = await testEngine({
      launchFailuresMax: 1,
      launchesSuspendedMs: 600_000,
    });
    driver.standby = { kind: "files", why: "no luck" };
    await create("box");
    await engine.sandboxes.standby("box", signal);
    driver.faults.launch = async () => {
      throw new Error("no luck");
    };
    expect(await codeOf(create("other"))).toBe("launch_failed");
    expect(await codeOf(start(engine, "box", ["true"]))).toBe("launches_suspended");
    expect((await engine.sandboxes.get("box")).status).toBe("standby");
  });

  it("can be deleted, also while suspending or waking", async () => {
    for (const fault of [null, "checkpoint", "restore"] as const) {
      const { engine, driver, create } = await testEngine();
      const { sandbox } = await create("box");
      if (fault === "checkpoint") driver.faults.checkpoint = (_, inner) => aborted(inner);
      const order = engine.sandboxes.standby("box", signal).catch(() => undefined);
      if (fault === "checkpoint") await eventually(() => expect(driver.frozen.size).toBe(1));
      else await order;
      if (fault === "restore") driver.faults.restore = (_, inner) => aborted(inner);
      const held = fault === null ? null : codeOf(start(engine, "box", ["true"]));
      if (fault === "restore") await eventually(() => expect(driver.restores).toBe(1));
      expect((await remove(engine, sandbox.id)).status).toBe("terminated");
      expect(driver.directories.size).toBe(0);
      if (held !== null) expect(["wrong_state", "sandbox_gone"]).toContain(await held);
    }
  });
});

describe("a server that stops", () => {
  it("while memory is written leaves the sandbox running, without a checkpoint", async () => {
    const { engine, driver, create, restart } = await testEngine();
    await create("box");
    const exec = await start(engine, "box", ["sleep"]);
    driver.faults.checkpoint = (_, inner) => aborted(inner);
    void engine.sandboxes.standby("box", signal).catch(() => undefined);
    await eventually(() => expect(driver.frozen.size).toBe(1));
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    expect(await next.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 1 });
    expect((await next.execs.get(exec.id)).status).toBe("running");
    expect(driver.checkpoints.size).toBe(0);
  });

  it("after the memory is on disk leaves the stop of the instance to the next server", async () => {
    const { engine, driver, create, restart } = await testEngine();
    const { sandbox } = await create("box");
    driver.faults.stop = never;
    void engine.sandboxes.standby("box", signal).catch(() => undefined);
    await eventually(async () => expect(await eventsOf(engine, "box")).toContain("sandbox.standby"));
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("box")).status).toBe("standby"));
    expect(driver.instances.get(sandbox.id as SandboxId)?.alive).toBe(false);
    expect(await next.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", generation: 2 });
  });

  it("before the checkpoint is spent leaves the sandbox in standby, and the restored instance is removed", async () => {
    const { engine, driver, restart, id } = await asleep();
    driver.faults.restoreAnswer = never;
    void start(engine, "box", ["true"]).catch(() => undefined);
    await eventually(() => expect(driver.instances.get(id)?.alive).toBe(true));
    const half = driver.instances.get(id);
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("box")).status).toBe("standby"));
    expect(half?.alive).toBe(false);
    expect(await next.sandboxes.wake("box", signal)).toMatchObject({ status: "ready" });
    expect(driver.restores).toBe(2);
  });

  it("after the checkpoint is spent leaves the restored instance to the next server", async () => {
    const { engine, driver, restart, id, exec } = await asleep();
    driver.faults.connect = never;
    void start(engine, "box", ["true"]).catch(() => undefined);
    await eventually(() => expect(driver.frozen.has(id)).toBe(false));
    await eventually(() => expect(driver.instances.get(id)?.alive).toBe(true));
    const woken = driver.instances.get(id);
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    expect(await next.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 2 });
    expect(driver.instances.get(id)).toBe(woken);
    expect(driver.restores).toBe(1);
    expect((await next.execs.get(exec.id)).status).toBe("running");
  });

  it("before it discarded a spent checkpoint leaves that to the next server", async () => {
    const { engine, driver, restart } = await asleep();
    driver.discard = never;
    await engine.sandboxes.wake("box", signal);
    await engine.stop();
    expect(driver.checkpoints.size).toBe(1);
    Reflect.deleteProperty(driver, "discard");
    await restart();
    await eventually(() => expect(driver.checkpoints.size).toBe(0));
  });
});

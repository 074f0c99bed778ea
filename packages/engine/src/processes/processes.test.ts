import type { ExecId, Process, SandboxId, StartProcess } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { EngineApi } from "../ports/api.ts";
import { KeeperRefusal, LinkLost, MountRefused } from "../ports/index.ts";
import { makeDrive, mount, removeDrive } from "../testing/engine-with-drives.ts";
import { fork, save } from "../testing/forked-sandbox.ts";
import { eventsOf } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

const QUICK = { readyPollMinMs: 5, readyPollMaxMs: 20, unreadyPollMs: 30, readyDialMs: 200 };
const keep = { on: "failure", max: 3, backoffMs: 10 } as const;

async function boxed(numbers: Parameters<typeof testEngine>[0] = {}) {
  const all = await testEngine({ ...QUICK, ...numbers });
  const { sandbox } = await all.create("box");
  const id = sandbox.id as SandboxId;
  const instance = () => {
    const there = all.driver.instances.get(id);
    if (there === undefined) throw new Error("there is no instance");
    return there;
  };
  return { ...all, id, instance };
}

const start = (engine: EngineApi, more: Partial<StartProcess> = {}, waitMs?: number) =>
  engine.processes.start("box", { name: "web", argv: ["serve"], ...more }, { waitMs, signal });
const shown = (engine: EngineApi, name = "web") => engine.processes.get("box", name);
const run = ({ id }: Pick<Process, "id">, number: number) => `${id}-${number}` as ExecId;
const becomes = async (engine: EngineApi, want: object) => {
  await eventually(async () => expect(await shown(engine)).toMatchObject(want));
  return shown(engine);
};
const later = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));
const outcome = (engine: EngineApi, id: string) => engine.execs.wait(id, { waitMs: 10_000, signal });

describe("a named process in a sandbox that lacks a drive after a restart", () => {
  const lacking = async () => {
    const all = await boxed();
    await makeDrive(all.engine, "data");
    await mount(all.engine, "box");
    const { process } = await start(all.engine, { restart: keep });
    return { ...all, process };
  };

  it("begins only once nothing can be written where the drive belongs", async () => {
    const { engine, driver, instance, process } = await lacking();
    driver.faults.mount = async () => {
      throw new MountRefused("mount_refused", "a symbolic link is in the way");
    };
    expect(await codeOf(engine.sandboxes.restart("box", signal))).toBe("sandbox_degraded");
    // Several rounds of maintenance pass.
    await later(400);
    expect([...instance().execs.keys()]).not.toContain(run(process, 2));
    expect(await shown(engine)).toMatchObject({ status: "waiting", runs: 1 });
    driver.faults = {};
    await becomes(engine, { status: "ready", runs: 2, execId: run(process, 2) });
    expect(instance().mounts.get("/data")?.ino).toMatch(/^drive/);
  });

  it("begins although the drive was deleted, because its path is sealed", async () => {
    const { engine, process } = await lacking();
    await removeDrive(engine, "data", true);
    expect(await codeOf(engine.sandboxes.restart("box", signal))).toBe("sandbox_degraded");
    await becomes(engine, { status: "ready", runs: 2, execId: run(process, 2) });
  });
});

describe("a named process", () => {
  it("runs as an exec of its own, is found by name and id, and does not keep its sandbox awake", async () => {
    const { engine } = await boxed();
    const { process, followed } = await start(engine);
    expect(followed).toBe(false);
    expect(process).toMatchObject({
      name: "web",
      status: "ready",
      ready: { how: "running" },
      runs: 1,
      restarts: 0,
      execId: run(process, 1),
      exec: { status: "running", keepAwake: false },
      suspended: false,
    });
    expect(await shown(engine, process.id)).toMatchObject({ name: "web" });
    expect((await engine.processes.list("box")).items.map(({ name }) => name)).toEqual(["web"]);
    expect(await eventsOf(engine, "box")).toContain("process.started");
  });

  it("is followed if it is started again with the same spec, and is a conflict with another spec", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine);
    expect(await start(engine)).toMatchObject({ followed: true, process: { id: process.id } });
    expect(await codeOf(start(engine, { argv: ["other"] }))).toBe("process_conflict");
    expect(await codeOf(start(engine, { restart: keep }))).toBe("process_conflict");
    expect(instance().starts).toBeGreaterThan(0);
    expect(instance().execs.has(run(process, 2))).toBe(false);
  });

  it("is started once by two concurrent requests", async () => {
    const { engine } = await boxed();
    const [one, other] = await Promise.all([start(engine), start(engine)]);
    expect(one.process.id).toBe(other.process.id);
    expect([one.followed, other.followed].sort()).toEqual([false, true]);
  });

  it("that has ended is replaced by the next one with its name, and only its runs are still found", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine);
    instance().end(run(process, 1), 3, "so much\n");
    await becomes(engine, { status: "exited", exec: { exitCode: 3 } });
    const next = await start(engine, { argv: ["other"] });
    expect(next.followed).toBe(false);
    expect(await codeOf(shown(engine, process.id))).toBe("process_not_found");
    expect(await engine.execs.get(run(process, 1))).toMatchObject({ exitCode: 3 });
    expect(await codeOf(shown(engine, "nobody"))).toBe("process_not_found");
  });

  it("has run ids that callers of execs can't choose", async () => {
    const { engine } = await boxed();
    const id = "prc_0123456789abcdef-1";
    expect(await codeOf(engine.execs.start("box", { id, argv: ["x"] }, { signal }))).toBe("invalid_request");
  });

  it("is refused beyond the limit if all processes run, and otherwise replaces one that has ended", async () => {
    const { engine, instance } = await boxed({ processesPerSandbox: 2 });
    const { process } = await start(engine, { name: "one" });
    await start(engine, { name: "two" });
    expect(await codeOf(start(engine, { name: "three" }))).toBe("too_many_processes");
    instance().end(run(process, 1), 0, "");
    await eventually(async () => expect((await shown(engine, "one")).status).toBe("exited"));
    await start(engine, { name: "three" });
    const names = (await engine.processes.list("box")).items.map(({ name }) => name);
    expect(names).toEqual(["two", "three"]);
  });

  it("is counted against the limit once, even if several starts wait for the same wake", async () => {
    const { engine, instance } = await boxed({ processesPerSandbox: 2 });
    const { process } = await start(engine, { name: "old" });
    instance().end(run(process, 1), 0, "");
    await eventually(async () => expect((await shown(engine, "old")).status).toBe("exited"));
    await engine.sandboxes.standby("box", signal);
    const names = ["one", "two", "three", "four"];
    const codes = await Promise.all(
      names.map((name) =>
        start(engine, { name }).then(
          () => null,
          ({ code }) => code,
        ),
      ),
    );
    expect(codes.filter((code) => code === null)).toHaveLength(2);
    expect(codes.filter((code) => code === "too_many_processes")).toHaveLength(2);
    expect((await engine.processes.list("box")).items).toHaveLength(2);
  });

  it("is not started if it can't be stored", async () => {
    const { engine, store, instance } = await boxed();
    const commit = store.commit.bind(store);
    store.commit = () => Promise.reject(new Error("no room"));
    expect(await codeOf(start(engine))).toBe("internal");
    store.commit = commit;
    expect((await engine.processes.list("box")).items).toEqual([]);
    expect([...instance().execs.keys()].filter((id) => id.startsWith("prc_"))).toEqual([]);
    expect((await start(engine)).process.status).toBe("ready");
  });

  it("that its keeper can't restart is refused as unsupported, and never runs", async () => {
    const { engine, instance } = await boxed();
    instance().canKeep = false;
    expect(await codeOf(start(engine, { restart: keep }))).toBe("process_unsupported");
    await becomes(engine, { status: "given_up", exec: { status: "refused", dispatched: "no" } });
    expect((await start(engine, { name: "plain" })).process.status).toBe("ready");
  });
});

describe("a process that ends", () => {
  it("is restarted by its keeper, and every run has its own outcome and journal", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: keep });
    instance().end(run(process, 1), 1, "first\n");
    await becomes(engine, { status: "ready", runs: 2, restarts: 1, execId: run(process, 2) });
    instance().end(run(process, 2), 2, "second\n");
    await becomes(engine, { status: "ready", runs: 3, restarts: 2 });
    expect(await outcome(engine, run(process, 1))).toMatchObject({ exitCode: 1, stdout: "first\n" });
    expect(await outcome(engine, run(process, 2))).toMatchObject({ exitCode: 2, stdout: "second\n" });
    const { items } = await engine.processes.runs("box", "web", { limit: 10 });
    expect(items.map(({ id }) => id)).toEqual([3, 2, 1].map((number) => run(process, number)));
    const { items: events } = await engine.events({ ref: "box", types: ["process.restarted"], limit: 10 });
    expect(events.map(({ data }) => data)).toMatchObject([
      { run: 2, restarts: 1, last: { status: "exited", exitCode: 1 } },
      { run: 3, restarts: 2, last: { status: "exited", exitCode: 2 } },
    ]);
  });

  it("too often is given up, and its cause says so", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { argv: ["exit", "1"], restart: { ...keep, max: 2 } }, 0);
    const over = await becomes(engine, { status: "given_up", runs: 3, restarts: 2 });
    expect(over.cause).toMatchObject({ code: "too_many_restarts" });
    expect(over.cause?.message).toContain("exited with 1");
    expect(over.endedAt).not.toBeNull();
    expect(instance().execs.has(run(process, 4))).toBe(false);
    expect(await eventsOf(engine, "box")).toContain("process.given_up");
  });

  it("is not taken for unknown to its keeper while its start is in transit", async () => {
    const { engine, driver, store, instance } = await boxed();
    const { process: one } = await start(engine, { name: "one", restart: { ...keep, max: 0 } });
    const commit = store.commit.bind(store);
    store.commit = async (order) => {
      // The end of the first process is stored slowly; meanwhile the other one starts and ends.
      if (order.events?.some(({ type }) => type === "process.given_up")) await later(150);
      return commit(order);
    };
    driver.faults.start = () => later(60);
    const starting = start(engine, { argv: ["exit", "1"], restart: { ...keep, max: 0 } }, 0);
    await later(20);
    instance().end(run(one, 1), 1, "");
    const { process } = await starting;
    await becomes(engine, { status: "given_up", runs: 1 });
    expect(instance().execs.has(run(process, 2))).toBe(false);
  });

  it("with exit code 0 is not restarted if only failures are", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: keep });
    instance().end(run(process, 1), 0, "");
    await becomes(engine, { status: "exited", runs: 1 });
  });

  it("is recorded, and so is its next run, even if both come before the answer to its start", async () => {
    const { engine, driver, instance } = await boxed();
    driver.faults.startAnswer = async () => {
      const [id] = [...instance().execs.keys()].filter((each) => each.startsWith("prc_"));
      if (id !== undefined) instance().end(id, 1, "");
      await new Promise((resolve) => setTimeout(resolve, 50));
    };
    const { process } = await start(engine, { restart: keep });
    driver.faults = {};
    expect(await outcome(engine, run(process, 1))).toMatchObject({ status: "exited", exitCode: 1 });
    await becomes(engine, { status: "ready", runs: 2 });
  });

  it("while the link is down is found with all its runs when the link is back", async () => {
    const { engine, driver, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, max: 9 } });
    driver.faults.connect = () => Promise.reject(new Error("no link"));
    for (const link of [...instance().links]) link.drop("cut");
    for (const number of [1, 2, 3]) {
      instance().end(run(process, number), number, `${number}`);
      await eventually(() => expect(instance().execs.has(run(process, number + 1))).toBe(true));
    }
    expect(await shown(engine)).toMatchObject({ runs: 1 });
    driver.faults = {};
    await becomes(engine, { status: "ready", runs: 4, restarts: 3 });
    for (const number of [1, 2, 3])
      expect(await outcome(engine, run(process, number))).toMatchObject({ exitCode: number });
    expect(instance().execs.get(run(process, 4))?.known.state).toBe("running");
  });

  it("while no server runs is found by the next server with all its runs and its final state", async () => {
    const { engine, instance, restart } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, max: 1 } });
    await engine.stop();
    instance().end(run(process, 1), 1, "one");
    await eventually(() => expect(instance().execs.has(run(process, 2))).toBe(true));
    instance().end(run(process, 2), 2, "two");
    const next = await restart();
    await becomes(next, { status: "given_up", runs: 2 });
    expect(await outcome(next, run(process, 1))).toMatchObject({ exitCode: 1, stdout: "one" });
    expect(await outcome(next, run(process, 2))).toMatchObject({ exitCode: 2, stdout: "two" });
  });

  it("is shown as waiting between two runs, even by a server that has just started", async () => {
    const { engine, instance, restart } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 60_000 } });
    instance().end(run(process, 1), 7, "");
    const waits = await becomes(engine, { status: "waiting" });
    expect(waits.cause?.message).toContain("exited with 7");
    expect(Date.parse(waits.nextRunAt ?? "")).toBeGreaterThan(Date.now());
    await engine.stop();
    const next = await restart();
    await eventually(async () => expect((await shown(next)).nextRunAt).not.toBeNull());
    expect(await shown(next)).toMatchObject({ status: "waiting", runs: 1, exec: { exitCode: 7 } });
  });

  it("is restarted without counting against maxExecs", async () => {
    const all = await testEngine(QUICK);
    const { engine, driver } = all;
    const lifecycle = { maxExecs: 2 };
    const { sandbox } = await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    const { process } = await start(engine, { restart: keep });
    driver.instances.get(sandbox.id as SandboxId)?.end(run(process, 1), 1, "");
    await becomes(engine, { runs: 2 });
    await engine.execs.start("box", { argv: ["sleep"] }, { signal });
    expect(await codeOf(engine.execs.start("box", { argv: ["sleep"] }, { signal }))).toBe("exec_limit");
  });

  it("keeps its last run as long as another run may follow", async () => {
    const { engine, instance } = await boxed({ execRetentionMs: 1, retentionEveryMs: 20 });
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 60_000 } });
    instance().end(run(process, 1), 7, "");
    await becomes(engine, { status: "waiting" });
    const other = await engine.execs.start("box", { argv: ["exit", "0"] }, { signal });
    await eventually(async () =>
      expect(await codeOf(engine.execs.get(other.exec.id))).toBe("exec_not_found"),
    );
    expect(await engine.execs.get(run(process, 1))).toMatchObject({ exitCode: 7 });
    await engine.processes.stop("box", "web", signal);
    await eventually(async () =>
      expect(await codeOf(engine.execs.get(run(process, 1)))).toBe("exec_not_found"),
    );
    expect(await shown(engine)).toMatchObject({ status: "stopped", exec: null });
  });
});

describe("a request", () => {
  it("to stop ends the run, prevents further runs, and can be repeated", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, on: "always" } });
    const stopped = await engine.processes.stop("box", "web", signal);
    expect(stopped).toMatchObject({ status: "stopped", exec: { status: "cancelled" } });
    expect(await engine.processes.stop("box", process.id, signal)).toEqual(stopped);
    expect(instance().kept()).toMatchObject([{ state: "stopped" }]);
    expect(await eventsOf(engine, "box")).toContain("process.stopped");
  });

  it("to stop a process between two runs prevents the next run", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 60_000 } });
    instance().end(run(process, 1), 1, "");
    await becomes(engine, { status: "waiting" });
    expect(await engine.processes.stop("box", "web", signal)).toMatchObject({
      status: "stopped",
      exec: { status: "exited", exitCode: 1 },
    });
    expect(instance().kept()).toMatchObject([{ state: "stopped" }]);
  });

  it("to stop is carried out by the next server if this one could not", async () => {
    const { engine, instance, restart } = await boxed({ keeperCallMs: 50 });
    const { process } = await start(engine, { restart: keep });
    const { links } = instance();
    for (const link of links) link.cancelExec = () => Promise.reject(new LinkLost("cut", "unknown"));
    expect(await engine.processes.stop("box", "web", signal)).toMatchObject({ status: "ready" });
    await engine.stop();
    const next = await restart();
    await becomes(next, { status: "stopped" });
    expect(await outcome(next, run(process, 1))).toMatchObject({ status: "cancelled" });
  });

  it("to cancel a run's exec stops the process", async () => {
    const { engine } = await boxed();
    const { process } = await start(engine, { restart: keep });
    await engine.execs.cancel(run(process, 1), signal);
    await becomes(engine, { status: "stopped" });
  });

  it("to restart starts the next run of a running, a waiting and an ended process", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 60_000 } });
    const again = () => engine.processes.restart("box", "web", { signal });
    expect(await again()).toMatchObject({ status: "ready", runs: 2 });
    expect(await outcome(engine, run(process, 1))).toMatchObject({ status: "cancelled" });
    instance().end(run(process, 2), 1, "");
    await becomes(engine, { status: "waiting" });
    expect(await again()).toMatchObject({ status: "ready", runs: 3 });
    await engine.processes.stop("box", "web", signal);
    expect(await again()).toMatchObject({ status: "ready", runs: 4, endedAt: null });
    expect([...instance().execs.values()].filter(({ known }) => known.state === "running")).toHaveLength(1);
  });

  it("to restart starts a process without a restart policy", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine);
    instance().end(run(process, 1), 1, "");
    await becomes(engine, { status: "exited" });
    expect(await engine.processes.restart("box", "web", { signal })).toMatchObject({
      status: "ready",
      runs: 2,
    });
  });

  it("to delete the sandbox ends its processes", async () => {
    const { engine, store } = await boxed();
    const { process } = await start(engine, { restart: keep });
    await remove(engine, "box");
    expect(await engine.execs.get(run(process, 1))).toMatchObject({ status: "cancelled" });
    expect(await store.processes()).toEqual([]);
  });
});

describe("readiness", () => {
  it("by output is reached when the text appears, even if records split it", async () => {
    const { engine, instance } = await boxed();
    const readyWhen = { output: "listening" };
    const { process } = await start(engine, { readyWhen }, 0);
    instance().print(run(process, 1), "not yet: lis");
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect(await shown(engine)).toMatchObject({ status: "starting", ready: null });
    instance().print(run(process, 1), "tening at 80\n");
    await becomes(engine, { status: "ready", ready: { how: "output" } });
    expect(await eventsOf(engine, "box")).toContain("process.ready");
  });

  it("by port is reached when a program listens, and the start returns then", async () => {
    const { engine, driver } = await boxed();
    setTimeout(() => driver.echoes.add(3000), 60);
    const { process } = await start(engine, { readyWhen: { port: 3000 } });
    expect(process).toMatchObject({ status: "ready", ready: { how: "port" } });
  });

  it("that is late is reported with the reason, and may be reached afterwards", async () => {
    const { engine, driver } = await boxed();
    const { process } = await start(engine, { readyWhen: { port: 3000, withinMs: 40 } });
    expect(process).toMatchObject({ status: "unready", cause: { code: "port_closed" } });
    expect(process.cause?.message).toContain("3000");
    driver.faults.dial = () => Promise.reject(new KeeperRefusal("system", "timed out", "ETIMEDOUT"));
    driver.faults = {};
    driver.echoes.add(3000);
    await becomes(engine, { status: "ready" });
    const told = (await eventsOf(engine, "box")).filter((type) => type.startsWith("process."));
    expect(told).toEqual(["process.started", "process.unready", "process.ready"]);
  });

  it("is not reached if an impostor answers", async () => {
    const { engine, driver } = await boxed();
    driver.echoes.add(3000);
    const dial = driver.dial.bind(driver);
    driver.dial = async (...args) => ({ ...(await dial(...args)), bootId: "another" });
    const { process } = await start(engine, { readyWhen: { port: 3000, withinMs: 40 } });
    expect(process).toMatchObject({ status: "unready", cause: { code: "port_unreachable" } });
  });

  it("is checked again for every run", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: keep, readyWhen: { output: "up" } }, 0);
    instance().print(run(process, 1), "up");
    await becomes(engine, { status: "ready" });
    instance().end(run(process, 1), 1, "");
    await becomes(engine, { status: "starting", runs: 2, ready: null });
    instance().print(run(process, 2), "up");
    await becomes(engine, { status: "ready", runs: 2 });
  });

  it("is known to the next server", async () => {
    const { engine, driver, restart } = await boxed();
    driver.echoes.add(3000);
    const { process } = await start(engine, { readyWhen: { port: 3000 } });
    await engine.stop();
    const next = await restart();
    expect(await shown(next)).toMatchObject({ status: "ready", ready: process.ready });
  });
});

describe("a named process in standby", () => {
  it("is suspended, does not wake its sandbox, and continues its run after the wake, with its readiness checked again", async () => {
    const { engine, driver } = await boxed();
    driver.echoes.add(3000);
    const { process } = await start(engine, { restart: keep, readyWhen: { port: 3000 } });
    await engine.sandboxes.standby("box", signal);
    let dials = 0;
    driver.faults.dial = async () => {
      dials += 1;
    };
    expect(await shown(engine)).toMatchObject({ status: "ready", suspended: true });
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "standby" });
    expect(dials).toBe(0);
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, {
      status: "ready",
      suspended: false,
      execId: run(process, 1),
      ready: process.ready,
    });
    expect(dials).toBeGreaterThan(0);
  });

  it("is unready with the reason if its port accepts no connection in time after a wake, until it accepts one", async () => {
    const { engine, driver } = await boxed();
    await start(engine, { connectBy: { port: 3000, withinMs: 40 } });
    expect(await shown(engine)).toMatchObject({ status: "ready" });
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    const late = await becomes(engine, { status: "unready", cause: { code: "port_closed" } });
    expect(late.cause?.message).toContain("Nothing listens at port 3000");
    driver.echoes.add(3000);
    await becomes(engine, { status: "ready", ready: { how: "port" } });
  });

  it("has a deadline for its connection after a wake, independent of its other readiness check", async () => {
    const { engine, driver } = await boxed();
    driver.echoes.add(3000);
    const readyWhen = { port: 3000, withinMs: 60_000 };
    await start(engine, { readyWhen, connectBy: { port: 3000, withinMs: 40 } });
    await engine.sandboxes.standby("box", signal);
    driver.echoes.delete(3000);
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "unready", cause: { code: "port_closed" } });
  });

  it("keeps its readiness by output, even if its port accepted no connection in time after a wake", async () => {
    const { engine, driver, instance } = await boxed();
    const more = { readyWhen: { output: "up" }, connectBy: { port: 3000, withinMs: 40 } };
    const { process } = await start(engine, more, 0);
    instance().print(run(process, 1), "up");
    await becomes(engine, { status: "ready" });
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "unready", cause: { code: "port_closed" } });
    // The journal has dropped the text since, and the process is checked again.
    instance().execs.get(run(process, 1))?.records.splice(0);
    await engine.sandboxes.standby("box", signal);
    driver.echoes.add(3000);
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "ready" });
  });

  it("reports that its run ended before its port accepted a connection", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { connectBy: { port: 3000, withinMs: 60_000 } });
    await engine.sandboxes.standby("box", signal);
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "starting" });
    instance().end(run(process, 1), 9, "");
    await becomes(engine, { status: "exited" });
    await eventually(async () => {
      const { items } = await engine.events({ ref: "box", types: ["process.unready"], limit: 9 });
      expect(items).toMatchObject([{ data: { cause: { code: "run_ended" } } }]);
    });
  });

  it("is still waiting for its next run after the wake, and its keeper starts that run", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 300 } });
    instance().end(run(process, 1), 1, "");
    await becomes(engine, { status: "waiting" });
    await engine.sandboxes.standby("box", signal);
    expect(await shown(engine)).toMatchObject({ status: "waiting", suspended: true, runs: 1 });
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "ready", runs: 2 });
  });

  it("wakes its sandbox when it is stopped", async () => {
    const { engine } = await boxed();
    await start(engine, { restart: keep });
    await engine.sandboxes.standby("box", signal);
    expect(await engine.processes.stop("box", "web", signal)).toMatchObject({ status: "stopped" });
    expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready" });
  });

  it("keeps its idle sandbox from standby only with keepAwake", async () => {
    const all = await testEngine(QUICK);
    const { engine } = all;
    const lifecycle = { idleStandbyMs: 50 };
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    await engine.sandboxes.create({ name: "up", lifecycle }, { wait: true, signal });
    await start(engine);
    await engine.processes.start("up", { name: "web", argv: ["serve"], keepAwake: true }, { signal });
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("standby"));
    expect((await engine.sandboxes.get("up")).status).toBe("ready");
  });
});

describe("a named process whose sandbox loses its memory", () => {
  it("with a restart policy is restarted under the next number, once its sandbox is proven", async () => {
    const { engine, instance } = await boxed();
    const { process } = await start(engine, { restart: keep });
    await engine.sandboxes.restart("box", signal);
    await becomes(engine, { status: "ready", runs: 2, execId: run(process, 2) });
    expect(await outcome(engine, run(process, 1))).toMatchObject({ status: "lost" });
    instance().end(run(process, 2), 1, "");
    await becomes(engine, { status: "ready", runs: 3 });
  });

  it("without a restart policy is lost, and its cause says so", async () => {
    const { engine } = await boxed();
    await start(engine);
    await engine.sandboxes.restart("box", signal);
    await becomes(engine, { status: "lost", runs: 1 });
    expect(await eventsOf(engine, "box")).toContain("process.lost");
  });

  it("waits in a failed sandbox, can be stopped, and runs again when the sandbox is restarted", async () => {
    const { engine, instance } = await boxed();
    await start(engine, { restart: keep });
    await start(engine, { name: "other", restart: keep });
    instance().die();
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("failed"));
    await becomes(engine, { status: "waiting", cause: { code: "sandbox_failed" } });
    // A wait ends at once if the next run follows only on request.
    const waited = engine.processes.wait("box", "web", { waitMs: 60_000, signal });
    expect(await waited).toMatchObject({ status: "waiting" });
    expect(await engine.processes.stop("box", "other", signal)).toMatchObject({ status: "stopped" });
    await engine.sandboxes.restart("box", signal);
    await becomes(engine, { status: "ready", runs: 2 });
    expect(await shown(engine, "other")).toMatchObject({ status: "stopped", runs: 1 });
  });

  it("is started again by the wake if standby keeps files only", async () => {
    const { engine, driver } = await boxed();
    driver.standby = { kind: "files", why: "not here" };
    await start(engine, { restart: keep });
    await start(engine, { name: "plain" });
    await engine.sandboxes.standby("box", signal);
    await becomes(engine, { status: "waiting", suspended: true });
    await engine.sandboxes.wake("box", signal);
    await becomes(engine, { status: "ready", runs: 2 });
    await eventually(async () => expect((await shown(engine, "plain")).status).toBe("lost"));
  });

  it("is started again by the next server if this one ended before it could", async () => {
    const { engine, restart, instance } = await boxed();
    await start(engine, { restart: keep });
    await engine.stop();
    instance().die();
    const next = await restart();
    await next.sandboxes.restart("box", signal);
    await becomes(next, { status: "ready", runs: 2 });
  });
});

describe("runs that no server saw before memory was lost", () => {
  const away = async (more: Partial<StartProcess>, ends: readonly number[]) => {
    const all = await boxed();
    const { process } = await start(all.engine, more);
    await all.engine.stop();
    const there = all.instance();
    for (const [place, exitCode] of ends.entries()) {
      await eventually(() => expect(there.execs.has(run(process, place + 1))).toBe(true));
      there.end(run(process, place + 1), exitCode, `${place + 1}`);
    }
    return { ...all, process, there };
  };

  it("are recorded with their outcomes, and the next run gets a later number", async () => {
    const { process, there, restart } = await away({ restart: keep }, [1, 2]);
    await eventually(() => expect(there.execs.has(run(process, 3))).toBe(true));
    there.die();
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("box")).status).toBe("failed"));
    await becomes(next, { status: "waiting", runs: 3, exec: { status: "lost" } });
    await next.sandboxes.restart("box", signal);
    await becomes(next, { status: "ready", runs: 4, restarts: 0 });
    expect(await outcome(next, run(process, 1))).toMatchObject({ exitCode: 1, stdout: "1" });
    expect(await outcome(next, run(process, 2))).toMatchObject({ exitCode: 2, stdout: "2" });
    const { items } = await next.events({ ref: "box", types: ["process.restarted"], limit: 10 });
    expect(items.map(({ data }) => data)).toMatchObject([
      { run: 2, last: { exitCode: 1 } },
      { run: 3, last: { exitCode: 2 } },
      { run: 4, last: { status: "lost" } },
    ]);
  });

  it("end the process if the last of them succeeded", async () => {
    const { there, restart } = await away({ restart: keep }, [1, 0]);
    there.die();
    const next = await restart();
    await becomes(next, { status: "exited", runs: 2, exec: { exitCode: 0 } });
    await next.sandboxes.restart("box", signal);
    expect(await shown(next)).toMatchObject({ status: "exited", runs: 2 });
  });
});

describe("a named process of a fork", () => {
  it("continues under an id of its own, and so do the runs that its keeper starts later", async () => {
    const { engine, driver, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, max: 9 } });
    instance().end(run(process, 1), 1, "");
    await becomes(engine, { status: "ready", runs: 2 });
    const made = await fork(engine, (await save(engine, "box")).id);
    const list = async () => (await engine.processes.list(made.id)).items;
    await eventually(async () =>
      expect(await list()).toMatchObject([{ name: "web", status: "ready", runs: 2 }]),
    );
    const [own] = await list();
    if (own === undefined) throw new Error("the fork has no process");
    expect(own.id).not.toBe(process.id);
    expect(own.execId).toBe(run(own, 2));
    const copy = driver.instances.get(made.id as SandboxId);
    copy?.end(run(process, 2), 5, "of the fork");
    await eventually(async () => expect(await list()).toMatchObject([{ status: "ready", runs: 3 }]));
    expect(await outcome(engine, run(own, 2))).toMatchObject({ exitCode: 5, stdout: "of the fork" });
    copy?.end(run(process, 3), 6, "later");
    await eventually(async () => expect(await list()).toMatchObject([{ runs: 4 }]));
    expect(await outcome(engine, run(own, 3))).toMatchObject({ exitCode: 6, stdout: "later" });
    expect(await shown(engine)).toMatchObject({ status: "ready", runs: 2, id: process.id });
    expect(copy?.execs.get(run(process, 4))?.known.state).toBe("running");
    await engine.processes.stop(made.id, "web", signal);
    expect(copy?.execs.get(run(process, 4))?.known.state).toBe("cancelled");
    expect(await shown(engine)).toMatchObject({ status: "ready" });
  });

  it("continues in a fork of the fork, even from between two runs", async () => {
    const { engine, driver, instance } = await boxed();
    const { process } = await start(engine, { restart: { ...keep, backoffMs: 400 } });
    const first = await fork(engine, (await save(engine, "box")).id, { name: "first" });
    const copy = driver.instances.get(first.id as SandboxId);
    copy?.end(run(process, 1), 1, "");
    await eventually(async () => expect((await engine.processes.get("first", "web")).status).toBe("waiting"));
    const second = await fork(engine, (await save(engine, "first")).id, { name: "second" });
    await eventually(async () =>
      expect(await engine.processes.get("second", "web")).toMatchObject({ status: "ready", runs: 2 }),
    );
    expect(driver.instances.get(second.id as SandboxId)?.execs.has(run(process, 2))).toBe(true);
    expect(instance().execs.has(run(process, 2))).toBe(false);
  });

  it("has the journal of a run that began right before the checkpoint", async () => {
    const { engine, driver, instance } = await boxed();
    const { process } = await start(engine, { restart: keep });
    const freeze = driver.freeze.bind(driver);
    driver.freeze = async (...args) => {
      instance().end(run(process, 1), 1, "");
      await eventually(() => expect(instance().execs.has(run(process, 2))).toBe(true));
      return freeze(...args);
    };
    const made = await fork(engine, (await save(engine, "box")).id, { name: "copy" });
    const copy = driver.instances.get(made.id as SandboxId);
    expect(copy?.journals.has(run(process, 2))).toBe(true);
    const own = await engine.processes.get("copy", "web");
    copy?.end(run(process, 2), 5, "of the fork");
    expect(await outcome(engine, run(own, 2))).toMatchObject({ exitCode: 5, stdout: "of the fork" });
  });

  it("keeps a run that can't be recorded at once", async () => {
    const { engine, driver, store } = await boxed();
    const { process } = await start(engine, { restart: keep });
    const made = await fork(engine, (await save(engine, "box")).id, { name: "copy" });
    const copy = driver.instances.get(made.id as SandboxId);
    driver.faults.connect = () => Promise.reject(new Error("no link"));
    for (const link of [...(copy?.links ?? [])]) link.drop("cut");
    copy?.end(run(process, 1), 1, "");
    await eventually(() => expect(copy?.execs.has(run(process, 2))).toBe(true));
    const commit = store.commit.bind(store);
    let refusals = 0;
    store.commit = async (order) => {
      if (!order.changes.some(({ kind }) => kind === "exec.insert") || refusals === 2) return commit(order);
      refusals += 1;
      throw new Error("no room");
    };
    driver.faults = {};
    await eventually(async () =>
      expect(await engine.processes.get("copy", "web")).toMatchObject({ status: "ready", runs: 2 }),
    );
    expect(copy?.execs.get(run(process, 2))?.known.state).toBe("running");
  });

  it("does not exist if the checkpoint has only files", async () => {
    const { engine, driver } = await boxed();
    driver.standby = { kind: "files", why: "not here" };
    await start(engine, { restart: keep });
    const made = await fork(engine, (await save(engine, "box")).id);
    expect((await engine.processes.list(made.id)).items).toEqual([]);
  });
});

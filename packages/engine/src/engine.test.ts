import { type Exec, type ExecId, isTerminal, type SandboxId } from "@holdfast/contract";
import type { OpenedStore } from "@holdfast/store";
import { describe, expect, it } from "vitest";
import type { EngineApi } from "./api.ts";
import { systemIds } from "./clock.ts";
import { type Commit, KeeperRefusal, type LaunchOrder } from "./ports.ts";
import type { HostileDriver } from "./testing/hostile-driver.ts";
import { codeOf, eventually, never, remove, signal, world } from "./testing/world.ts";

describe("create", () => {
  it("answers with a proven sandbox", async () => {
    const { create } = await world();
    const { sandbox } = await create("one");
    expect(sandbox).toMatchObject({ status: "ready", name: "one", generation: 1, lease: { state: "held" } });
    expect(sandbox.proof?.checks.map((check) => check.name)).toEqual(["link", "exec", "files", "root"]);
  });

  it("takes a name that is given back between the refusal and the look at who has it", async () => {
    const { engine, store, create } = await world();
    const { sandbox: holder } = await create("one");
    const byName = store.sandboxByName.bind(store);
    store.sandboxByName = async (name) => {
      store.sandboxByName = byName;
      await remove(engine, holder.id);
      return byName(name);
    };
    expect((await create("one")).sandbox).toMatchObject({ status: "ready", name: "one" });
    expect((await engine.stats()).totals).toMatchObject({ created: 2, terminated: 1 });
  });

  it.each<[step: string, fault: HostileDriver["faults"]]>([
    ["the launch fails", { launch: () => Promise.reject(new Error("no")) }],
    ["the launch's answer is lost", { launchAnswer: () => Promise.reject(new Error("lost")) }],
    [
      "the launch never ends",
      {
        launch: (_, aborted) =>
          new Promise((_r, no) => aborted.addEventListener("abort", () => no(aborted.reason))),
      },
    ],
    ["the keeper can't be reached", { connect: () => Promise.reject(new Error("no")) }],
    ["the keeper never answers", { connect: never }],
    ["it can't be observed", { observe: () => ({ seen: "unknown", at: 0, why: "?" }) }],
  ])("that fails because %s leaves nothing and frees the name", async (_step, faults) => {
    const { create, driver, engine } = await world({ createDeadlineMs: 300 });
    driver.faults = faults;
    expect(await codeOf(create("one"))).toBe("launch_failed");
    driver.faults = {};
    await eventually(() => expect(driver.directories.size + driver.instances.size).toBe(0));
    expect((await create("one")).sandbox.status).toBe("ready");
    const { totals } = await engine.stats();
    expect(totals).toMatchObject({ created: 2, failed: 1, terminated: 0 });
  });

  it("refuses a name that is taken, or returns the one that has it, proven", async () => {
    const { create, engine } = await world();
    const first = await create("one");
    expect(await codeOf(create("one"))).toBe("name_taken");
    const again = await engine.sandboxes.create({ name: "one", ifExists: "return" }, { wait: true, signal });
    expect(again).toMatchObject({ existed: true, sandbox: { id: first.sandbox.id, status: "ready" } });
  });

  it("repeated under its idempotency key launches once", async () => {
    const { driver, engine } = await world();
    const options = { wait: true, signal, idempotencyKey: "k" };
    const answers = await Promise.all([1, 2, 3].map(() => engine.sandboxes.create({ name: "one" }, options)));
    expect(new Set(answers.map(({ sandbox }) => sandbox.id)).size).toBe(1);
    expect(driver.launches).toBe(1);
    expect(await codeOf(engine.sandboxes.create({ name: "two" }, options))).toBe("idempotency_conflict");
  });
});

/** Makes the store refuse, once each, the commits whose events or phase the test names. */
function refuseOnce(store: OpenedStore, refused: (commit: Commit) => string | null): Set<string> {
  const commit = store.commit.bind(store);
  const done = new Set<string>();
  store.commit = (order) => {
    const name = refused(order);
    if (name === null || done.has(name)) return commit(order);
    done.add(name);
    return Promise.reject(new Error("no space"));
  };
  return done;
}

const leaseOf = (commit: Commit): string | null => {
  const update = commit.changes.find(({ kind }) => kind === "sandbox.update");
  return update?.kind === "sandbox.update"
    ? `${update.record.phase.name} ${update.record.lease.state}`
    : null;
};

describe("a store that refuses now and then", () => {
  it("delays a delete, at whatever step, and does not lose it", async () => {
    const { create, driver, engine, store } = await world();
    const { sandbox } = await create("one");
    const refused = refuseOnce(store, (commit) =>
      leaseOf(commit)?.startsWith("deleting s") || leaseOf(commit)?.startsWith("gone")
        ? leaseOf(commit)
        : null,
    );
    await remove(engine, "one", 10).catch(() => undefined);
    await eventually(
      async () => {
        await remove(engine, sandbox.id, 10).catch(() => undefined);
        expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated");
      },
      { timeout: 10_000 },
    );
    expect([...refused].sort()).toEqual(["deleting stop_needed", "deleting stopping", "gone none"]);
    expect(driver.directories.size).toBe(0);
  });

  it("delays the end of a failed launch, and does not lose it", async () => {
    const { create, driver, store } = await world({ createDeadlineMs: 300 });
    const refused = refuseOnce(store, (commit) =>
      leaseOf(commit)?.startsWith("failed stop_needed") ? "failed" : null,
    );
    driver.faults.launch = () => Promise.reject(new Error("no"));
    expect(await codeOf(create("one"))).toBe("launch_failed");
    expect(refused.size).toBe(1);
    await eventually(() => expect(driver.directories.size + driver.instances.size).toBe(0));
  });
});

describe("a server that stops or starts", () => {
  it("leaves what only waits in line waiting, for the next one to launch", async () => {
    const { driver, engine, restart } = await world({ launchesAtOnce: 1 });
    driver.faults.launch = (_, aborted) =>
      new Promise((_resolve, reject) => aborted.addEventListener("abort", () => reject(aborted.reason)));
    for (const name of ["one", "two", "three"])
      await engine.sandboxes.create({ name }, { wait: false, signal });
    await eventually(() => expect(driver.launches).toBe(1));
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    for (const name of ["two", "three"]) {
      await eventually(async () => expect((await next.sandboxes.get(name)).status).toBe("ready"));
    }
  });

  it("has what it was launching launched again by the next one, from the beginning, and once only", async () => {
    const { driver, engine, restart } = await world();
    const orders: LaunchOrder[] = [];
    driver.faults.launch = (order, aborted) => {
      orders.push(order);
      return new Promise((_resolve, reject) =>
        aborted.addEventListener("abort", () => reject(aborted.reason)),
      );
    };
    for (const name of ["one", "two"]) await engine.sandboxes.create({ name }, { wait: false, signal });
    await eventually(() => expect(orders).toHaveLength(2));
    await engine.stop();
    const next = await restart();
    await eventually(() => expect(orders).toHaveLength(4));
    expect(orders.slice(2)).toMatchObject([
      { generation: 2, restart: false },
      { generation: 2, restart: false },
    ]);
    await next.stop();
    driver.faults = {};
    const third = await restart();
    const { items } = await third.sandboxes.list({ limit: 10 });
    expect(items).toMatchObject([
      { cause: { code: "server_restarted" } },
      { cause: { code: "server_restarted" } },
    ]);
    await third.sandboxes.create({ name: "one" }, { wait: true, signal });
    await eventually(() => expect(driver.directories.size).toBe(1));
  });

  it("tries again where a sandbox could not be looked at, and its execs end", async () => {
    const { create, driver, engine, restart } = await world();
    const { sandbox } = await create("one");
    await engine.execs.start("one", { id: "run", argv: ["sleep"] }, { signal });
    await engine.stop();
    driver.instances.get(sandbox.id as SandboxId)?.end("run" as ExecId, 4, "");
    driver.faults.recover = () => Promise.reject(new Error("slow host"));
    const next = await restart();
    expect((await next.sandboxes.get("one")).status).toBe("degraded");
    driver.faults = {};
    await eventually(async () => expect((await next.sandboxes.get("one")).status).toBe("ready"));
    expect(await next.execs.wait("run", { waitMs: 3_000, signal })).toMatchObject({ exitCode: 4 });
  });

  it("does not wait for a sandbox that doesn't answer", async () => {
    const { create, driver, engine, restart } = await world({
      linkWaitMs: 600_000,
      proofDeadlineMs: 600_000,
    });
    await create("one");
    await engine.stop();
    driver.faults.connect = never;
    const next = await restart();
    expect(await next.sandboxes.get("one")).toMatchObject({ status: "degraded" });
    expect((await remove(next, "one")).status).toBe("terminated");
  });

  it("serves what there is though nothing can be stored", async () => {
    const { create, driver, engine, restart, store } = await world();
    await create("one");
    await engine.stop();
    driver.directories.add(systemIds.sandbox());
    const commit = store.commit.bind(store);
    store.commit = () => Promise.reject(new Error("database or disk is full"));
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get("one")).status).toBe("ready"));
    await eventually(() => expect(driver.directories.size).toBe(1));
    store.commit = commit;
    expect((await remove(next, "one")).status).toBe("terminated");
  });

  it("takes nobody but the keeper for the keeper", async () => {
    const { create, driver, engine, restart } = await world();
    await create("one");
    await engine.stop();
    driver.faults.impostor = () => "somebody else";
    const next = await restart();
    const info = await next.sandboxes.get("one");
    expect(info).toMatchObject({ status: "degraded", cause: { code: "link_down" } });
    expect(info.cause?.message).toContain("in the keeper's place");
    driver.faults = {};
    await eventually(async () => expect((await next.sandboxes.get("one")).status).toBe("ready"));
  });
});

describe("limits", () => {
  it("end creates that wait in line as well as those that had their turn, and leave nothing of either", async () => {
    const { create, driver, engine } = await world({ launchesAtOnce: 1, createDeadlineMs: 200 });
    driver.faults.launch = (_, aborted) =>
      new Promise((_resolve, reject) => aborted.addEventListener("abort", () => reject(aborted.reason)));
    const codes = await Promise.all(["one", "two", "three"].map((name) => codeOf(create(name))));
    expect(codes).toEqual(["launch_failed", "launch_failed", "launch_failed"]);
    driver.faults = {};
    await eventually(() => expect(driver.directories.size).toBe(0));
    expect((await engine.stats()).totals).toMatchObject({ created: 3, failed: 3 });
  });

  it("refuse a sandbox past the cap, take nothing for it, and free the place with the verified delete", async () => {
    const { create, engine } = await world({ maxSandboxes: 1 });
    await create("one");
    expect(await codeOf(create("two"))).toBe("too_many_sandboxes");
    expect((await engine.stats()).totals.created).toBe(1);
    await remove(engine, "one");
    expect((await create("two")).sandbox.status).toBe("ready");
  });

  it("end what failed once it has been kept for long enough", async () => {
    const { create, driver, engine } = await world({ failedKeptMs: 150 });
    const { sandbox } = await create("one");
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("failed"));
    expect((await engine.sandboxes.get(sandbox.id)).keptUntil).not.toBeNull();
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated"));
    expect(driver.directories.size).toBe(0);
  });
});

describe("delete", () => {
  it("overtakes a launch that hangs, and nothing is left", async () => {
    const { driver, engine } = await world();
    driver.faults.launch = (_, aborted) =>
      new Promise((_resolve, reject) => aborted.addEventListener("abort", () => reject(aborted.reason)));
    const { sandbox } = await engine.sandboxes.create({ name: "one" }, { wait: false, signal });
    await eventually(() => expect(driver.launches).toBe(1));
    expect((await remove(engine, "one")).status).toBe("terminated");
    expect(driver.directories.size + driver.instances.size).toBe(0);
    expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated");
  });

  it("waits for a launch that ignores its abort, so that it can't rebuild what was removed", async () => {
    const { driver, engine } = await world();
    const gate = Promise.withResolvers<void>();
    driver.faults.launch = () => gate.promise;
    await engine.sandboxes.create({ name: "one" }, { wait: false, signal });
    await eventually(() => expect(driver.launches).toBe(1));
    const removed = remove(engine, "one");
    await new Promise((resolve) => setTimeout(resolve, 30));
    gate.resolve();
    expect((await removed).status).toBe("terminated");
    expect(driver.directories.size + driver.instances.size).toBe(0);
  });

  it("is not reported while absence is not observed, and drives itself to the end", async () => {
    const { create, driver, engine } = await world();
    await create("one");
    driver.faults.stop = () => Promise.reject(new Error("won't"));
    const stuck = await remove(engine, "one", 100);
    expect(stuck.status).toBe("stopping");
    await eventually(async () =>
      expect((await engine.sandboxes.get(stuck.id)).lease.state).toBe("exhausted"),
    );
    driver.faults = {};
    await eventually(async () => expect((await engine.sandboxes.get(stuck.id)).status).toBe("terminated"));
  });

  it("goes on after a restart from where the last server was", async () => {
    const { create, driver, engine, restart } = await world();
    const { sandbox } = await create("one");
    driver.faults.destroy = never;
    await remove(engine, "one", 50);
    await engine.stop();
    driver.faults = {};
    const next = await restart();
    await eventually(async () => expect((await next.sandboxes.get(sandbox.id)).status).toBe("terminated"));
    expect(driver.directories.size).toBe(0);
  });

  it("is idempotent, and counted once", async () => {
    const { create, engine } = await world();
    const { sandbox } = await create("one");
    const answers = await Promise.all([1, 2, 3].map(() => remove(engine, sandbox.id)));
    expect(answers.map(({ status }) => status)).toEqual(["terminated", "terminated", "terminated"]);
    expect((await engine.stats()).totals.terminated).toBe(1);
    expect(await codeOf(engine.sandboxes.get("one"))).toBe("sandbox_not_found");
  });
});

describe("a sandbox that breaks", () => {
  it("fails with the cause when its instance dies, ends its execs as lost, and can be deleted", async () => {
    const { create, driver, engine } = await world();
    const { sandbox } = await create("one");
    const { exec } = await engine.execs.start("one", { argv: ["sleep"] }, { signal });
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    expect((await engine.sandboxes.get("one")).cause?.code).toBe("keeper_died");
    const lost = await engine.execs.wait(exec.id, { waitMs: 0, signal });
    expect(lost).toMatchObject({ status: "lost", dispatched: "yes", truncated: true });
    expect(lost.stdout).toBe("");
    expect(await codeOf(engine.execs.start("one", { argv: ["x"] }, { signal }))).toBe("sandbox_failed");
    expect(driver.directories.size).toBe(1);
    expect((await remove(engine, "one")).status).toBe("terminated");
    expect(driver.directories.size).toBe(0);
  });

  it.each(["blocks", "inodes"] as const)(
    "serves on a disk without %s, so that it can be emptied: the calls that need room say so",
    async (what) => {
      const { create, driver, engine } = await world();
      const { sandbox } = await create("one");
      const instance = driver.instances.get(sandbox.id as SandboxId);
      if (instance) instance.full = what;
      const { checks } = await engine.sandboxes.verify("one", signal);
      expect((await engine.sandboxes.get("one")).status).toBe("ready");
      expect(checks.map(({ message }) => message ?? "")).toEqual([
        "",
        expect.stringMatching(/disk is full/),
        expect.stringMatching(/disk is full/),
        "",
      ]);
      const { exec } = await engine.execs.start("one", { argv: ["exit", "0"] }, { signal });
      const ended = await engine.execs.wait(exec.id, { waitMs: 3_000, signal });
      expect(ended).toMatchObject(
        what === "inodes" ? { status: "refused", cause: { code: "ENOSPC" } } : { status: "exited" },
      );
    },
  );

  it("is not called ready when it has never served and its disk has no room", async () => {
    const { create, driver } = await world();
    driver.faults.connect = async () => {
      for (const instance of driver.instances.values()) instance.full = "inodes";
    };
    expect(await codeOf(create("one"))).toBe("launch_failed");
  });

  it("is degraded while its root is gone, refuses calls with the cause, and recovers by itself", async () => {
    const { create, driver, engine } = await world();
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    if (instance) instance.root = false;
    await eventually(async () =>
      expect((await engine.sandboxes.get("one")).cause?.code).toBe("root_unmounted"),
    );
    expect(await codeOf(engine.execs.start("one", { argv: ["exit", "0"] }, { signal }))).toBe(
      "sandbox_degraded",
    );
    if (instance) instance.root = true;
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("ready"));
    await eventually(async () => {
      const { items } = await engine.events({ ref: "one", limit: 100 });
      expect(items.map(({ type }) => type)).toEqual(
        expect.arrayContaining(["sandbox.degraded", "sandbox.recovered"]),
      );
    });
  });

  it("is not taken for dead because it can't be observed", async () => {
    const { create, driver, engine } = await world();
    await create("one");
    driver.faults.observe = () => ({ seen: "unknown", at: Date.now(), why: "the host is slow" });
    await eventually(async () =>
      expect((await engine.sandboxes.get("one")).cause?.code).toBe("observation_unknown"),
    );
    driver.faults = {};
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("ready"));
  });
});

describe("execs", () => {
  const finished = async (engine: EngineApi, id: string): Promise<Exec> => {
    const exec = await engine.execs.wait(id, { waitMs: 3_000, signal });
    expect(isTerminal(exec.status)).toBe(true);
    return exec;
  };

  it("are followed, not run again, when the same id is started twice", async () => {
    const { create, driver, engine } = await world();
    const { sandbox } = await create("one");
    const start = () => engine.execs.start("one", { id: "mine", argv: ["exit", "3"] }, { signal });
    const answers = await Promise.all([start(), start(), start()]);
    expect(answers.filter(({ followed }) => !followed)).toHaveLength(1);
    expect(await finished(engine, "mine")).toMatchObject({
      status: "exited",
      exitCode: 3,
      dispatched: "yes",
    });
    expect(
      [...(driver.instances.get(sandbox.id as SandboxId)?.execs.keys() ?? [])].filter((id) => id === "mine"),
    ).toHaveLength(1);
    expect(await codeOf(engine.execs.start("one", { id: "mine", argv: ["exit", "4"] }, { signal }))).toBe(
      "exec_conflict",
    );
    await create("two");
    expect(await codeOf(engine.execs.start("two", { id: "mine", argv: ["exit", "3"] }, { signal }))).toBe(
      "exec_conflict",
    );
  });

  it("run once though the link breaks before or after the keeper has the start", async () => {
    const { create, driver, engine } = await world();
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    const dropAll = async () => {
      driver.faults = {};
      for (const link of [...(instance?.links ?? [])]) link.drop("cut");
    };
    const before = instance?.starts ?? 0;
    driver.faults.start = dropAll;
    const { exec: first } = await engine.execs.start("one", { argv: ["exit", "1"] }, { signal });
    expect(await finished(engine, first.id)).toMatchObject({ exitCode: 1 });
    driver.faults.startAnswer = dropAll;
    const { exec: second } = await engine.execs.start("one", { argv: ["exit", "2"] }, { signal });
    expect(await finished(engine, second.id)).toMatchObject({ exitCode: 2 });
    const proofs = [...(instance?.execs.keys() ?? [])].filter((id) => id.startsWith("proof-")).length;
    expect((instance?.starts ?? 0) - before - proofs).toBe(2);
  });

  it("of a stopped server that reach the keeper after all are not called refused because the next start is", async () => {
    const { create, driver, engine, restart } = await world({ execStartDeadlineMs: 100 });
    await create("one");
    driver.faults.start = never;
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    await engine.stop();
    // The keeper has it, as if the first one had arrived meanwhile, and refuses the second.
    driver.faults = {
      startAnswer: async () => {
        driver.faults = {};
        throw new KeeperRefusal("system", "resource temporarily unavailable", "EAGAIN");
      },
    };
    const next = await restart();
    await eventually(async () => expect((await next.execs.get("a")).status).toBe("running"));
  });

  it("of a stopped server are found again: running ones followed, ended ones with their real code", async () => {
    const { create, driver, engine, restart } = await world();
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    const runs = await Promise.all(
      ["a", "b"].map((id) => engine.execs.start("one", { id, argv: ["sleep"] }, { signal })),
    );
    expect(runs.map(({ exec }) => exec.status)).toEqual(["running", "running"]);
    await engine.stop();
    instance?.end("a" as ExecId, 7, "done\n");
    const next = await restart();
    expect((await next.sandboxes.get("one")).status).toBe("ready");
    expect(await finished(next, "a")).toMatchObject({ status: "exited", exitCode: 7, stdout: "done\n" });
    expect((await next.execs.get("b")).status).toBe("running");
    instance?.end("b" as ExecId, 0, "");
    expect(await finished(next, "b")).toMatchObject({ exitCode: 0 });
    expect((await next.stats()).totals).toMatchObject({ execsStarted: 2, execsEnded: 2 });
  });

  it("are cancelled with the sandbox that is deleted under them", async () => {
    const { create, engine } = await world();
    await create("one");
    const { exec } = await engine.execs.start("one", { argv: ["sleep"] }, { signal });
    await remove(engine, "one");
    expect(await engine.execs.get(exec.id)).toMatchObject({
      status: "cancelled",
      cause: { code: "sandbox_deleted" },
    });
  });

  it("keep their outcome though the store refuses it at first", async () => {
    const { create, engine, store } = await world();
    await create("one");
    const commit = store.commit.bind(store);
    let refusals = 2;
    store.commit = (order) => {
      const isEnd = order.changes.some(({ kind }) => kind === "exec.end");
      if (isEnd && refusals > 0) {
        refusals -= 1;
        return Promise.reject(new Error("no space"));
      }
      return commit(order);
    };
    const { exec } = await engine.execs.start("one", { argv: ["exit", "5"] }, { signal });
    expect(await engine.execs.wait(exec.id, { waitMs: 10_000, signal })).toMatchObject({ exitCode: 5 });
    expect(await store.exec(exec.id as ExecId)).toMatchObject({ status: "exited", exitCode: 5 });
    expect(refusals).toBe(0);
  });

  it("held by a caller who left are not dispatched", async () => {
    const { create, driver, engine } = await world();
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    for (const link of [...(instance?.links ?? [])]) link.drop("cut");
    const caller = new AbortController();
    const held = engine.execs.start("one", { id: "never", argv: ["exit", "0"] }, { signal: caller.signal });
    caller.abort(new Error("left"));
    await expect(held).rejects.toThrow();
    expect(await codeOf(engine.execs.get("never"))).toBe("exec_not_found");
  });
});

describe("what no record owns", () => {
  it("is removed after it was seen twice past the grace, and not before", async () => {
    const { driver, engine } = await world({ orphanGraceMs: 150 });
    const stray = systemIds.sandbox();
    driver.directories.add(stray);
    await eventually(() => expect(driver.directories.has(stray)).toBe(false), { timeout: 5_000 });
    const told = async () =>
      (await engine.events({ limit: 100, types: ["orphan.found", "orphan.removed"] })).items;
    await eventually(async () => expect(await told()).toHaveLength(2), { timeout: 5_000 });
    const items = await told();
    expect(items.map(({ type }) => type)).toEqual(["orphan.found", "orphan.removed"]);
    const [found, removed] = items.map(({ at }) => Date.parse(at));
    // The first is dated a moment after the look that it tells of.
    expect((removed ?? 0) - (found ?? 0)).toBeGreaterThan(100);
    expect((await engine.stats()).orphans).toBe(0);
  });
});

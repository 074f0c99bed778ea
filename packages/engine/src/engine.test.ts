import { type Exec, type ExecId, isTerminal, type SandboxId } from "@holdfast/contract";
import type { OpenedStore } from "@holdfast/store";
import { describe, expect, it } from "vitest";
import { systemIds } from "./lib/ids.ts";
import type { EngineApi } from "./ports/api.ts";
import { type Commit, KeeperRefusal, type LaunchOrder } from "./ports/index.ts";
import type { HostileDriver } from "./testing/hostile-driver.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "./testing/test-engine.ts";

describe("a create", () => {
  it("returns a proven sandbox", async () => {
    const { create } = await testEngine();
    const { sandbox } = await create("one");
    expect(sandbox).toMatchObject({ status: "ready", name: "one", generation: 1, lease: { state: "held" } });
    expect(sandbox.proof?.checks.map((check) => check.name)).toEqual(["link", "exec", "files", "root"]);
  });

  it("gets a name that is released while its holder is looked up", async () => {
    const { engine, store, create } = await testEngine();
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
    const { create, driver, engine } = await testEngine({ createDeadlineMs: 300 });
    driver.faults = faults;
    expect(await codeOf(create("one"))).toBe("launch_failed");
    driver.faults = {};
    await eventually(() => expect(driver.directories.size + driver.instances.size).toBe(0));
    expect((await create("one")).sandbox.status).toBe("ready");
    const { totals } = await engine.stats();
    expect(totals).toMatchObject({ created: 2, failed: 1, terminated: 0 });
  });

  it("refuses a taken name or, on request, returns its proven holder", async () => {
    const { create, engine } = await testEngine();
    const first = await create("one");
    expect(await codeOf(create("one"))).toBe("name_taken");
    const again = await engine.sandboxes.create({ name: "one", ifExists: "return" }, { wait: true, signal });
    expect(again).toMatchObject({ existed: true, sandbox: { id: first.sandbox.id, status: "ready" } });
  });

  it("repeated with its idempotency key launches once", async () => {
    const { driver, engine } = await testEngine();
    const options = { wait: true, signal, idempotencyKey: "k" };
    const answers = await Promise.all([1, 2, 3].map(() => engine.sandboxes.create({ name: "one" }, options)));
    expect(new Set(answers.map(({ sandbox }) => sandbox.id)).size).toBe(1);
    expect(driver.launches).toBe(1);
    expect(await codeOf(engine.sandboxes.create({ name: "two" }, options))).toBe("idempotency_conflict");
  });

  it("repeated under its idempotency key with its fields in another order is the same request", async () => {
    const { driver, engine } = await testEngine();
    const options = { wait: true, signal, idempotencyKey: "k" };
    const one = { name: "one", labels: { a: "1", b: "2" } };
    const other = { labels: { b: "2", a: "1" }, name: "one" };
    const first = await engine.sandboxes.create(one, options);
    expect(await engine.sandboxes.create(other, options)).toMatchObject({
      existed: true,
      sandbox: { id: first.sandbox.id },
    });
    expect(driver.launches).toBe(1);
    const start = (env: Record<string, string>) =>
      engine.execs.start("one", { argv: ["exit", "0"], env }, { signal, idempotencyKey: "k" });
    const { exec } = await start({ A: "1", B: "2" });
    expect(await start({ B: "2", A: "1" })).toMatchObject({ followed: true, exec: { id: exec.id } });
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

describe("a launch whose instance runs", () => {
  it("proves it again if a link breaks during the proof, and keeps the instance", async () => {
    const { engine, driver } = await testEngine();
    let breaks = 3;
    driver.faults.prove = async () => {
      breaks -= 1;
      if (breaks < 0) return;
      for (const { links } of driver.instances.values()) for (const link of [...links]) link.drop("cut");
    };
    const { sandbox } = await engine.sandboxes.create({}, { wait: true, signal });
    expect(sandbox).toMatchObject({ status: "ready", generation: 1 });
    expect(breaks).toBeLessThan(0);
    expect(driver.launches).toBe(1);
  });

  it("fails with the result of the last proof if no link ever carries one", async () => {
    const { engine, driver } = await testEngine({ createDeadlineMs: 1_500 });
    driver.faults.prove = async () => {
      for (const { links } of driver.instances.values()) for (const link of [...links]) link.drop("cut");
    };
    await expect(engine.sandboxes.create({}, { wait: true, signal })).rejects.toThrow(/the link is closed/);
    await eventually(() => expect(driver.directories.size).toBe(0));
    expect(driver.launches).toBe(1);
  });
});

describe("a store that sometimes fails", () => {
  it("delays a delete, whichever step fails, and never loses it", async () => {
    const { create, driver, engine, store } = await testEngine();
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

  it("delays the end of a failed launch, and never loses it", async () => {
    const { create, driver, store } = await testEngine({ createDeadlineMs: 300 });
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
  it("leaves queued sandboxes for the next server to launch", async () => {
    const { driver, engine, restart } = await testEngine({ launchesAtOnce: 1 });
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

  it("leaves interrupted launches to the next server, which repeats them from the beginning, but only once", async () => {
    const { driver, engine, restart } = await testEngine();
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

  it("retries the recovery of a sandbox that could not be observed, and its execs get their outcomes", async () => {
    const { create, driver, engine, restart } = await testEngine();
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

  it("does not wait for a sandbox that does not answer", async () => {
    const { create, driver, engine, restart } = await testEngine({
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

  it("serves existing sandboxes although the store accepts no commits", async () => {
    const { create, driver, engine, restart, store } = await testEngine();
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

  it("accepts no other process as the keeper", async () => {
    const { create, driver, engine, restart } = await testEngine();
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
  it("end queued creates as well as launching ones, and leave nothing of either", async () => {
    const { create, driver, engine } = await testEngine({ launchesAtOnce: 1, createDeadlineMs: 200 });
    driver.faults.launch = (_, aborted) =>
      new Promise((_resolve, reject) => aborted.addEventListener("abort", () => reject(aborted.reason)));
    const codes = await Promise.all(["one", "two", "three"].map((name) => codeOf(create(name))));
    expect(codes).toEqual(["launch_failed", "launch_failed", "launch_failed"]);
    driver.faults = {};
    await eventually(() => expect(driver.directories.size).toBe(0));
    expect((await engine.stats()).totals).toMatchObject({ created: 3, failed: 3 });
  });

  it("refuse a sandbox beyond the cap, and free its place with the verified delete", async () => {
    const { create, engine } = await testEngine({ maxSandboxes: 1 });
    await create("one");
    expect(await codeOf(create("two"))).toBe("too_many_sandboxes");
    expect((await engine.stats()).totals.created).toBe(1);
    await remove(engine, "one");
    expect((await create("two")).sandbox.status).toBe("ready");
  });

  it("remove a failed sandbox after its retention", async () => {
    const { create, driver, engine } = await testEngine({ failedKeptMs: 150 });
    const { sandbox } = await create("one");
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("failed"));
    expect((await engine.sandboxes.get(sandbox.id)).keptUntil).not.toBeNull();
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated"));
    expect(driver.directories.size).toBe(0);
  });
});

describe("a delete", () => {
  it("overrides a launch that hangs, and leaves nothing", async () => {
    const { driver, engine } = await testEngine();
    driver.faults.launch = (_, aborted) =>
      new Promise((_resolve, reject) => aborted.addEventListener("abort", () => reject(aborted.reason)));
    const { sandbox } = await engine.sandboxes.create({ name: "one" }, { wait: false, signal });
    await eventually(() => expect(driver.launches).toBe(1));
    expect((await remove(engine, "one")).status).toBe("terminated");
    expect(driver.directories.size + driver.instances.size).toBe(0);
    expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated");
  });

  it("waits for a launch that ignores its abort, which could otherwise recreate files", async () => {
    const { driver, engine } = await testEngine();
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

  it("is reported only after absence was observed, and is retried until then", async () => {
    const { create, driver, engine } = await testEngine();
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

  it("is completed by the next server", async () => {
    const { create, driver, engine, restart } = await testEngine();
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
    const { create, engine } = await testEngine();
    const { sandbox } = await create("one");
    const answers = await Promise.all([1, 2, 3].map(() => remove(engine, sandbox.id)));
    expect(answers.map(({ status }) => status)).toEqual(["terminated", "terminated", "terminated"]);
    expect((await engine.stats()).totals.terminated).toBe(1);
    expect(await codeOf(engine.sandboxes.get("one"))).toBe("sandbox_not_found");
  });
});

describe("a sandbox that breaks", () => {
  it("fails with the cause when its instance dies, ends its execs as lost, and can be deleted", async () => {
    const { create, driver, engine } = await testEngine();
    const { sandbox } = await create("one");
    const { exec } = await engine.execs.start("one", { argv: ["sleep"] }, { signal });
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    expect((await engine.sandboxes.get("one")).cause?.code).toBe("keeper_died");
    const lost = await engine.execs.wait(exec.id, { waitMs: 10_000, signal });
    expect(lost).toMatchObject({ status: "lost", dispatched: "yes", truncated: true });
    expect(lost.stdout).toBe("");
    expect(await codeOf(engine.execs.start("one", { argv: ["x"] }, { signal }))).toBe("sandbox_failed");
    expect(driver.directories.size).toBe(1);
    expect((await remove(engine, "one")).status).toBe("terminated");
    expect(driver.directories.size).toBe(0);
  });

  it.each(["blocks", "inodes"] as const)(
    "serves on a disk without free %s, so that it can be emptied; calls that need space report the full disk",
    async (what) => {
      const { create, driver, engine } = await testEngine();
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

  it("does not become ready for the first time on a full disk", async () => {
    const { create, driver } = await testEngine();
    driver.faults.connect = async () => {
      for (const instance of driver.instances.values()) instance.full = "inodes";
    };
    expect(await codeOf(create("one"))).toBe("launch_failed");
  });

  it("is degraded while its root is unmounted, refuses calls with the cause, and recovers by itself", async () => {
    const { create, driver, engine } = await testEngine();
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

  it("is not reported as dead while it can't be observed", async () => {
    const { create, driver, engine } = await testEngine();
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

  it("are followed, not run again, if the same id is started twice", async () => {
    const { create, driver, engine } = await testEngine();
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

  it("run once although the link breaks before or after the keeper received the start", async () => {
    const { create, driver, engine } = await testEngine();
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

  it("of a stopped server that reached the keeper are not reported as refused if their next start is refused", async () => {
    const { create, driver, engine, restart } = await testEngine({ execStartDeadlineMs: 100 });
    await create("one");
    driver.faults.start = never;
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    await engine.stop();
    // The keeper has the exec, as if the first start had arrived meanwhile, and refuses the second start.
    driver.faults = {
      startAnswer: async () => {
        driver.faults = {};
        throw new KeeperRefusal("system", "resource temporarily unavailable", "EAGAIN");
      },
    };
    const next = await restart();
    await eventually(async () => expect((await next.execs.get("a")).status).toBe("running"));
  });

  it("of a stopped server are found by the next one: running ones are followed, ended ones have their real exit code", async () => {
    const { create, driver, engine, restart } = await testEngine();
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

  it("are cancelled when their sandbox is deleted", async () => {
    const { create, engine } = await testEngine();
    await create("one");
    const { exec } = await engine.execs.start("one", { argv: ["sleep"] }, { signal });
    await remove(engine, "one");
    expect(await engine.execs.get(exec.id)).toMatchObject({
      status: "cancelled",
      cause: { code: "sandbox_deleted" },
    });
  });

  it("keep their outcome although the store fails at first", async () => {
    const { create, engine, store } = await testEngine();
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

  it("of a caller that disconnected while held are not dispatched", async () => {
    const { create, driver, engine } = await testEngine();
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

describe("an orphan", () => {
  it("is removed once it was seen twice, at least the grace period apart", async () => {
    const { driver, engine } = await testEngine({ orphanGraceMs: 150 });
    const stray = systemIds.sandbox();
    driver.directories.add(stray);
    await eventually(() => expect(driver.directories.has(stray)).toBe(false), { timeout: 5_000 });
    const told = async () =>
      (await engine.events({ limit: 100, types: ["orphan.found", "orphan.removed"] })).items;
    await eventually(async () => expect(await told()).toHaveLength(2), { timeout: 5_000 });
    const items = await told();
    expect(items.map(({ type }) => type)).toEqual(["orphan.found", "orphan.removed"]);
    const [found, removed] = items.map(({ at }) => Date.parse(at));
    // The first event is dated a moment after the sighting that it reports.
    expect((removed ?? 0) - (found ?? 0)).toBeGreaterThan(100);
    expect((await engine.stats()).orphans).toBe(0);
  });
});

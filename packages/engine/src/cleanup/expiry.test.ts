import { HoldfastError, type SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { Commit } from "../ports/index.ts";
import { start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, signal, testEngine } from "../testing/test-engine.ts";

/** Sweeps and maintenance do not run within a test: only timers do. */
const TIMERS_ONLY = { maintainEveryMs: 600_000, sweepAgeMs: 600_000, sweepPressureMs: 600_000 };
const SHORT = { ttlMs: 500 };

type World = Awaited<ReturnType<typeof testEngine>>;

const createWith = ({ engine }: World, name: string, lifecycle: object) =>
  engine.sandboxes.create({ name, lifecycle }, { wait: false, signal });

/** Makes the store refuse deletes; the returned function ends that. */
function refuseDeletes({ store }: World): () => void {
  const commit = store.commit.bind(store);
  store.commit = (given: Commit) =>
    given.events?.some(({ type }) => type === "sandbox.deleting")
      ? Promise.reject(new Error("the disk is gone"))
      : commit(given);
  return () => {
    store.commit = commit;
  };
}

describe("a sandbox past the end of its TTL", () => {
  it("is deleted by its timer, and found by id as terminated", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { sandbox } = await createWith(all, "box", SHORT);
    const cause = { code: "expired" };
    await eventually(async () =>
      expect(await all.engine.sandboxes.get(sandbox.id)).toMatchObject({ status: "terminated", cause }),
    );
    expect(await codeOf(all.engine.sandboxes.get("box"))).toBe("sandbox_not_found");
    await expect(start(all.engine, sandbox.id, ["true"])).rejects.toMatchObject({
      code: "sandbox_gone",
      message: "The sandbox has reached the end of its TTL.",
    });
    const { items } = await all.engine.events({ ref: sandbox.id, limit: 1000 });
    expect(items.find(({ type }) => type === "sandbox.deleting")?.data).toMatchObject({ cause });
  });

  it("keeps its cause, and refuses calls as gone, while its instance is being stopped", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { engine, driver } = all;
    driver.faults.stop = never;
    const { sandbox } = await createWith(all, "box", SHORT);
    await eventually(async () => {
      const { items } = await engine.events({ ref: sandbox.id, limit: 1000 });
      expect(items.map(({ type }) => type)).toContain("sandbox.deleting");
    });
    const expired = { status: "stopping", cause: { code: "expired" } };
    expect(await engine.sandboxes.get(sandbox.id)).toMatchObject(expired);
    expect(await codeOf(start(engine, sandbox.id, ["true"]))).toBe("sandbox_gone");
    expect(await codeOf(engine.sandboxes.update(sandbox.id, { labels: { a: "b" } }))).toBe("sandbox_gone");
  });

  it("is deleted by the next server if none ran at its end", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { sandbox } = await createWith(all, "box", SHORT);
    await all.engine.stop();
    const next = await all.restart();
    await eventually(async () =>
      expect(await next.sandboxes.get(sandbox.id)).toMatchObject({ status: "terminated" }),
    );
  });

  it("is not ready, serves no call and is found by id only, even before its delete is recorded", async () => {
    const all = await testEngine({ ...TIMERS_ONLY, maintainEveryMs: 20 });
    const { engine } = all;
    const allow = refuseDeletes(all);
    const { sandbox } = await createWith(all, "box", SHORT);
    await eventually(async () =>
      expect(await engine.sandboxes.get(sandbox.id)).toMatchObject({
        status: "stopping",
        cause: { code: "expired" },
      }),
    );
    expect(await codeOf(start(engine, sandbox.id, ["true"]))).toBe("sandbox_gone");
    expect(await codeOf(engine.sandboxes.update(sandbox.id, { labels: { a: "b" } }))).toBe("sandbox_gone");
    expect(await codeOf(engine.sandboxes.get("box"))).toBe("sandbox_not_found");
    allow();
    await eventually(async () =>
      expect(await engine.sandboxes.get(sandbox.id)).toMatchObject({ status: "terminated" }),
    );
  });

  it("does not hold its name while its instance is still being stopped", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { engine, driver } = all;
    driver.faults.stop = never;
    const { sandbox } = await createWith(all, "box", SHORT);
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("stopping"));
    const again = await engine.sandboxes.create({ name: "box", ifExists: "return" }, { wait: true, signal });
    expect(again).toMatchObject({ existed: false, sandbox: { status: "ready" } });
    expect(again.sandbox.id).not.toBe(sandbox.id);
    driver.faults = {};
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("terminated"));
    expect((await engine.sandboxes.get("box")).id).toBe(again.sandbox.id);
  });

  it("lives on if its TTL was extended before its end", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { sandbox } = await createWith(all, "box", { ttlMs: 3_000 });
    await all.engine.sandboxes.update("box", { lifecycle: { ttlMs: 600_000 } });
    await eventually(() => expect(Date.now()).toBeGreaterThan(Date.parse(sandbox.createdAt) + 3_200));
    expect((await all.engine.sandboxes.get("box")).status).toBe("ready");
    await all.engine.sandboxes.update("box", { lifecycle: { ttlMs: 3_500 } });
    await eventually(async () =>
      expect((await all.engine.sandboxes.get(sandbox.id)).status).toBe("terminated"),
    );
  });

  it("is deleted for idleness when the last command has ended for that long", async () => {
    const all = await testEngine({ ...TIMERS_ONLY, maintainEveryMs: 30 });
    const { engine } = all;
    const { sandbox } = await all.create("box");
    const exec = await start(engine, "box", ["sleep"]);
    await engine.sandboxes.update("box", { lifecycle: { idleTtlMs: 400 } });
    await new Promise((resolve) => setTimeout(resolve, 900));
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    await engine.execs.cancel(exec.id, signal);
    await eventually(async () =>
      expect(await engine.sandboxes.get(sandbox.id)).toMatchObject({
        status: "terminated",
        cause: { code: "idle_expired" },
      }),
    );
    expect(await codeOf(start(engine, sandbox.id, ["true"]))).toBe("sandbox_gone");
  });

  it("that failed is not restarted", async () => {
    const all = await testEngine(TIMERS_ONLY);
    const { engine, driver } = all;
    const { sandbox } = await all.create("box");
    for (const instance of driver.instances.values()) instance.die();
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).status).toBe("failed"));
    const { expiresAt } = await engine.sandboxes.update(sandbox.id, { lifecycle: { expiresInMs: 1 } });
    await eventually(async () => expect((await engine.sandboxes.get(sandbox.id)).lease.state).toBe("none"));
    await eventually(() => expect(Date.now()).toBeGreaterThan(Date.parse(expiresAt ?? "")));
    const error = await engine.sandboxes.restart(sandbox.id, signal).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(HoldfastError);
    expect(error).toMatchObject({ code: "wrong_state" });
  });
});

it("a sandbox whose removal hangs does not keep the sweeps from removing others", async () => {
  const slow = { stopAttemptMs: 600_000, deleteWaitMs: 600_000 };
  const all = await testEngine({ ...TIMERS_ONLY, ...slow, maintainEveryMs: 50, failedKeptMs: 300 });
  const { engine, driver } = all;
  let removals = 0;
  driver.faults.destroy = () => (++removals === 1 ? never() : Promise.resolve());
  const statusOf = async (id: string) => (await engine.sandboxes.get(id)).status;
  // The end of a failed sandbox has no timer: only the sweeps remove it.
  const fail = async (name: string) => {
    const { sandbox } = await all.create(name);
    driver.instances.get(sandbox.id as SandboxId)?.die();
    return sandbox.id;
  };
  const hanging = await fail("hanging");
  await eventually(() => expect(removals).toBe(1));
  const other = await fail("other");
  await eventually(async () => expect(await statusOf(other)).toBe("terminated"));
  expect(await statusOf(hanging)).toBe("stopping");
});

import { expect, it } from "vitest";
import { countWaiters } from "../testing/leak-counts.ts";
import { start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

/** Retries follow each other at once. */
const EAGER = {
  ...{ stopBackoffMs: [0], exhaustedRecheckMs: 0, standbyRetryMs: 0, standbyRetryMaxMs: 0 },
  ...{ maintainEveryMs: 1e9, observeEveryMs: 1e9, sweepStaleMs: 1e9, sweepAgeMs: 1e9, sweepPressureMs: 1e9 },
  ...{ orphanCheckEveryMs: 1e9, quietWaitMs: 1 },
};
const ATTEMPTS = 1_000;
/** Listeners and timers of attempts in progress; the count of attempts does not matter. */
const SLACK = 10;

type World = Awaited<ReturnType<typeof testEngine>>;
const refuse = () => Promise.reject(new Error("no luck"));

/** Work that fails each time. It returns when it has failed `count` times. */
const FAILING: Record<string, (all: World) => Promise<(count: number) => Promise<void>>> = {
  "a removal of files": async (all) => {
    let failures = 0;
    all.driver.faults.destroy = () => {
      failures += 1;
      return refuse();
    };
    await remove(all.engine, "box", 0);
    return (count) => {
      const goal = failures + count;
      return eventually(() => expect(failures).toBeGreaterThan(goal), { timeout: 60_000 });
    };
  },
  "a stop": async (all) => {
    let failures = 0;
    all.driver.faults.stop = () => {
      failures += 1;
      return refuse();
    };
    await remove(all.engine, "box", 0);
    return (count) => {
      const goal = failures + count;
      return eventually(() => expect(failures).toBeGreaterThan(goal), { timeout: 60_000 });
    };
  },
  "a wake": async ({ engine, driver }) => {
    await engine.sandboxes.standby("box", signal);
    driver.faults.observe = () => ({ seen: "unknown", at: 0, why: "no luck" });
    return times(() => start(engine, "box", ["true"]), "wake_failed");
  },
  "a standby": async ({ engine, driver }) => {
    driver.faults.checkpoint = refuse;
    return times(() => engine.sandboxes.standby("box", signal), "standby_failed");
  },
  "a standby that is refused": async ({ engine }) => {
    const exec = await start(engine, "box", ["sleep"]);
    void engine.execs.wait(exec.id, { waitMs: 600_000, signal }).catch(() => undefined);
    return times(() => engine.sandboxes.standby("box", signal), "sandbox_busy");
  },
  "a pause": async ({ engine, driver }) => {
    driver.faults.freeze = refuse;
    return times(() => engine.sandboxes.pause("box", signal), "sandbox_degraded");
  },
  "a checkpoint": async ({ engine, driver }) => {
    driver.faults.save = refuse;
    return times(() => engine.checkpoints.create("box", {}, signal), "checkpoint_failed");
  },
  "a mount": async ({ engine, driver }) => {
    await engine.drives.create({ name: "data" }, { signal });
    driver.faults.mount = refuse;
    const input = { drive: "data", path: "/work/data" };
    return times(() => engine.mounts.mount("box", input, signal), "mount_failed");
  },
  "a connection to a port": async ({ engine, driver }) => {
    driver.faults.dial = refuse;
    const connect = () => engine.ports.connect("box", 80, signal);
    return async (count) => {
      for (let each = 0; each < count; each += 1) expect(await codeOf(connect())).not.toBe("fulfilled");
    };
  },
};

function times(work: () => Promise<unknown>, code: string) {
  return async (count: number) => {
    for (let each = 0; each < count; each += 1) expect(await codeOf(work())).toBe(code);
  };
}

it.each(Object.keys(FAILING))(
  "%s that fails a thousand times leaves no waiter behind",
  async (name) => {
    using waiters = countWaiters();
    const all = await testEngine(EAGER);
    await all.create("box");
    const fail = await FAILING[name]?.(all);
    await fail?.(20);
    const before = { listeners: waiters.listeners(), timers: waiters.timers() };
    await fail?.(ATTEMPTS);
    expect(waiters.listeners()).toBeLessThan(before.listeners + SLACK);
    expect(waiters.timers()).toBeLessThan(before.timers + SLACK);
  },
  120_000,
);

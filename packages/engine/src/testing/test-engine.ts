import { type HoldfastError, NUMBERS, type Numbers } from "@holdfast/contract";
import { type OpenedStore, openStore } from "@holdfast/store";
import { afterEach, vi } from "vitest";
import { createEngine } from "../engine.ts";
import { systemClock } from "../lib/clock.ts";
import { systemIds } from "../lib/ids.ts";
import type { EngineApi } from "../ports/api.ts";
import type { Log, Notifier } from "../ports/index.ts";
import { HostileDriver } from "./hostile-driver.ts";

const quiet = { debug() {}, info() {}, warn() {}, error() {}, child: () => quiet };
const QUICK: Numbers = {
  ...NUMBERS,
  observeEveryMs: 40,
  maintainEveryMs: 40,
  linkRetryMinMs: 1,
  linkRetryMaxMs: 20,
  linkWaitMs: 300,
  proofDeadlineMs: 500,
  createDeadlineMs: 2_000,
  stopBackoffMs: [20, 20],
  exhaustedRecheckMs: 100,
  stopAttemptMs: 500,
  diskReserveBytes: 1_000_000,
  memoryReserveBytes: 1_000_000,
  sweepStaleMs: 40,
  sweepAgeMs: 40,
  sweepPressureMs: 40,
  orphanGraceMs: 60,
  orphanCheckEveryMs: 30,
  driveCallMs: 500,
  driveUsageMs: 200,
  driveBackoffMs: [20, 100],
};
/** Waits with generous time limits, because the machine may be busy. */
export const eventually = <Result>(
  check: () => Result | Promise<Result>,
  options: { timeout?: number } = {},
) => vi.waitFor(check, { timeout: 15_000, ...options });
export const signal = new AbortController().signal;
export const never = () => new Promise<void>(() => undefined);

const engines: EngineApi[] = [];
const stores: OpenedStore[] = [];
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.stop();
  for (const store of stores.splice(0)) await store.close();
});

/** Creates the real engine and a real store, over a driver that can be made to fail. */
export async function testEngine(
  numbers: Partial<Numbers> = {},
  path = ":memory:",
  options: { notifier?: Notifier; log?: Log } = {},
) {
  const store = await openStore({ path, onUnreadable: () => undefined });
  stores.push(store);
  const driver = new HostileDriver();
  const boot = async () => {
    const ports = {
      installation: store.installation,
      clock: systemClock,
      ids: systemIds,
      log: options.log ?? quiet,
      store,
      driver,
      notifier: options.notifier ?? null,
    };
    const engine = createEngine(ports, { ...QUICK, ...numbers });
    engines.push(engine);
    await engine.start();
    return engine;
  };
  const engine = await boot();
  const create = (name?: string) => engine.sandboxes.create(name ? { name } : {}, { wait: true, signal });
  return { store, driver, engine, create, restart: boot };
}

export const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "fulfilled",
    (error: HoldfastError) => error.code,
  );
export const remove = (engine: EngineApi, ref: string, waitMs = 3_000) =>
  engine.sandboxes.remove(ref, { graceMs: 0, waitMs, signal });

/**
 * Benchmarks the periodic passes over all sandboxes: CPU time of one `observe`, of one `measure`, and of both, over
 * growing numbers of real idle sandboxes.
 *
 *   node bench/pass.ts [SANDBOXES...]
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  newInstallationId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import { createOciDriver } from "@holdfast/drivers/oci";
import { type Driver, type Log, requireCapability, systemClock } from "@holdfast/engine";
import { type Row, save, table } from "./report.ts";

const COUNTS = [50, 100, 200, 500];
const AT_ONCE = 4;
const LAUNCH_MS = 60_000;
const WARM_UP = 5;
const PASSES = 20;

const silent: Log = { debug() {}, info() {}, warn() {}, error() {}, child: () => silent };
const progress = (text: string) => process.stderr.write(`${text}\n`);
const soon = () => AbortSignal.timeout(LAUNCH_MS);

async function eachOf<Item>(items: readonly Item[], act: (item: Item) => Promise<unknown>): Promise<void> {
  const todo = items.values();
  const worker = async () => {
    for (const item of todo) await act(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

const launch = (driver: Driver, sandboxId: SandboxId) =>
  driver.launch(
    {
      sandboxId,
      name: sandboxId.replace("_", "-"),
      generation: 1,
      image: DEFAULT_IMAGE,
      resources: DEFAULT_RESOURCES,
      restart: false,
    },
    soon(),
  );

async function remove(driver: Driver, sandboxId: SandboxId): Promise<void> {
  await driver.stop(sandboxId, { graceMs: 0 }, soon());
  await driver.destroy(sandboxId, soon());
}

/** Returns the CPU time of one pass, over all threads of this process, in milliseconds. */
async function cpuOf(pass: () => Promise<unknown>): Promise<number> {
  for (let i = 0; i < WARM_UP; i += 1) await pass();
  const before = process.cpuUsage();
  for (let i = 0; i < PASSES; i += 1) await pass();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1_000 / PASSES;
}

async function passesOver(driver: Driver, ids: readonly SandboxId[], rows: Row[]): Promise<void> {
  const observe = () => driver.observe(ids, soon());
  const measure = () => requireCapability(driver, "outsideView").measure(ids, soon());
  const seen = [...(await observe()).values()];
  if (!seen.every((each) => each.seen === "present" && each.problems.length === 0))
    throw new Error("not every sandbox is healthy");
  if ((await measure()).size !== ids.length) throw new Error("not every sandbox was measured");
  const costs = {
    observe: await cpuOf(observe),
    measure: await cpuOf(measure),
    both: await cpuOf(async () => [await observe(), await measure()]),
  };
  for (const [what, value] of Object.entries(costs)) {
    rows.push({
      what: `${what}, ${ids.length} sandboxes: CPU of a pass`,
      who: "holdfast",
      value,
      unit: "ms",
    });
    const each = (value * 1_000) / ids.length;
    rows.push({
      what: `${what}, ${ids.length} sandboxes: CPU per sandbox`,
      who: "holdfast",
      value: each,
      unit: "µs",
    });
  }
}

/** Launches sandboxes up to each count in turn, measures there, and removes all of them at the end. */
export async function passCost(counts: readonly number[], rows: Row[]): Promise<void> {
  const stateDir = mkdtempSync(join(tmpdir(), "holdfast-pass-"));
  const options = { stateDir, installation: newInstallationId(), log: silent, clock: systemClock };
  const { driver } = await createOciDriver(options);
  const ids: SandboxId[] = [];
  try {
    for (const count of counts) {
      progress(`passes over ${count} idle sandboxes`);
      const more = Array.from({ length: count - ids.length }, newSandboxId);
      ids.push(...more);
      await eachOf(more, (id) => launch(driver, id));
      await passesOver(driver, ids, rows);
    }
  } finally {
    await eachOf(ids, (id) => remove(driver, id));
    await driver.close();
    rmSync(stateDir, { recursive: true, force: true });
  }
}

if (import.meta.main) {
  const asked = process.argv.slice(2).map(Number);
  const rows: Row[] = [];
  await passCost(asked.length > 0 ? asked : COUNTS, rows);
  process.stdout.write(`\n${table(rows)}\n\n`);
  progress(`written to ${save(rows, { passes: PASSES }).replace(process.cwd(), ".")}`);
}

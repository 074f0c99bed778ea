import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { closeRun, currentRun, openRun, recordMounted } from "./run.ts";
import { findTraces } from "./run-leftovers.ts";

/** Processes and mounts that are ending when the last test ends get this time to disappear. */
const SETTLE_MS = 10_000;
const POLL_MS = 250;

let directory = "";
let recorder: NodeJS.Timeout | undefined;

/**
 * The compile cache, shared by the processes of this run and later ones: loading the server's sources takes as much CPU
 * time as most tests, and the run starts hundreds of servers.
 */
const COMPILE_CACHE = fileURLToPath(new URL("../../node_modules/.cache/holdfast-test", import.meta.url));

export function setup(): void {
  process.env.NODE_COMPILE_CACHE = COMPILE_CACHE;
  directory = openRun();
  recorder = setInterval(() => recordMounted(directory), POLL_MS).unref();
}

/** Fails the run if its tests left anything behind, even if every test passed. */
export async function teardown(): Promise<void> {
  clearInterval(recorder);
  const left = await lasting();
  closeRun(directory);
  if (left.length === 0) return;
  process.exitCode = 1;
  console.error(
    `The tests left ${left.length} thing(s) behind:\n${left.map((line) => `  ${line}`).join("\n")}`,
  );
}

/** Returns the traces that remain after the time to settle. */
async function lasting(): Promise<string[]> {
  const deadline = Date.now() + SETTLE_MS;
  let left = findTraces(currentRun());
  while (left.size > 0 && Date.now() < deadline) {
    await sleep(POLL_MS);
    left = findTraces(currentRun());
  }
  return [...left.values()];
}

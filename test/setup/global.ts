import { setTimeout as sleep } from "node:timers/promises";
import { findServed } from "./served.ts";
import { findTraces, installationsIn, newTraces, type Traces, withoutThoseOf } from "./traces.ts";

/** What is on its way out when the last test ends has this long to be gone. */
const SETTLE_MS = 10_000;
const POLL_MS = 250;

let before: Traces = new Map();
/** Installations that were there before the run: a developer's own server goes on making sandboxes meanwhile. */
let bystanders: ReadonlySet<string> = new Set();

export async function setup(): Promise<void> {
  before = findTraces();
  bystanders = installationsIn(before).union(await findServed());
}

/** The run fails if the tests leave anything behind, whatever each of them says. */
export async function teardown(): Promise<void> {
  const left = await lasting(before);
  if (left.length === 0) return;
  process.exitCode = 1;
  console.error(
    `The tests left ${left.length} thing(s) behind:\n${left.map((line) => `  ${line}`).join("\n")}`,
  );
}

/** Only what is seen at every look is left behind; another's short-lived things are not. */
async function lasting(known: Traces): Promise<string[]> {
  const deadline = Date.now() + SETTLE_MS;
  let left = withoutThoseOf(bystanders, newTraces(known, findTraces()));
  while (left.size > 0 && Date.now() < deadline) {
    await sleep(POLL_MS);
    const seen = findTraces();
    left = new Map([...left].filter(([key]) => seen.has(key)));
  }
  return [...left.values()];
}

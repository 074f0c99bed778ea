/** Runs the schedules that it is given, in a thread of its own. */
import { parentPort, workerData } from "node:worker_threads";
import { installMutation } from "./mutations.ts";

export interface Order {
  from: number;
  count: number;
  steps: number;
  goOn: boolean;
}

// Most errors here are expected, and a stack costs more than what led to it. A failing seed is run again with stacks.
Error.stackTraceLimit = 0;

/** What a worker is given: a mistake to make, and where it says which seed it is at. */
export interface Given {
  mutation: string | null;
  at: Float64Array;
}

const { mutation, at } = workerData as Given;
if (mutation !== null) installMutation(mutation);
// Only now: what is imported from here on is the mutated engine.
const { Runner } = await import("./campaign.ts");
const runner = await Runner.open();
parentPort?.on("message", async (order: Order) => {
  const tally = await runner.runSeeds(order, (seed) => {
    at[0] = seed;
  });
  parentPort?.postMessage(tally);
});
parentPort?.postMessage(null);

/** Runs the given schedules in a thread of its own. */
import { parentPort, workerData } from "node:worker_threads";
import { installMutation } from "./mutations.ts";

export interface Order {
  from: number;
  count: number;
  steps: number;
  continueOnFailure: boolean;
}

// Stack traces are disabled in workers: most errors are expected there, and creating a stack trace costs more than the
// code that failed. A failing seed is run again with stack traces.
Error.stackTraceLimit = 0;

/** Parameters of a worker: the mutation to install, and the array in which the worker reports its current seed. */
export interface Given {
  mutation: string | null;
  at: Float64Array;
}

const { mutation, at } = workerData as Given;
if (mutation !== null) installMutation(mutation);
// The modules that import the engine are imported last, because a mutation must be installed before the engine is
// imported.
const { Runner } = await import("./simulation/campaign.ts");
const runner = await Runner.open();
parentPort?.on("message", async (order: Order) => {
  const tally = await runner.runSeeds(order, (seed) => {
    at[0] = seed;
  });
  parentPort?.postMessage(tally);
});
parentPort?.postMessage(null);

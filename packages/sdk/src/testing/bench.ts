import { afterEach, beforeEach } from "vitest";
import { type ExecRun, Holdfast, HoldfastError, type Sandbox } from "../index.ts";
import { anExec, aSandbox, FaultyServer, json } from "./faulty-server.ts";

/** Outages in tests are short. */
const OUTAGE_MS = 3_000;

/** A client and a faulty server. Each test gets new ones. */
interface Bench {
  server: FaultyServer;
  holdfast: Holdfast;
  /** Returns a handle to a sandbox, and clears the recorded requests. */
  box(): Promise<Sandbox>;
  run(): Promise<ExecRun>;
}

export function useBench(): Bench {
  const bench = { box, run } as Bench;
  beforeEach(async () => {
    bench.server = await FaultyServer.start();
    bench.holdfast = new Holdfast({ url: bench.server.url, apiKey: "hf_test", outageMs: OUTAGE_MS });
  });
  afterEach(async () => {
    bench.holdfast.close();
    await bench.server.stop();
  });

  async function box(): Promise<Sandbox> {
    bench.server.answer(json(200, aSandbox()));
    const found = await bench.holdfast.sandboxes.get("box");
    bench.server.seen.length = 0;
    return found;
  }

  async function run(): Promise<ExecRun> {
    const inside = await box();
    bench.server.answer(json(202, anExec({ status: "running", exitCode: null })));
    const started = await inside.execs.start("sleep 1");
    bench.server.seen.length = 0;
    return started;
  }
  return bench;
}

/** Returns the HoldfastError that the promise rejects with; any other outcome fails the test. */
export async function failure(promise: Promise<unknown>): Promise<HoldfastError> {
  const error = await promise.then(
    () => new Error("it did not fail"),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HoldfastError)) throw error;
  return error;
}

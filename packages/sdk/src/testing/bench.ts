import { afterEach, beforeEach } from "vitest";
import { type ExecRun, Holdfast, HoldfastError, type Sandbox } from "../index.ts";
import { anExec, aSandbox, FaultyServer, json } from "./faulty-server.ts";

/** Outages in tests are short. */
const OUTAGE_MS = 3_000;

/** A client and the server that fails it, fresh for every test. */
export interface Bench {
  server: FaultyServer;
  holdfast: Holdfast;
  /** A handle to a sandbox, with nothing seen yet. */
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

/** What the promise fails with; anything but one of our errors fails the test. */
export async function failure(promise: Promise<unknown>): Promise<HoldfastError> {
  const error = await promise.then(
    () => new Error("it did not fail"),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HoldfastError)) throw error;
  return error;
}

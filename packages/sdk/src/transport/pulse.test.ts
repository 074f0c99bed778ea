import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ConnectionError, Holdfast, HoldfastError } from "../index.ts";
import { anExec, aSandbox, chunk, FaultyServer, frames, greeting, json } from "../testing/faulty-server.ts";
import { Pulse } from "./pulse.ts";

/** Shorter limits are raised to this one. */
const OUTAGE_MS = 5_000;

describe("a server that accepts connections and never responds", () => {
  let server: FaultyServer;
  beforeEach(async () => {
    server = await FaultyServer.start();
  });
  afterEach(() => server.stop());

  it.each([
    ["node:http", undefined],
    ["fetch", globalThis.fetch],
  ])(
    "ends every call within outageMs, over %s",
    async (_name, fetch) => {
      const client = () => new Holdfast({ url: server.url, apiKey: "x", outageMs: OUTAGE_MS, fetch });
      const used = client();
      server.answer(json(200, aSandbox()));
      const box = await used.sandboxes.get("box");
      server.answer(json(202, anExec({ status: "running", exitCode: null })));
      const run = await box.execs.start("sleep 60");
      server.answer(frames([greeting(), chunk("stdout", 0, "x")], "silence"));
      const output = run.output()[Symbol.asyncIterator]();
      await output.next();

      server.isAlive = false;
      server.answer(() => {});
      const startedAt = performance.now();
      const calls: Record<string, Promise<unknown>> = {
        "of a new client": client().stats(),
        "that is idempotent": box.refresh(),
        "that is not idempotent": run.signal("SIGINT"),
        "that waits for minutes": used.images.import("i", new Uint8Array(10)),
        "that creates": used.sandboxes.create(),
        "that deletes": box.delete(),
        "that runs a command": box.exec("true"),
        "that waits for a command": run.result(),
        "that sends a body": box.files.write("/tmp/a", Buffer.alloc(10)),
        "that reaches a port": box.port(80).fetch("/"),
        "that sends a body to a port": box.port(80).fetch("/", { method: "POST", body: "x" }),
        "that reads a file": box.files.readText("/tmp/a"),
        "that reads output": output.next(),
        "that follows events": used.events.follow()[Symbol.asyncIterator]().next(),
      };
      const ends = Object.entries(calls).map(async ([name, call]) => {
        const error = await call.then(
          () => null,
          (thrown: unknown) => thrown,
        );
        return { name, error, tookMs: performance.now() - startedAt };
      });
      for (const { name, error, tookMs } of await Promise.all(ends)) {
        expect(error, name).toBeInstanceOf(HoldfastError);
        const cause = error instanceof ConnectionError ? error : (error as HoldfastError).cause;
        expect(cause, name).toMatchObject({ code: "timeout" });
        // Half of the time again is for a busy machine; a second silence would take twice the time.
        expect(tookMs, name).toBeLessThan(1.5 * OUTAGE_MS);
      }
      used.close();
    },
    30_000,
  );

  it("differs from one that takes long for a single call, which is answered", async () => {
    const client = new Holdfast({ url: server.url, apiKey: "x", outageMs: OUTAGE_MS, timeoutMs: 20_000 });
    server.answer((request, response) => {
      setTimeout(() => void json(200, { late: true })(request, response), 1.5 * OUTAGE_MS);
    });
    expect(await client.stats()).toEqual({ late: true });
    expect(server.seen).toHaveLength(1);
    client.close();
  }, 30_000);
});

it("a program that blocks its own event loop does not count that as silence of the server", async () => {
  const pulse = new Pulse(OUTAGE_MS, () => new Promise(() => {}));
  let given = 0;
  const watch = pulse.watch(() => {
    given += 1;
  });
  await new Promise((resolve) => setTimeout(resolve, 300));
  for (const end = performance.now() + 2 * OUTAGE_MS; performance.now() < end; );
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(given).toBe(0);
  expect(pulse.silentMs).toBeLessThan(OUTAGE_MS);
  watch.end();
}, 30_000);

import { setTimeout as sleep } from "node:timers/promises";
import { expect, it, onTestFinished } from "vitest";
import { FaultyWorld } from "../support/faults/faulty-world.ts";
import { expectQuietExecsToEnd } from "../support/faults/silent-execs.ts";

const SILENCE_MS = 190_000;

/**
 * Runs with the default numbers, in real time. It takes minutes and hardly any CPU, and therefore starts first and runs
 * beside the other files.
 */
it("execs without output for more than three minutes end with their real exit codes, whatever happens to the connections", async () => {
  const world = await FaultyWorld.make({ boxes: 2, seed: 5 });
  onTestFinished(() => world[Symbol.asyncDispose]());
  const faults = async ({ http, keepers, proxies }: FaultyWorld) => {
    await sleep(10_000);
    for (const keeper of keepers) keeper.set("both", { halfOpen: true });
    await sleep(25_000);
    world.heal();
    await sleep(5_000);
    http.set("both", { halfOpen: true });
    await sleep(20_000);
    world.heal();
    for (let i = 0; i < 10; i += 1) {
      for (const proxy of proxies) proxy.reset("both", 0.7);
      await sleep(2_000);
    }
    await sleep(SILENCE_MS - 95_000);
    // The execs end while nothing from the keeper or the server is delivered.
    for (const proxy of proxies) proxy.set("down", { halfOpen: true });
    await sleep(18_000);
    world.heal();
  };
  const startedAt = performance.now();
  await expectQuietExecsToEnd(world, { quietMs: (i) => SILENCE_MS + i * 100, timeoutMs: 30_000, faults });
  expect(performance.now() - startedAt).toBeGreaterThan(SILENCE_MS);
}, 480_000);

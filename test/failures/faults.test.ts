import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { FAST, FaultyWorld } from "./support/faulty-world.ts";
import { atRest, descriptorKinds } from "./support/observe.ts";
import { expectQuietExecsToEnd, QUIET_EXECS } from "./support/quiet-execs.ts";

/** Faults on both ways, one after the other, while the execs begin, run and end. */
async function bursts(world: FaultyWorld): Promise<void> {
  const { http, keepers, proxies } = world;
  await sleep(1_000);
  for (let i = 0; i < 5; i += 1) {
    for (const proxy of proxies) proxy.reset();
    await sleep(200);
  }
  for (const keeper of keepers) keeper.set("both", { halfOpen: true });
  await sleep(2_000);
  world.heal();
  http.set("both", { halfOpen: true });
  await sleep(1_500);
  world.heal();
  for (const proxy of proxies) proxy.set("down", { halfOpen: true });
  await sleep(1_500);
  world.heal();
  for (const proxy of proxies) proxy.cut();
  await Promise.all(proxies.map((proxy) => proxy.refuse(true)));
  await sleep(1_000);
  await Promise.all(proxies.map((proxy) => proxy.refuse(false)));
  for (let i = 0; i < 5; i += 1) await burst(world);
}

/** One way is silent, all are reset again and again, then there is a moment of peace. */
async function burst({ http, proxies }: FaultyWorld): Promise<void> {
  const silent = http.random.pick(proxies);
  silent.set("both", { halfOpen: true });
  for (let i = 0; i < 5; i += 1) {
    for (const proxy of proxies) proxy.reset("both", 0.5);
    await sleep(150);
  }
  silent.heal();
  await sleep(1_500);
}

describe("quiet execs under bursts of resets and of silence, on the way to the server and on that to the keeper", () => {
  it("end with their real codes, run once, and leave no wedged connection behind", async () => {
    const world = await FaultyWorld.make({ boxes: 2, seed: 11, numbers: FAST });
    onTestFinished(() => world[Symbol.asyncDispose]());
    const { server } = world;
    const look = () => [server.pid, ...world.keeperPids()].map(descriptorKinds);
    const warm = server.client();
    for (const box of await world.boxes(warm)) await box.exec("true");
    warm.close();
    const before = await atRest(look, { quietMs: FAST.httpKeepAliveMs + 1_000 });

    const quietMs = (i: number) => 6_000 + i * 600;
    await expectQuietExecsToEnd(world, { quietMs, timeoutMs: 1_000, faults: bursts });

    // Every half minute the server looks for connections on which no request was ever finished.
    await vi.waitFor(() => expect(look()).toEqual(before), { timeout: 70_000, interval: 250 });
    const check = server.client();
    const { execsStarted, execsEnded } = (await check.stats()).totals;
    check.close();
    expect([execsStarted, execsEnded]).toEqual([QUIET_EXECS + 4, QUIET_EXECS + 4]);
  }, 180_000);
});

import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { FAST, FaultyWorld } from "../support/faults/faulty-world.ts";
import { expectQuietExecsToEnd, QUIET_EXECS } from "../support/faults/silent-execs.ts";
import { atRest, descriptorKinds } from "../support/server/observe.ts";

/** Faults on both connections, one after the other, while the execs start, run and end. */
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

/** One connection is silent while all are reset repeatedly; then there are no faults for a moment. */
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

describe("quiet execs under bursts of resets and silence, between client and server and between server and keeper,", () => {
  it("end with their real exit codes, run once, and leave no stuck connection behind", async () => {
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

    // The server looks every half minute for connections on which no request was ever finished.
    await vi.waitFor(() => expect(look()).toEqual(before), { timeout: 70_000, interval: 250 });
    const check = server.client();
    const { execsStarted, execsEnded } = (await check.stats()).totals;
    check.close();
    expect([execsStarted, execsEnded]).toEqual([QUIET_EXECS + 4, QUIET_EXECS + 4]);
  }, 180_000);
});

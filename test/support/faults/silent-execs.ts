import type { Sandbox } from "@holdfast/sdk";
import { expect, vi } from "vitest";
import type { FaultyWorld } from "./faulty-world.ts";
import { keeperLinks } from "./observe.ts";

export const QUIET_EXECS = 24;

interface Plan {
  /** How long the exec of that number says nothing. */
  quietMs: (i: number) => number;
  /** How long the callers wait for the answer to one request. */
  timeoutMs: number;
  /** What goes wrong meanwhile. */
  faults: (world: FaultyWorld) => Promise<void>;
}

/** Says nothing; leaves a line each time it runs and one each time it ends. */
const quiet = (i: number, ms: number) =>
  `echo ran >> /tmp/ran-${i}; sleep ${ms / 1_000}; echo ended >> /tmp/ran-${i}; exit ${i + 1}`;

/** Each in its own way: waited for in one call, started and waited for, or followed by its stream. */
async function exitCode(box: Sandbox, i: number, ms: number): Promise<number | null> {
  if (i % 3 === 0) return (await box.exec(quiet(i, ms))).exitCode;
  const run = await box.execs.start(quiet(i, ms));
  if (i % 3 === 1) return (await run.result()).exitCode;
  for await (const chunk of run.output()) throw new Error(`it said ${chunk.text}`);
  return run.info.exitCode;
}

/** Runs them while things go wrong, and expects that nobody could tell from their outcomes. */
export async function expectQuietExecsToEnd(world: FaultyWorld, plan: Plan): Promise<void> {
  const client = world.client({ timeoutMs: plan.timeoutMs });
  const boxes = await world.boxes(client);
  const boxOf = (i: number) => boxes[i % boxes.length] as Sandbox;
  const numbers = Array.from({ length: QUIET_EXECS }, (_, i) => i);
  const running = Promise.all(numbers.map((i) => exitCode(boxOf(i), i, plan.quietMs(i))));
  const [codes] = await Promise.all([running, plan.faults(world)]);
  client.close();
  expect(codes).toEqual(numbers.map((i) => i + 1));

  const direct = world.server.client();
  for (const i of numbers) {
    const { files } = await direct.sandboxes.get(boxOf(i).id);
    expect(await files.readText(`/tmp/ran-${i}`)).toBe("ran\nended\n");
  }
  for (const { id } of boxes)
    expect((await (await direct.sandboxes.get(id)).exec("echo at once")).stdout).toBe("at once\n");
  expect((await direct.stats()).execsRunning).toBe(0);
  expect((await direct.stats()).links).toMatchObject({ up: boxes.length, down: 0 });
  direct.close();
  // The keeper gives up a link that has been silent for 15 s.
  await vi.waitFor(() => expect(world.keeperPids().map(keeperLinks)).toEqual(boxes.map(() => 1)), {
    timeout: 30_000,
    interval: 250,
  });
  for (const { tally } of world.proxies) expect(tally.up.swallowed + tally.down.swallowed).toBeGreaterThan(0);
}

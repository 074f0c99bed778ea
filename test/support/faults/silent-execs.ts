import type { Sandbox } from "@holdfast/sdk";
import { expect, vi } from "vitest";
import { keeperLinks } from "../server/observe.ts";
import type { FaultyWorld } from "./faulty-world.ts";

export const QUIET_EXECS = 24;

interface Plan {
  /** How long the exec with this number prints nothing. */
  quietMs: (i: number) => number;
  /** How long callers wait for the response to one request. */
  timeoutMs: number;
  /** Injects faults while the execs run. */
  faults: (world: FaultyWorld) => Promise<void>;
}

/** A command that prints nothing, and appends a line to a file when it starts and when it ends. */
const quiet = (i: number, ms: number) =>
  `echo ran >> /tmp/ran-${i}; sleep ${ms / 1_000}; echo ended >> /tmp/ran-${i}; exit ${i + 1}`;

/** Runs an exec in one of three ways, in turn: one waiting call, start and wait, or following the output stream. */
async function exitCode(box: Sandbox, i: number, ms: number): Promise<number | null> {
  if (i % 3 === 0) return (await box.exec(quiet(i, ms))).exitCode;
  const run = await box.execs.start(quiet(i, ms));
  if (i % 3 === 1) return (await run.result()).exitCode;
  for await (const chunk of run.output()) throw new Error(`it said ${chunk.text}`);
  return run.info.exitCode;
}

/** Runs the execs during the faults, and expects outcomes as if there were none. */
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

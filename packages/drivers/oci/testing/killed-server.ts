import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";
import type { Driver } from "@holdfast/engine";
import { expect } from "vitest";
import type { TestMachine } from "./testing.ts";

const module = (name: string): string => JSON.stringify(pathToFileURL(`${import.meta.dirname}/${name}`).href);
const PROGRAM = `
  import { writeSync } from "node:fs";
  import { systemClock } from "@holdfast/engine";
  import { createOciDriver } from ${module("create.ts")};
  import { silent } from ${module("testing.ts")};
  const { stateDir, installation, verb, order } = JSON.parse(process.argv[1]);
  const { driver } = await createOciDriver({ stateDir, installation, log: silent, clock: systemClock });
  const onStep = (step) => writeSync(1, step + "\\n");
  onStep("begun");
  await driver[verb]({ ...order, onStep }, AbortSignal.timeout(30_000));
  onStep("done");
  setInterval(() => {}, 1_000);
`;

/** Has a process of its own do something to a sandbox, and kills it so long after it began the step. */
export async function killedServer(
  { stateDir, installation }: TestMachine,
  verb: "launch" | "checkpoint" | "restore",
  order: Parameters<Driver[typeof verb]>[0],
  { step = "begun", afterMs }: { step?: string; afterMs: number },
): Promise<void> {
  const what = JSON.stringify({ stateDir, installation, verb, order });
  const server = spawn(process.execPath, ["--input-type=module", "-e", PROGRAM, what], {
    cwd: import.meta.dirname,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  let said = "";
  server.stdout.on("data", (chunk) => {
    said += String(chunk);
  });
  await expect.poll(() => said, { timeout: 30_000, interval: 1 }).toContain(step);
  await new Promise((resolve) => setTimeout(resolve, afterMs));
  server.kill("SIGKILL");
  await ended;
}

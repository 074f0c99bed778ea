import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";
import { expect } from "vitest";
import type { OciDriver } from "../driver.ts";
import type { TestMachine } from "./test-machine.ts";

const module = (name: string): string => JSON.stringify(pathToFileURL(`${import.meta.dirname}/${name}`).href);
const PROGRAM = `
  import { writeSync } from "node:fs";
  import { systemClock } from "@holdfast/engine";
  import { createOciDriver } from ${module("../open-driver.ts")};
  import { silent } from ${module("test-machine.ts")};
  const { stateDir, installation, verb, order } = JSON.parse(process.argv[1]);
  const { driver } = await createOciDriver({ stateDir, installation, log: silent, clock: systemClock });
  const onStep = (step) => writeSync(1, step + "\\n");
  onStep("begun");
  await driver[verb]({ ...order, onStep }, AbortSignal.timeout(30_000));
  onStep("done");
  setInterval(() => {}, 1_000);
`;

/**
 * Runs one driver method on a sandbox in a separate process, and kills that process `afterMs` milliseconds after the
 * given step of the method began.
 */
export async function killedServer(
  { stateDir, installation }: TestMachine,
  verb: "launch" | "checkpoint" | "restore",
  order: Parameters<OciDriver[typeof verb]>[0],
  { step = "begun", afterMs }: { step?: string; afterMs: number },
): Promise<void> {
  const request = JSON.stringify({ stateDir, installation, verb, order });
  const server = spawn(process.execPath, ["--input-type=module", "-e", PROGRAM, request], {
    cwd: import.meta.dirname,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  let output = "";
  server.stdout.on("data", (chunk) => {
    output += String(chunk);
  });
  await expect.poll(() => output, { timeout: 30_000, interval: 1 }).toContain(step);
  await new Promise((resolve) => setTimeout(resolve, afterMs));
  server.kill("SIGKILL");
  await ended;
}

import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId, newSandboxId, type SandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Cgroups, readHierarchies } from "./cgroup.ts";
import { type CriuCall, runCriu } from "./criu-run.ts";
import { layoutOf } from "./layout.ts";
import { killSpawners } from "./testing.ts";

const soon = () => AbortSignal.timeout(30_000);
const installation = newInstallationId();
const cgroups = new Cgroups(readHierarchies(), installation, systemClock);
let stateDir: string;
let sandboxId: SandboxId;

beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), "holdfast-criu-"));
  sandboxId = newSandboxId();
  mkdirSync(layoutOf(stateDir, installation).sandbox(sandboxId).criu, { recursive: true });
});
afterEach(async () => {
  await cgroups.remove(sandboxId, soon());
  cgroups.removeParent();
  rmSync(stateDir, { recursive: true });
});

/** A program in CRIU's place, which writes to the log as its second argument says. */
function call(
  script: string,
  deadlineMs = 30_000,
  signal = soon(),
  more: Pick<CriuCall, "builds"> = {},
): Promise<void> {
  const layout = layoutOf(stateDir, installation);
  const binary = join(stateDir, "pretender");
  writeFileSync(binary, `#!/bin/sh\n${script}\n`);
  chmodSync(binary, 0o755);
  const criu = { path: binary, version: "0", runFile: undefined };
  const machine = {
    installation,
    layout,
    cgroups,
    porter: new Porter(),
    alias: null,
    criu,
    clock: systemClock,
  };
  const log = join(layout.sandbox(sandboxId).criu, "log");
  return runCriu(machine, { sandboxId, argv: [binary, log], deadlineMs, ...more }, signal);
}

const nothingRuns = () => expect(cgroups.existing(sandboxId)).toEqual([]);

test("CRIU that ends well is all there is to it", async () => {
  await call("exit 0");
  nothingRuns();
});

test("what it said last is told to the operator, and what that means to everyone", async () => {
  await expect(call('echo "Error: something else" > "$1"; exit 1')).rejects.toThrow(
    "CRIU ended with 1: Error: something else",
  );
  const failure = call('echo "Error (x.c:1): ctty inheritance detected" > "$1"; exit 1');
  await expect(failure).rejects.toMatchObject({
    message: expect.not.stringContaining("ctty"),
    detail: expect.stringContaining("ctty"),
  });
  nothingRuns();
});

test("one that never ends is killed at its deadline, with what it started", async () => {
  await expect(call("setsid sleep 1000 & sleep 1000", 200)).rejects.toMatchObject({
    message: "it took too long",
  });
  nothingRuns();
});

test("one that does not stop complaining is killed before its log fills the disk", async () => {
  await expect(call('while :; do head -c 100000 /dev/zero; done > "$1"')).rejects.toMatchObject({
    detail: expect.stringContaining("does not stop complaining"),
  });
  const log = join(layoutOf(stateDir, installation).sandbox(sandboxId).criu, "log");
  const size = existsSync(log) ? statSync(log).size : 0;
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(statSync(log).size).toBe(size);
  nothingRuns();
});

test("an abort ends it, and is what the caller hears", async () => {
  const abort = new AbortController();
  const running = call("sleep 1000", 30_000, abort.signal);
  await expect.poll(() => cgroups.helpers(sandboxId).length, { timeout: 10_000 }).toBeGreaterThan(0);
  abort.abort(new Error("enough"));
  await expect(running).rejects.toThrow("enough");
  nothingRuns();
});

test("one whose spawner is killed is ended all the same, in whatever session it is", async () => {
  const running = call("setsid sleep 1000 & sleep 1000");
  running.catch(() => {});
  await expect.poll(() => cgroups.helpers(sandboxId).length, { timeout: 10_000 }).toBe(3);
  killSpawners();
  await expect(running).rejects.toThrow("the spawner ended while criu was under way");
  nothingRuns();
});

/** The sandbox's own cgroup, as CRIU makes it. */
function makeOwn(): () => boolean {
  mkdirSync(cgroups.freezer(sandboxId), { recursive: true });
  return () => cgroups.isFrozen(sandboxId);
}

test("what it builds up is held when it is ended before its time", async () => {
  const isHeld = makeOwn();
  await expect(call("sleep 1000", 200, soon(), { builds: true })).rejects.toThrow("it took too long");
  expect(isHeld()).toBe(true);
  cgroups.unfreeze(sandboxId);
});

test("what it built up is its own when the time that it had is over", async () => {
  const isHeld = makeOwn();
  const signal = new AbortController();
  await call("exit 0", 200, signal.signal, { builds: true });
  await new Promise((resolve) => setTimeout(resolve, 400));
  signal.abort(new Error("no longer wanted"));
  expect(isHeld()).toBe(false);
});

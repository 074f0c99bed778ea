import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId, newSandboxId, type SandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { afterEach, beforeEach, expect, test } from "vitest";
import { layoutOf } from "../machine/layout.ts";
import { Cgroups } from "../proc/cgroup.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
import { killSpawners } from "../testing/test-machine.ts";
import { type CriuCall, runCriu } from "./run-criu.ts";

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

/** Runs a shell script in place of CRIU. The script gets the path of CRIU's log as its first argument. */
function call(
  script: string,
  deadlineMs = 30_000,
  signal = soon(),
  more: Pick<CriuCall, "builds"> = {},
): Promise<void> {
  const layout = layoutOf(stateDir, installation);
  const binary = join(stateDir, "fake-criu");
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

test("a CRIU that exits with 0 leaves no process", async () => {
  await call("exit 0");
  nothingRuns();
});

test("the end of CRIU's log is in the detail, and a known error is explained in the message", async () => {
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

test("a CRIU that never ends is killed at its deadline, with the processes that it started", async () => {
  await expect(call("setsid sleep 1000 & sleep 1000", 200)).rejects.toMatchObject({
    message: "it took too long",
  });
  nothingRuns();
});

test("a CRIU that logs without end is killed before its log fills the disk", async () => {
  await expect(call('while :; do head -c 100000 /dev/zero; done > "$1"')).rejects.toMatchObject({
    detail: expect.stringContaining("log grew too large"),
  });
  const log = join(layoutOf(stateDir, installation).sandbox(sandboxId).criu, "log");
  const size = existsSync(log) ? statSync(log).size : 0;
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(statSync(log).size).toBe(size);
  nothingRuns();
});

test("an abort ends CRIU, and the caller gets the abort's reason", async () => {
  const abort = new AbortController();
  const running = call("sleep 1000", 30_000, abort.signal);
  await expect.poll(() => cgroups.helpers(sandboxId).length, { timeout: 10_000 }).toBeGreaterThan(0);
  abort.abort(new Error("enough"));
  await expect(running).rejects.toThrow("enough");
  nothingRuns();
});

test("a CRIU whose spawner is killed is ended, whatever the session of its processes", async () => {
  const running = call("setsid sleep 1000 & sleep 1000");
  running.catch(() => {});
  await expect.poll(() => cgroups.helpers(sandboxId).length, { timeout: 10_000 }).toBe(3);
  killSpawners();
  await expect(running).rejects.toThrow("the spawner ended while criu was running");
  nothingRuns();
});

/** Creates the sandbox's own cgroup, as CRIU does. Returns a function that checks whether it is frozen. */
function makeOwn(): () => boolean {
  mkdirSync(cgroups.freezer(sandboxId), { recursive: true });
  return () => cgroups.isFrozen(sandboxId);
}

test("the sandbox is frozen when CRIU is killed during a restore", async () => {
  const isFrozen = makeOwn();
  await expect(call("sleep 1000", 200, soon(), { builds: true })).rejects.toThrow("it took too long");
  expect(isFrozen()).toBe(true);
  cgroups.requestThaw(sandboxId);
});

test("the sandbox is not frozen when CRIU's deadline or an abort comes after its end", async () => {
  const isFrozen = makeOwn();
  const signal = new AbortController();
  await call("exit 0", 2_000, signal.signal, { builds: true });
  await new Promise((resolve) => setTimeout(resolve, 2_300));
  signal.abort(new Error("no longer wanted"));
  expect(isFrozen()).toBe(false);
});

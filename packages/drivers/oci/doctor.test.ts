import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { checkHost } from "./doctor.ts";
import { testMachine } from "./testing.ts";

test("a host on which sandboxes run has everything that is required", async () => {
  const machine = await testMachine();
  const checks = await checkHost(machine.stateDir);
  await machine.dispose();
  expect(checks.filter(({ required, ok }) => required && !ok)).toEqual([]);
  expect(checks.find(({ name }) => name === "container runtime")?.found).toContain("was seen to start");
});

test("what is missing comes with what to do about it", async () => {
  for (const { ok, fix } of await checkHost()) expect(fix === "").toBe(ok);
});

/** Makes doctor see one CRIU only, a stand-in that says this. */
function onlyCriu(version: string): string {
  const directory = mkdtempSync(join(tmpdir(), "holdfast-criu-"));
  const path = join(directory, "criu");
  writeFileSync(path, `#!/bin/sh\necho "Version: ${version}"\n`);
  chmodSync(path, 0o755);
  vi.stubEnv("HOLDFAST_CRIU", path);
  onTestFinished(() => {
    vi.unstubAllEnvs();
    rmSync(directory, { recursive: true, force: true });
  });
  return path;
}

const memoryStandby = async () => (await checkHost()).find(({ name }) => name === "memory standby");

test("it is said that memory standby works, and with which criu", async () => {
  const path = onlyCriu("4.2.1");
  expect(await memoryStandby()).toEqual({
    name: "memory standby",
    ok: true,
    required: false,
    found: `works, with criu 4.2.1 (${path})`,
    fix: "",
  });
});

test("it is said why memory standby doesn't work, and what to do for it", async () => {
  const path = onlyCriu("3.17.1");
  const check = await memoryStandby();
  expect(check).toMatchObject({ ok: false, required: false });
  expect(check?.found).toContain(`only files: ${path} is of version 3.17.1`);
  expect(check?.fix).toContain("version 4 or newer");
});

import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { checkHost } from "./doctor.ts";
import { testMachine } from "./testing/test-machine.ts";

test("a host on which sandboxes run passes all required checks", async () => {
  const machine = await testMachine();
  const checks = await checkHost(machine.stateDir);
  await machine.dispose();
  expect(checks.filter(({ required, ok }) => required && !ok)).toEqual([]);
  expect(checks.find(({ name }) => name === "container runtime")?.found).toContain("is proven to work");
});

test("every failed check has a fix", async () => {
  for (const { ok, fix } of await checkHost()) expect(fix === "").toBe(ok);
});

/** Makes the doctor find only one CRIU: a stub that reports this version. */
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

test("working memory standby is reported, with the CRIU that is used", async () => {
  const path = onlyCriu("4.2.1");
  expect(await memoryStandby()).toEqual({
    name: "memory standby",
    ok: true,
    required: false,
    found: `works, with criu 4.2.1 (${path})`,
    fix: "",
  });
});

test("missing memory standby is reported, with the reason and a fix", async () => {
  const path = onlyCriu("3.17.1");
  const check = await memoryStandby();
  expect(check).toMatchObject({ ok: false, required: false });
  expect(check?.found).toContain(`only files: ${path} has version 3.17.1`);
  expect(check?.fix).toContain("version 4 or newer");
});

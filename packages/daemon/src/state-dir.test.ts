import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { StartFailure } from "./start-failure.ts";
import { makeStateDir } from "./state-dir.ts";

test("a missing state directory is created for its owner only, and an existing one kept", async () => {
  const dir = await mkdtemp(join(tmpdir(), "holdfast-state-"));
  const deep = join(dir, "a", "b");
  makeStateDir(deep);
  makeStateDir(deep);
  expect((await stat(deep)).mode & 0o777).toBe(0o700);
  await writeFile(join(dir, "file"), "");
  expect(() => makeStateDir(join(dir, "file"))).toThrow(StartFailure);
  expect(() => makeStateDir(join(dir, "file", "below"))).toThrow(StartFailure);
  await rm(dir, { recursive: true });
});

test("a directory that cannot be created is a failure with a fix, not a hang", () => {
  expect(() => makeStateDir("/proc/nothing")).toThrow(StartFailure);
});

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId } from "@holdfast/contract";
import { afterEach, beforeEach, expect, test } from "vitest";
import { holdIdentity, recordPlace, requireOwnPlace } from "./place.ts";

let root: string;
let dir: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "holdfast-place-"));
  dir = join(root, "state");
  mkdirSync(join(dir, "sandboxes"), { recursive: true });
  recordPlace(dir, newInstallationId());
});
afterEach(() => rmSync(root, { recursive: true }));

test("a state directory is its own, also after it was renamed", () => {
  requireOwnPlace(dir);
  const moved = join(root, "moved");
  renameSync(dir, moved);
  requireOwnPlace(moved);
});

test.each([
  ["cp -a", ["cp", "-a"]],
  ["tar", null],
] as const)("a copy by %s is refused, with the way to restore it", (_, command) => {
  const copy = join(root, "copy");
  if (command !== null) execFileSync(command[0], [command[1], dir, copy]);
  else execFileSync("sh", ["-c", `mkdir ${copy} && tar -C ${dir} -c . | tar -C ${copy} -x`]);
  expect(() => requireOwnPlace(copy)).toThrow(/is a copy of the state directory/);
  expect(() => requireOwnPlace(copy)).toThrow(
    expect.objectContaining({ fix: expect.stringContaining(`holdfast restore ${copy}`) }),
  );
});

test("a copy that was put in the place of its original is refused, with the way to restore it", () => {
  execFileSync("sh", ["-c", `cp -a ${dir} ${root}/copy && rm -r ${dir}/* && cp -a ${root}/copy/. ${dir}`]);
  expect(() => requireOwnPlace(dir)).toThrow(
    expect.objectContaining({ fix: expect.stringContaining(`mv ${dir}`) }),
  );
});

test("a directory without a note of its place is accepted: an earlier version has made it", () => {
  rmSync(join(dir, "place.json"));
  requireOwnPlace(dir);
  writeFileSync(join(dir, "place.json"), "{");
  requireOwnPlace(dir);
});

test("an identity is held by one process at a time", async () => {
  const id = newInstallationId();
  const held = await holdIdentity(id);
  await expect(holdIdentity(id)).rejects.toThrow(/same identity/);
  await held.release();
  await (await holdIdentity(id)).release();
});

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId } from "@holdfast/contract";
import { afterEach, beforeEach, expect, test } from "vitest";
import { holdIdentity, recordPlace, requireNoOriginal, requireOwnPlace } from "./copied-state-dir.ts";

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

/** Makes a directory of a sandbox or drive as the driver does, with the note of its place. */
function part(among: "sandboxes" | "drives", id: string): void {
  const [at, note] = [join(dir, among, id), among === "sandboxes" ? "order.json" : "drive.json"];
  mkdirSync(at, { recursive: true });
  const { ino, birthtimeNs } = statSync(at, { bigint: true });
  writeFileSync(join(at, note), JSON.stringify({ place: { ino: `${ino}`, born: `${birthtimeNs}` } }));
}
const copyInPlace = (path: string) =>
  execFileSync("sh", ["-c", `cp -a ${path} ${path}.new && rm -r ${path} && mv ${path}.new ${path}`]);

test("copies of sandboxes and drives that were put in their place are refused, with the way to restore them", () => {
  part("sandboxes", "sbx_a");
  part("drives", "drv_a");
  requireOwnPlace(dir);
  execFileSync("sh", [
    "-ec",
    `cp -a ${dir} ${root}/copy; rm -r ${dir}/sandboxes/* ${dir}/drives/*; cp -a ${root}/copy/. ${dir}`,
  ]);
  expect(() => requireOwnPlace(dir)).toThrow(/were replaced by copies/);
  expect(() => requireOwnPlace(dir)).toThrow(
    expect.objectContaining({ fix: expect.stringContaining(`holdfast restore ${dir}.copy ${dir}`) }),
  );
});

test("notes of an earlier version get their place at the next start, so that a later copy is recognised", () => {
  for (const id of ["sbx_a", "sbx_b"]) {
    mkdirSync(join(dir, "sandboxes", id));
    writeFileSync(join(dir, "sandboxes", id, "order.json"), JSON.stringify({ image: "host" }));
  }
  requireOwnPlace(dir);
  recordPlace(dir, newInstallationId());
  for (const id of ["sbx_a", "sbx_b"]) copyInPlace(join(dir, "sandboxes", id));
  expect(() => requireOwnPlace(dir)).toThrow(/were replaced by copies/);
});

test("one of several directories may be a copy: a person has put it back", () => {
  for (const id of ["sbx_a", "sbx_b"]) part("sandboxes", id);
  copyInPlace(join(dir, "sandboxes", "sbx_a"));
  requireOwnPlace(dir);
  copyInPlace(join(dir, "sandboxes", "sbx_b"));
  expect(() => requireOwnPlace(dir)).toThrow(/were replaced by copies/);
});

test("a copy without a note of its place is refused while a sandbox of its original is mounted", () => {
  const installation = newInstallationId();
  const original = join(root, "original", "sandboxes", "sbx_a", "root");
  mkdirSync(original, { recursive: true });
  rmSync(join(dir, "place.json"));
  requireNoOriginal(dir, installation);
  execFileSync("mount", ["-t", "tmpfs", `holdfast-${installation}-sbx_a`, original]);
  try {
    expect(() => requireNoOriginal(dir, installation)).toThrow(/a sandbox of its original is mounted/);
    requireNoOriginal(dir, newInstallationId());
    requireNoOriginal(join(root, "original"), installation);
    recordPlace(dir, installation);
    requireNoOriginal(dir, installation);
  } finally {
    execFileSync("umount", [original]);
  }
});

test("an identity is held by one process at a time", async () => {
  const id = newInstallationId();
  const held = await holdIdentity(id);
  await expect(holdIdentity(id)).rejects.toThrow(/same identity/);
  await held.release();
  await (await holdIdentity(id)).release();
});

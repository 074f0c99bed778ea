import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ExecId, type InstallationId, newExecId, newSandboxId } from "@holdfast/contract";
import { Porter } from "@holdfast/keeper";
import { expect, onTestFinished, test } from "vitest";
import { layoutOf, makeLayout } from "../machine/layout.ts";
import { copyJournals, draftOf } from "./journal-copies.ts";
import { OciJournals } from "./journals.ts";

const soon = () => AbortSignal.timeout(20_000);
const porter = new Porter();

function place() {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-copies-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  const [from, to] = [join(dir, "from"), join(dir, "to")];
  for (const each of [from, to]) mkdirSync(each);
  const kept = join(to, newSandboxId());
  let age = 0;
  /** Writes a journal that is older than the one before. */
  const write = (bytes: Uint8Array | string): ExecId => {
    const id = newExecId();
    writeFileSync(join(from, id), bytes);
    utimesSync(join(from, id), 1_000_000 - age, 1_000_000 - age);
    age += 10;
    return id;
  };
  const copy = (maxBytes?: number) => copyJournals(from, kept, porter, soon(), maxBytes);
  return { dir, from, to, kept, write, copy };
}

test("the newest journals are copied completely, up to the size limit", async () => {
  const { kept, write, copy } = place();
  const [newest, tooLarge, small, oldest] = [400, 700, 300, 301].map((size) => write(Buffer.alloc(size, 1)));
  await copy(1_000);
  expect(readdirSync(kept).sort()).toEqual([newest, small].toSorted());
  expect(readdirSync(kept)).not.toContain(tooLarge);
  expect(readdirSync(kept)).not.toContain(oldest);
  expect(readFileSync(join(kept, newest ?? ""))).toEqual(Buffer.alloc(400, 1));
});

test("only files with an exec's name are copied, and links are not followed", async () => {
  const { from, kept, write, copy } = place();
  const id = write("here");
  writeFileSync(join(from, ".spare-0"), "x");
  mkdirSync(join(from, newExecId()));
  symlinkSync("/etc/passwd", join(from, newExecId()));
  execFileSync("mkfifo", [join(from, newExecId())]);
  await copy();
  expect(readdirSync(kept)).toEqual([id]);
});

test("data after a hole keeps its offset, and the hole takes no disk space", async () => {
  const { from, kept, copy } = place();
  const id = newExecId();
  const hole = 8 * 1_048_576;
  writeFileSync(join(from, id), "");
  truncateSync(join(from, id), hole);
  writeFileSync(join(from, id), "HFJ1 and on", { flag: "a" });
  await copy();
  expect(statSync(join(kept, id)).size).toBe(hole + 11);
  expect(statSync(join(kept, id)).blocks * 512).toBeLessThan(1_048_576);
  expect(readFileSync(join(kept, id)).subarray(hole).toString()).toBe("HFJ1 and on");
});

test("a sparse file larger than any disk takes neither time nor disk space", async () => {
  const { from, kept, write, copy } = place();
  const id = write("here");
  const huge = newExecId();
  writeFileSync(join(from, huge), "HFJ1");
  truncateSync(join(from, huge), 2 ** 42);
  await copy();
  expect(readdirSync(kept)).toEqual([id]);
});

test("if the disk fills up, the complete copies are kept", async () => {
  const { to, kept, write, copy } = place();
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m", "holdfast-copies", to]);
  onTestFinished(() => void execFileSync("umount", [to]));
  const first = write(Buffer.alloc(600_000, 1));
  write(Buffer.alloc(600_000, 2));
  await copy();
  expect(readdirSync(kept)).toEqual([first]);
  expect(readdirSync(to)).toHaveLength(1);
});

test("no directory is created without journals, and an aborted copy is replaced", async () => {
  const { from, to, kept, write, copy } = place();
  mkdirSync(draftOf(kept));
  writeFileSync(join(draftOf(kept), "half"), "x");
  await copy();
  expect(readdirSync(to)).toEqual([]);
  const id = write("here");
  const late = copyJournals(from, kept, porter, AbortSignal.abort(new Error("too late")));
  await expect(late).rejects.toThrow("too late");
  expect(readdirSync(to)).toEqual([]);
  await copy();
  expect(readdirSync(kept)).toEqual([id]);
});

test("incomplete copies of a killed server are removed by the next server", async () => {
  const { dir } = place();
  const layout = layoutOf(dir, "install1" as InstallationId);
  makeLayout(layout, 0);
  const { archivedJournals } = layout.sandbox(newSandboxId());
  for (const each of [archivedJournals, draftOf(archivedJournals)]) mkdirSync(each);
  await new OciJournals({ layout, porter, idBase: 0 }).open();
  expect(existsSync(draftOf(archivedJournals))).toBe(false);
  expect(existsSync(archivedJournals)).toBe(true);
});

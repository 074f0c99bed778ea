import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Cgroups } from "./cgroup.ts";
import { layoutOf } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { observeOne } from "./observe.ts";

const id = newSandboxId();
const installation = newInstallationId();
let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-observe-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** Only what looking needs, with a directory in the place of a cgroup hierarchy. */
function machine(): Machine {
  const hierarchy = { version: 1 as const, dir: join(dir, "freezer"), controllers: ["freezer", "memory"] };
  mkdirSync(join(hierarchy.dir, `holdfast-${installation}`, id), { recursive: true });
  const cgroups = new Cgroups([hierarchy], installation, systemClock);
  const facts = { bootId: "this boot" };
  return { layout: layoutOf(dir, installation), cgroups, facts, clock: systemClock } as unknown as Machine;
}

const procs = () => join(dir, "freezer", `holdfast-${installation}`, id, "cgroup.procs");

test("a cgroup that can't be read makes an instance unknown, never absent", () => {
  const broken = machine();
  mkdirSync(procs());
  expect(observeOne(broken, id, [])).toMatchObject({ seen: "unknown", why: "EISDIR" });
});

test("processes without a keeper are present, and said to be without one", () => {
  const headless = machine();
  writeFileSync(procs(), `${process.pid}\n`);
  expect(observeOne(headless, id, [])).toMatchObject({
    seen: "present",
    pid: process.pid,
    problems: [{ code: "keeper_missing" }, { code: "root_unmounted" }],
  });
});

test("a note about a process of an earlier boot is no evidence", () => {
  const rebooted = machine();
  mkdirSync(join(dir, "sandboxes", id), { recursive: true });
  const note = { sandboxId: id, pid: process.pid, startTime: "1", hostBootId: "another boot" };
  writeFileSync(join(dir, "sandboxes", id, "instance.json"), JSON.stringify(note));
  expect(observeOne(rebooted, id, [])).toMatchObject({
    seen: "absent",
    leftovers: ["cgroup freezer", "directory"],
  });
});

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { afterEach, beforeEach, expect, test } from "vitest";
import { layoutOf } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { Cgroups } from "../proc/cgroup.ts";
import { parseMounts } from "../proc/mount-table.ts";
import { observeOne } from "./observe.ts";

const id = newSandboxId();
const installation = newInstallationId();
let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-observe-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** A machine with only the parts that `observeOne` uses, and a plain directory in place of a cgroup hierarchy. */
function machine(): Machine {
  const hierarchy = {
    version: 1 as const,
    dir: join(dir, "freezer"),
    root: "/",
    controllers: ["freezer", "memory"],
  };
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

test("processes without a keeper are observed as present, with the problem keeper_missing", () => {
  const headless = machine();
  mkdirSync(join(dir, "sandboxes", id), { recursive: true });
  writeFileSync(procs(), `${process.pid}\n`);
  expect(observeOne(headless, id, [])).toMatchObject({
    seen: "present",
    identity: { pid: process.pid },
    problems: [{ code: "keeper_missing" }, { code: "root_unmounted" }],
  });
});

test("an instance note from an earlier boot is ignored", () => {
  const rebooted = machine();
  mkdirSync(join(dir, "sandboxes", id), { recursive: true });
  const note = { sandboxId: id, pid: process.pid, startTime: "1", hostBootId: "another boot" };
  writeFileSync(join(dir, "sandboxes", id, "instance.json"), JSON.stringify(note));
  expect(observeOne(rebooted, id, [])).toMatchObject({
    seen: "absent",
    leftovers: ["cgroup freezer", "directory"],
  });
});

test("a host file system that accepts no more writes is a problem of every sandbox on it", () => {
  const own = machine();
  writeFileSync(procs(), `${process.pid}\n`);
  const table = (options: string) => parseMounts(`1 0 0:1 / ${dir} rw - ext4 /dev/vdb ${options}`);
  const codes = (options: string) => {
    const seen = observeOne(own, id, table(options));
    return seen.seen === "present" ? seen.problems.map(({ code }) => code) : seen.seen;
  };
  expect(codes("rw,errors=continue")).not.toContain("host_disk_failed");
  expect(codes("ro")).toContain("host_disk_failed");
  expect(codes("rw,shutdown")).toContain("host_disk_failed");
});

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type InstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Cgroups, hierarchiesOf, hierarchyWith, resourceLimits } from "./cgroup.ts";
import { parseMounts } from "./mounts.ts";

const V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
const V1_BOTH = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
const V2_BESIDE = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
const V2_ALONE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

const found = (lines: string[], controllers: string[]) =>
  hierarchiesOf(parseMounts(lines.join("\n")), () => controllers);

test("on a v2 host every controller is in the one hierarchy, freezing included", () => {
  const hierarchies = found([V2_ALONE], ["cpu", "memory", "pids"]);
  for (const name of ["cpu", "memory", "pids", "freezer"]) {
    expect(hierarchyWith(hierarchies, name)).toMatchObject({ version: 2, dir: "/sys/fs/cgroup" });
  }
});

test("on a hybrid host a controller is taken from where it is mounted", () => {
  const hierarchies = found([V1, V1_BOTH, V2_BESIDE], []);
  expect(hierarchyWith(hierarchies, "memory")).toMatchObject({ version: 1, dir: "/sys/fs/cgroup/memory" });
  expect(hierarchyWith(hierarchies, "cpu")).toMatchObject({ version: 1, dir: "/sys/fs/cgroup/cpu,cpuacct" });
  expect(hierarchyWith(hierarchies, "freezer")).toMatchObject({ version: 2 });
  expect(hierarchyWith(hierarchies, "pids")).toBeUndefined();
});

test("limits are written in the specification's units, swap only where it is counted", () => {
  const limits = resourceLimits({ memoryMb: 64, cpus: 0.5, pids: 10 }, { swapLimited: true, cpus: 2 });
  expect(limits).toMatchObject({
    memory: { limit: 67_108_864, swap: 67_108_864 },
    cpu: { quota: 50_000, period: 100_000 },
    pids: { limit: 10 },
  });
  expect(resourceLimits({ memoryMb: 64, cpus: 2, pids: 10 }, { swapLimited: false, cpus: 2 }).cpu).toEqual(
    {},
  );
  expect(
    resourceLimits({ memoryMb: 64, cpus: 0.001, pids: 10 }, { swapLimited: false, cpus: 2 }),
  ).toMatchObject({
    memory: { limit: 67_108_864 },
    cpu: { quota: 1_000 },
  });
});

let dir: string;
const id = newSandboxId();
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "holdfast-cgroup-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** A directory with the files of a v2 cgroup, since this test must hold on hosts that have no v2. */
function v2() {
  const own = join(dir, "holdfast-inst", id);
  mkdirSync(join(own, "inner"), { recursive: true });
  writeFileSync(join(own, "cgroup.procs"), "12\n13\n");
  writeFileSync(join(own, "inner", "cgroup.procs"), "14\n");
  writeFileSync(join(own, "cgroup.events"), "populated 1\nfrozen 0\n");
  writeFileSync(join(own, "cgroup.freeze"), "0");
  writeFileSync(join(own, "memory.events"), "low 0\noom 4\noom_kill 3\noom_group_kill 0\n");
  const hierarchy = { version: 2 as const, dir, controllers: ["cpu", "memory", "pids", "freezer"] };
  return { own, cgroups: new Cgroups([hierarchy], "inst" as InstallationId, systemClock) };
}

test("v2: members below count, and oom kills are read", () => {
  const { cgroups } = v2();
  expect(cgroups.members(id)).toEqual([12, 13, 14]);
  expect(cgroups.oomKills(id)).toBe(3);
  expect([...cgroups.ids()]).toEqual([id]);
});

test("v2: freezing waits until the kernel says that all are frozen", async () => {
  const { own, cgroups } = v2();
  const freezing = cgroups.freeze(id, AbortSignal.timeout(5_000));
  expect(readFileSync(join(own, "cgroup.freeze"), "utf8")).toBe("1");
  setTimeout(() => writeFileSync(join(own, "cgroup.events"), "populated 1\nfrozen 1\n"), 20);
  await freezing;
  expect(cgroups.isFrozen(id)).toBe(true);
});

test("freezing what never freezes ends with the caller's signal", async () => {
  const { cgroups } = v2();
  await expect(cgroups.freeze(id, AbortSignal.timeout(30))).rejects.toThrow();
});

test("a cgroup that is not there has no members, no kills and is not frozen", () => {
  const { cgroups } = v2();
  const other = newSandboxId();
  expect([cgroups.members(other), cgroups.oomKills(other), cgroups.isFrozen(other)]).toEqual([[], 0, false]);
});

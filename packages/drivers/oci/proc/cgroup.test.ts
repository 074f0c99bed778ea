import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type InstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Cgroups, resourceLimits } from "./cgroup.ts";
import { hierarchiesOf, hierarchyWith } from "./hierarchies.ts";
import { parseMounts } from "./mount-table.ts";

const V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
const V1_BOTH = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
const V2_BESIDE = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
const V2_ALONE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

const found = (lines: string[], controllers: string[]) =>
  hierarchiesOf(parseMounts(lines.join("\n")), () => controllers);

test("on a v2 host all controllers, including the freezer, are in the one hierarchy", () => {
  const hierarchies = found([V2_ALONE], ["cpu", "memory", "pids"]);
  for (const name of ["cpu", "memory", "pids", "freezer"]) {
    expect(hierarchyWith(hierarchies, name)).toMatchObject({ version: 2, dir: "/sys/fs/cgroup" });
  }
});

test("on a hybrid host each controller is found in the hierarchy that mounts it", () => {
  const hierarchies = found([V1, V1_BOTH, V2_BESIDE], []);
  expect(hierarchyWith(hierarchies, "memory")).toMatchObject({ version: 1, dir: "/sys/fs/cgroup/memory" });
  expect(hierarchyWith(hierarchies, "cpu")).toMatchObject({ version: 1, dir: "/sys/fs/cgroup/cpu,cpuacct" });
  expect(hierarchyWith(hierarchies, "freezer")).toMatchObject({ version: 2 });
  expect(hierarchyWith(hierarchies, "pids")).toBeUndefined();
});

test("limits are in the units of the OCI specification; swap is limited only if the host can", () => {
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

/** Creates a directory with the files of a v2 cgroup, so that the tests also run on hosts without cgroup v2. */
function v2() {
  const own = join(dir, "holdfast-inst", id);
  mkdirSync(join(own, "inner"), { recursive: true });
  writeFileSync(join(own, "cgroup.procs"), "12\n13\n");
  writeFileSync(join(own, "inner", "cgroup.procs"), "14\n");
  writeFileSync(join(own, "cgroup.events"), "populated 1\nfrozen 0\n");
  writeFileSync(join(own, "cgroup.freeze"), "0");
  writeFileSync(join(own, "memory.events"), "low 0\noom 4\noom_kill 3\noom_group_kill 0\n");
  const hierarchy = {
    version: 2 as const,
    dir,
    root: "/",
    controllers: ["cpu", "memory", "pids", "freezer"],
  };
  return { own, cgroups: new Cgroups([hierarchy], "inst" as InstallationId, systemClock) };
}

test("v2: processes in child cgroups count as members, and OOM kills are read", () => {
  const { cgroups } = v2();
  expect(cgroups.members(id)).toEqual([12, 13, 14]);
  expect(cgroups.oomKills(id)).toBe(3);
  expect([...cgroups.ids()]).toEqual([id]);
});

test("v2: freezing waits until the kernel reports all processes as frozen", async () => {
  const { own, cgroups } = v2();
  const freezing = cgroups.freeze(id, AbortSignal.timeout(5_000));
  expect(readFileSync(join(own, "cgroup.freeze"), "utf8")).toBe("1");
  setTimeout(() => writeFileSync(join(own, "cgroup.events"), "populated 1\nfrozen 1\n"), 20);
  await freezing;
  expect(cgroups.isFrozen(id)).toBe(true);
});

test("freezing a cgroup that never freezes ends when the caller's signal aborts", async () => {
  const { cgroups } = v2();
  await expect(cgroups.freeze(id, AbortSignal.timeout(30))).rejects.toThrow();
});

test("a missing cgroup has no members and no OOM kills, and is not frozen", () => {
  const { cgroups } = v2();
  const other = newSandboxId();
  expect([cgroups.members(other), cgroups.oomKills(other), cgroups.isFrozen(other)]).toEqual([[], 0, false]);
});

test("v2: counters are read in the same units as in v1", () => {
  const { own, cgroups } = v2();
  const files = {
    "cpu.stat": "usage_usec 1500\nuser_usec 1000\nthrottled_usec 250\n",
    "memory.stat": "anon 4096\nfile 999999\nshmem 1024\n",
    "pids.current": "7\n",
    "pids.events": "max 2\n",
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(own, name), text);
  const counted = { cpuMs: 1.5, throttledMs: 0.25, memoryBytes: 5_120, processes: 7, pidsRefused: 2 };
  const none = { readBytes: 0, writtenBytes: 0, operations: 0, isWhole: false };
  expect(cgroups.counters(id)).toEqual({ ...counted, io: none });
  expect(cgroups.memoryBytes(id)).toBe(5_120);
});

test("v2: I/O counters are summed over all disks", () => {
  const own = join(dir, "holdfast-inst", id);
  mkdirSync(own, { recursive: true });
  const hierarchy = { version: 2 as const, dir, root: "/", controllers: ["cpu", "io", "freezer"] };
  const cgroups = new Cgroups([hierarchy], "inst" as InstallationId, systemClock);
  writeFileSync(join(own, "cpu.stat"), "usage_usec 0\n");
  const line = (device: string) => `${device} rbytes=100 wbytes=20 rios=3 wios=4 dbytes=5000 dios=60\n`;
  writeFileSync(join(own, "io.stat"), line("8:0") + line("7:1"));
  expect(cgroups.counters(id)?.io).toEqual({
    readBytes: 200,
    writtenBytes: 40,
    operations: 14,
    isWhole: true,
  });
});

/** Creates one hierarchy for each controller, as in cgroup v1. */
function v1(files: Record<string, string>): Cgroups {
  const controllers = ["cpu", "cpuacct", "memory", "pids", "blkio", "freezer"];
  for (const [path, text] of Object.entries(files)) {
    const [controller = "", name = ""] = path.split("/");
    const own = join(dir, controller, "holdfast-inst", id);
    mkdirSync(own, { recursive: true });
    writeFileSync(join(own, name), text);
  }
  const hierarchies = controllers.map((name) => ({
    version: 1 as const,
    dir: join(dir, name),
    root: "/",
    controllers: [name],
  }));
  return new Cgroups(hierarchies, "inst" as InstallationId, systemClock);
}

const V1_FILES = {
  "cpuacct/cpuacct.usage": "1500000\n",
  "cpu/cpu.stat": "nr_periods 31\nnr_throttled 30\nthrottled_time 250000\n",
  "memory/memory.stat": "cache 77\nrss 1\ntotal_cache 99999\ntotal_rss 4096\ntotal_shmem 1024\n",
  "pids/pids.current": "7\n",
  "pids/pids.events": "max 2\n",
};

test("v1: counters are collected from all hierarchies", () => {
  const cgroups = v1({
    ...V1_FILES,
    "blkio/blkio.throttle.io_service_bytes":
      "8:0 Read 100\n8:0 Write 20\n8:0 Sync 120\n8:0 Total 120\n7:1 Read 1\nTotal 121\n",
    "blkio/blkio.throttle.io_serviced": "8:0 Read 3\n8:0 Write 4\n8:0 Total 7\nTotal 7\n",
  });
  const counted = { cpuMs: 1.5, throttledMs: 0.25, memoryBytes: 5_120, processes: 7, pidsRefused: 2 };
  const io = { readBytes: 101, writtenBytes: 20, operations: 7, isWhole: false };
  expect(cgroups.counters(id)).toEqual({ ...counted, io });
});

test("v1: a missing controller counts as 0, and incomplete I/O counts are marked as such", () => {
  expect(v1({ "pids/pids.current": "7\n" }).counters(id)).toMatchObject({ processes: 7, cpuMs: 0 });
  const quiet = v1({ ...V1_FILES, "blkio/blkio.throttle.io_service_bytes": "Total 0\n" });
  expect(quiet.counters(id)?.io).toEqual({ readBytes: 0, writtenBytes: 0, operations: 0, isWhole: false });
});

test("a missing cgroup has no counters", () => {
  expect([v1(V1_FILES), v2().cgroups].map((cgroups) => cgroups.counters(newSandboxId()))).toEqual([
    null,
    null,
  ]);
});

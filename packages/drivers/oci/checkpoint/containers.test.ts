/** Memory and forks on hosts whose mounts are those of a container, or are shared as systemd makes them. */
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newInstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { findBinary } from "../machine/runtime.ts";
import { Cgroups } from "../proc/cgroup.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
import { forkInOwnMounts } from "../testing/own-mounts.ts";
import { findCriu } from "./find-criu.ts";

const found = await findCriu();
const runtimes = ["crun", "runc"].filter((name) => findBinary(name) !== null);

function order(runtime: string) {
  const installation = newInstallationId();
  return { stateDir: mkdtempSync(join(tmpdir(), "holdfast-own-mounts-")), installation, runtime };
}

describe.skipIf(!("path" in found))("a fork of memory", () => {
  test.each(runtimes)(
    "runs on a host with shared mounts, launched by %s",
    async (runtime) => {
      const report = await forkInOwnMounts(order(runtime), {
        prepare: "mount --make-rshared /",
        clean: "",
      });
      expect(report).toMatchObject({
        support: { kind: "memory" },
        problems: [[], []],
        propagating: 0,
        left: [],
      });
    },
    120_000,
  );

  test("is restored into the cgroup of the container in which the server runs", async () => {
    const name = `holdfast-container-${process.pid}`;
    const dirs = readHierarchies().map(({ dir }) => dir);
    // A container sees its own cgroup in the place of each hierarchy. The runtime needs v1's cpuset to be filled in.
    const prepare = dirs.map((dir) =>
      [
        `mkdir ${dir}/${name}`,
        `if [ -e ${dir}/cpuset.mems ]; then for file in cpuset.cpus cpuset.mems; do cat ${dir}/$file > ${dir}/${name}/$file; done; fi`,
        `for each in $(cat ${dir}/cgroup.controllers 2>/dev/null); do echo +$each > ${dir}/${name}/cgroup.subtree_control || true; done`,
        `mount --bind ${dir}/${name} ${dir}`,
      ].join("\n"),
    );
    const clean = dirs.map((dir) => `umount ${dir}; find ${dir}/${name} -depth -type d -exec rmdir {} +`);
    const report = await forkInOwnMounts(order("auto"), {
      prepare: prepare.join("\n"),
      clean: clean.toReversed().join("\n"),
    });
    expect(report).toMatchObject({ support: { kind: "memory" }, problems: [[], []], left: [] });
    expect(report.cgroups.length).toBeGreaterThan(0);
    for (const line of report.cgroups) expect(line).toContain(`:/${name}/holdfast-`);
  }, 120_000);
});

test("a frozen process that is outside the sandbox's cgroup is found and thawed there once it is adopted", async () => {
  const [mine, other] = [newSandboxId(), newSandboxId()];
  const cgroups = new Cgroups(readHierarchies(), newInstallationId(), systemClock);
  const sleeper = spawn("sleep", ["60"], { stdio: "ignore" });
  const pid = sleeper.pid ?? 0;
  const ended = new Promise((resolve) => sleeper.once("exit", (_code, signal) => resolve(signal)));
  try {
    mkdirSync(cgroups.freezer(other), { recursive: true });
    writeFileSync(join(cgroups.freezer(other), "cgroup.procs"), String(pid));
    await cgroups.freeze(other, AbortSignal.timeout(5_000));
    sleeper.kill("SIGKILL");
    expect(readFileSync(`/proc/${pid}/comm`, "utf8")).toBe("sleep\n");
    cgroups.adopt(mine, pid);
    expect(await ended).toBe("SIGKILL");
  } finally {
    cgroups.requestThaw(other);
    await cgroups.remove(other, AbortSignal.timeout(5_000));
    await cgroups.remove(mine, AbortSignal.timeout(5_000));
    rmdirSync(join(cgroups.freezer(mine), ".."));
  }
}, 30_000);

import { type InstallationId, newSandboxId } from "@holdfast/contract";
import { systemClock } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { Cgroups } from "./cgroup.ts";
import { type Hierarchy, hierarchiesOf, hierarchyWith, isOutsideNamespace } from "./hierarchies.ts";
import { isVisible, mountOf, parseMounts, sharesMounts } from "./mount-table.ts";

/** Hierarchies of a recorded /proc/self/mountinfo. Every v2 mount has the same controllers. */
const found = (mountinfo: string, own = ""): Hierarchy[] =>
  hierarchiesOf(parseMounts(mountinfo), () => ["cpu", "memory", "pids"], own);

const HOST_V2 = `
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
24 22 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 24 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`;

/** A host with Docker: the cgroups of a container are visible in the root file system of the container. */
const HOST_WITH_CONTAINERS = `${HOST_V2.trim()}
90 22 0:60 / /var/lib/docker/overlay2/abc/merged rw,relatime shared:50 - overlay overlay rw
91 90 0:25 /system.slice/docker-abc.scope /var/lib/docker/overlay2/abc/merged/sys/fs/cgroup ro,relatime shared:51 - cgroup2 cgroup rw
`;

/** A container without a cgroup namespace of its own: its part of each v1 hierarchy is mounted at the usual place. */
const CONTAINER_V1 = `
100 50 0:60 / / rw,relatime - overlay overlay rw
101 100 0:61 / /sys ro,nosuid - sysfs sysfs ro
102 101 0:62 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
103 102 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw,nosuid master:12 - cgroup cgroup rw,cpu,cpuacct
104 102 0:30 /docker/abc /sys/fs/cgroup/memory rw,nosuid master:13 - cgroup cgroup rw,memory
105 102 0:31 /docker/abc /sys/fs/cgroup/freezer rw,nosuid master:14 - cgroup cgroup rw,freezer
106 102 0:32 / /sys/fs/cgroup/pids rw,nosuid master:15 - cgroup cgroup rw,pids
`;

describe("the hierarchies of a mount table", () => {
  test("are those of the host, also if cgroups of containers are visible", () => {
    const own = "0::/system.slice/holdfast.service\n";
    for (const table of [HOST_V2, HOST_WITH_CONTAINERS])
      expect(found(table, own)).toEqual([
        { version: 2, dir: "/sys/fs/cgroup", root: "/", controllers: ["cpu", "memory", "pids", "freezer"] },
      ]);
  });

  test("do not depend on the order in which mounts are listed", () => {
    const [root = "", sys = "", cgroup = "", ...others] = HOST_WITH_CONTAINERS.trim().split("\n");
    expect(found([...others, root, sys, cgroup].join("\n"))).toMatchObject([{ dir: "/sys/fs/cgroup" }]);
  });

  test("are read with the controllers of the mount that is used, and of no other", () => {
    const asked: string[] = [];
    hierarchiesOf(parseMounts(HOST_WITH_CONTAINERS), (dir) => {
      asked.push(dir);
      return [];
    });
    expect(asked).toEqual(["/sys/fs/cgroup"]);
  });

  test("contain our own cgroup, if none is mounted at the standard place", () => {
    const two = `
1 0 0:1 / / rw - ext4 /dev/vda rw
2 1 0:25 /lxc/other /srv/other/cgroup rw - cgroup2 cgroup rw
3 1 0:25 /lxc/mine /srv/mine/cgroup rw - cgroup2 cgroup rw
4 1 0:25 /lxc/mi /srv/mi/cgroup rw - cgroup2 cgroup rw`;
    expect(found(two, "0::/lxc/mine/holdfast\n")).toMatchObject([{ dir: "/srv/mine/cgroup" }]);
  });

  test("are those on top: a covered mount is not used", () => {
    const stacked = `${CONTAINER_V1.trim()}
120 104 0:30 /docker/abc/inner /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`;
    expect(hierarchyWith(found(stacked), "memory")).toMatchObject({ root: "/docker/abc/inner" });
    const covered = `${HOST_V2.trim()}
130 28 0:70 / /sys/fs/cgroup rw - tmpfs tmpfs rw
131 130 0:25 /mine /sys/fs/cgroup/unified rw - cgroup2 cgroup rw`;
    expect(found(covered)).toMatchObject([{ dir: "/sys/fs/cgroup/unified", root: "/mine" }]);
  });

  test("know which cgroup is mounted, and whether it lies outside the cgroup namespace", () => {
    const hierarchies = found(CONTAINER_V1);
    expect(hierarchies.map(({ root }) => root)).toEqual(["/docker/abc", "/docker/abc", "/docker/abc", "/"]);
    expect(hierarchies.some(isOutsideNamespace)).toBe(false);
    const outside = found(HOST_V2.replace("0:25 / ", "0:25 /.. "));
    expect(outside.map(isOutsideNamespace)).toEqual([true]);
  });
});

describe("the cgroups of a sandbox in a container", () => {
  const id = newSandboxId();
  const cgroups = new Cgroups(found(CONTAINER_V1), "inst" as InstallationId, systemClock);
  const below = `/holdfast-inst/${id}`;
  const inside = [
    `9:name=systemd:/docker/abc`,
    `4:cpu,cpuacct:/docker/abc${below}`,
    `3:memory:/docker/abc${below}`,
    `2:freezer:/docker/abc${below}`,
    `1:pids:${below}`,
    "0::/",
  ];

  test("are named to the runtime from the mounted cgroup, and to CRIU from the hierarchy's root", () => {
    expect(cgroups.path(id)).toBe(below);
    expect(cgroups.restoreRoots(id)).toEqual([
      below,
      `cpu:/docker/abc${below}`,
      `memory:/docker/abc${below}`,
      `freezer:/docker/abc${below}`,
      `pids:${below}`,
    ]);
    const v2 = found(HOST_V2.replace("0:25 / ", "0:25 /docker/abc "));
    expect(new Cgroups(v2, "inst" as InstallationId, systemClock).restoreRoots(id)).toEqual([
      `/docker/abc${below}`,
    ]);
    const whole = new Cgroups(found(HOST_V2), "inst" as InstallationId, systemClock);
    expect(whole.restoreRoots(id)).toEqual([below]);
  });

  test("are recognised in /proc/PID/cgroup, and only there are cgroups dumped", () => {
    const text = inside.join("\n");
    expect(cgroups.hasMember(id, text)).toBe(true);
    expect(cgroups.missingFor(id, text)).toEqual([]);
    expect(cgroups.controllersOf(id, text)).toEqual(["cpu,cpuacct", "memory", "freezer", "pids"]);
    expect(cgroups.hasMember(newSandboxId(), text)).toBe(false);
    // The same path in the whole hierarchy is the cgroup of another container's sandbox.
    const elsewhere = text.replaceAll("/docker/abc/", "/");
    expect(cgroups.missingFor(id, elsewhere)).toEqual(["cpu", "memory", "freezer"]);
  });

  test("do not govern a process that left one of them; a cgroup below one counts", () => {
    expect(
      cgroups.missingFor(id, inside.join("\n").replace(`memory:/docker/abc${below}`, "memory:/")),
    ).toEqual(["memory"]);
    expect(cgroups.missingFor(id, inside.join("\n").replaceAll(below, `${below}/inner`))).toEqual([]);
    expect(cgroups.missingFor(id, "")).toEqual(["cpu", "memory", "pids", "freezer"]);
  });
});

describe("a mount table", () => {
  test("shows shared and private mounts", () => {
    expect(sharesMounts(parseMounts(HOST_V2))).toBe(true);
    expect(sharesMounts(parseMounts(CONTAINER_V1))).toBe(false);
    expect(parseMounts(CONTAINER_V1).filter(({ isSlave }) => isSlave)).toHaveLength(4);
  });

  test("has a mount for every path, the deepest one and of several the last", () => {
    const mounts = parseMounts(`
1 0 0:1 / / rw - ext4 /dev/vda rw
2 1 0:2 / /var/lib rw - ext4 /dev/vdb ro
3 1 0:3 / /var/libs rw - ext4 /dev/vdc rw
4 2 0:4 / /var/lib rw - xfs /dev/vdd rw`);
    expect(mountOf(mounts, "/var/lib/holdfast")).toMatchObject({ source: "/dev/vdd" });
    expect(mountOf(mounts, "/var/log")).toMatchObject({ source: "/dev/vda" });
    expect(mounts.filter((mount) => isVisible(mounts, mount)).map(({ id }) => id)).toEqual([1, 3, 4]);
  });
});

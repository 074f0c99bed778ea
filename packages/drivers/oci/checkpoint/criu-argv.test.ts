import { describe, expect, test } from "vitest";
import { boundMounts, externalsOf } from "./bound-mounts.ts";
import { controllersOf } from "./cgroup.ts";
import { dumpArgv, meaningOf, restoreArgv } from "./criu.ts";
import { MANIFEST_VERSION, readManifest } from "./manifest.ts";
import { changedOf, parseMapped, readMapped } from "./mapped-files.ts";
import { parseMounts } from "./mounts.ts";

const common = { binary: "/criu", images: "/i", work: "/w", root: "/r" };
const externals = [{ key: "k0", at: "/usr", from: "/elsewhere/usr" }];

const valueBehind = (argv: readonly string[], option: string) => argv[argv.indexOf(option) + 1];

describe("CRIU's arguments", () => {
  test("a dump leaves the tree as it is, frozen, and writes no rules for packets", () => {
    const argv = dumpArgv({
      ...common,
      externals,
      pid: 42,
      freezer: "/cgroup",
      controllers: ["cpu", "memory"],
    });
    expect(argv.slice(0, 4)).toEqual(["/criu", "dump", "--tree", "42"]);
    expect(argv).toContain("--leave-running");
    expect(valueBehind(argv, "--freeze-cgroup")).toBe("/cgroup");
    expect(valueBehind(argv, "--network-lock")).toBe("skip");
    expect(argv.filter((_, index) => argv[index - 1] === "--cgroup-dump-controller")).toEqual([
      "cpu",
      "memory",
    ]);
    expect(valueBehind(argv, "--external")).toBe("mnt[/usr]:k0");
  });

  test("a restore lets go of the tree and knows the same mounts by the same keys", () => {
    const argv = restoreArgv({ ...common, externals, pidFile: "/w/pid", script: "/porter", cgroup: null });
    expect(argv.slice(0, 2)).toEqual(["/criu", "restore"]);
    expect(argv).toContain("--restore-detached");
    expect(valueBehind(argv, "--action-script")).toBe("/porter");
    expect(valueBehind(argv, "--external")).toBe("mnt[k0]:/elsewhere/usr");
    expect(argv).not.toContain("--cgroup-root");
  });

  test("a restore of another sandbox's memory makes its cgroups elsewhere", () => {
    const argv = restoreArgv({ ...common, externals, pidFile: "/w/pid", script: "/porter", cgroup: "/a/b" });
    expect(valueBehind(argv, "--cgroup-root")).toBe("/a/b");
  });

  test("both treat cgroups, locks, connections and the network alike, and read no file of the host's", () => {
    const both = [
      dumpArgv({ ...common, externals, pid: 42, freezer: "/cgroup", controllers: ["cpu", "memory"] }),
      restoreArgv({ ...common, externals, pidFile: "/w/pid", script: "/porter", cgroup: null }),
    ];
    for (const argv of both) {
      const wanted = ["--manage-cgroups=soft", "--tcp-close", "--file-locks", "--no-default-config", "-v1"];
      expect(argv).toEqual(expect.arrayContaining(wanted));
      expect(valueBehind(argv, "--empty-ns")).toBe("net");
      expect(valueBehind(argv, "--root")).toBe("/r");
    }
  });

  test("of what it says, that is told which means something to the owner of a sandbox", () => {
    expect(meaningOf("Error: tty: ctty inheritance detected sid/pgrp 4")).toMatch(/terminal/);
    expect(meaningOf("Error: write: No space left on device")).toMatch(/disk is full/);
    expect(meaningOf("Error: whatever")).toBeNull();
  });
});

test("cgroups are written only where the sandbox has its own", () => {
  const text = "3:cpu,cpuacct:/h/s\n2:name=systemd:/h/s\n1:blkio:/\n0::/\n";
  expect(controllersOf(text, "/h/s")).toEqual(["cpu,cpuacct", "name=systemd"]);
  expect(controllersOf("0::/h/s\n", "/h/s")).toEqual([]);
});

describe("what is mounted into a sandbox", () => {
  const line = (at: string, root: string, fsType: string) =>
    `1 2 0:6 ${root} ${at} ro,relatime - ${fsType} source rw`;
  const inside = [
    line("/", "/", "overlay"),
    line("/proc", "/", "proc"),
    line("/dev", "/", "tmpfs"),
    line("/dev/pts", "/", "devpts"),
    line("/dev/shm", "/", "tmpfs"),
    line("/dev/null", "/null", "devtmpfs"),
    line("/proc/keys", "/null", "devtmpfs"),
    line("/proc/sys", "/sys", "proc"),
    line("/usr", "/usr", "ext4"),
    line("/usr/local", "/", "ext4"),
    line("/.holdfast", "/state/keepers/1", "tmpfs"),
    line("/.holdfast/control", "/state/control", "ext4"),
  ].join("\n");

  test("is told from what the runtime made for it", () => {
    expect(boundMounts(parseMounts(inside), { hostDirs: ["/usr"], drives: [] })).toEqual([
      { at: "/dev/null", source: { kind: "host", path: "/dev/null" } },
      { at: "/proc/keys", source: { kind: "host", path: "/dev/null" } },
      { at: "/usr", source: { kind: "host", path: "/usr" } },
      { at: "/usr/local", source: { kind: "host", path: "/usr/local" } },
      { at: "/.holdfast", source: { kind: "keeper" } },
      { at: "/.holdfast/control", source: { kind: "control" } },
    ]);
  });

  test("has an origin, or is not written", () => {
    expect(() => boundMounts(parseMounts(inside), { hostDirs: [], drives: [] })).toThrow("not ordered");
  });

  test("has keys by its order", () => {
    const bound = boundMounts(parseMounts(inside), { hostDirs: ["/usr"], drives: [] });
    const keys = externalsOf(bound, ({ kind }) => kind).map(({ key, from }) => [key, from]);
    expect(keys[0]).toEqual(["holdfast-0", "host"]);
    expect(keys[5]).toEqual(["holdfast-5", "control"]);
  });
});

describe("files that memory goes with", () => {
  test("are read from a process's map", () => {
    const maps = [
      "5581d8e00000-5581d8e2f000 r--p 00000000 fe:00 1234                       /usr/bin/python3.11",
      "5581d8e2f000-5581d8e3f000 r-xp 0002f000 fe:00 1234                       /usr/bin/python3.11",
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ",
      "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]",
      "7f1000000000-7f1000001000 r--p 00000000 fe:00 99                         /usr/lib/a b.so",
    ];
    expect(parseMapped(maps.join("\n"))).toEqual(["/usr/bin/python3.11", "/usr/lib/a b.so"]);
  });

  test("are the same until one is another", () => {
    const mapped = readMapped([process.pid], ["/usr", "/lib"]);
    expect(mapped.length).toBeGreaterThan(0);
    expect(changedOf(mapped)).toEqual([]);
    const [first, ...rest] = mapped;
    if (first === undefined) throw new Error("nothing is mapped");
    expect(changedOf([{ ...first, modifiedNs: "1" }, ...rest])).toEqual([first.path]);
    expect(changedOf([{ ...first, path: "/usr/nowhere" }])).toEqual(["/usr/nowhere"]);
  });
});

describe("a manifest", () => {
  const manifest = {
    version: MANIFEST_VERSION,
    id: "ckp_1",
    installation: "i",
    sandboxId: "sbx_1",
    generation: 1,
    takenAt: 1,
    sizeBytes: 5,
    images: [{ name: "a.img", size: 5, sum: "00" }],
    arch: "x64",
    criuVersion: "4",
    keeperVersion: "k",
    image: "host",
    imageVersion: "v",
    config: "c",
    mounts: [{ at: "/usr", source: { kind: "host", path: "/usr" } }],
    mapped: [{ path: "/usr/bin/env", ino: "1", size: "1", modifiedNs: "1" }],
  };

  test("is read as it was written", () => {
    expect(readManifest(JSON.parse(JSON.stringify(manifest)))).toEqual(manifest);
  });

  test.for(Object.keys(manifest))("without its %s is none", (field) => {
    expect(readManifest({ ...manifest, [field]: undefined })).toBeNull();
  });

  test("with something else in one of its fields is none", () => {
    const wrong = [
      { version: 0 },
      { generation: "1" },
      { sizeBytes: -1 },
      { images: [{ name: "a.img" }] },
      { mounts: [{ at: "/usr", source: { kind: "host" } }] },
      { mapped: "none" },
    ];
    for (const change of wrong) expect(readManifest({ ...manifest, ...change })).toBeNull();
    for (const other of [null, 1, "unreadable", []]) expect(readManifest(other)).toBeNull();
  });
});

import { describe, expect, test } from "vitest";
import { boundMounts, externalsOf } from "../drives/bound-mounts.ts";
import { changedOf, parseMapped, readMapped } from "../files/mapped-files.ts";
import { MANIFEST_VERSION, readManifest } from "../machine/manifest.ts";
import { parseMounts } from "../proc/mount-table.ts";
import { dumpArgv, meaningOf, restoreArgv } from "./criu-argv.ts";

const common = { binary: "/criu", images: "/i", work: "/w", root: "/r" };
const externals = [{ key: "k0", at: "/usr", from: "/elsewhere/usr" }];

const valueAfter = (argv: readonly string[], option: string) => argv[argv.indexOf(option) + 1];

describe("CRIU's arguments", () => {
  test("a dump leaves the tree frozen and does not lock the network", () => {
    const argv = dumpArgv({
      ...common,
      externals,
      pid: 42,
      freezer: "/cgroup",
      controllers: ["cpu", "memory"],
    });
    expect(argv.slice(0, 4)).toEqual(["/criu", "dump", "--tree", "42"]);
    expect(argv).toContain("--leave-running");
    expect(valueAfter(argv, "--freeze-cgroup")).toBe("/cgroup");
    expect(valueAfter(argv, "--network-lock")).toBe("skip");
    expect(argv.filter((_, index) => argv[index - 1] === "--cgroup-dump-controller")).toEqual([
      "cpu",
      "memory",
    ]);
    expect(valueAfter(argv, "--external")).toBe("mnt[/usr]:k0");
  });

  test("a restore detaches from the tree and uses the dump's keys for the mounts", () => {
    const argv = restoreArgv({ ...common, externals, pidFile: "/w/pid", script: "/porter", cgroups: [] });
    expect(argv.slice(0, 2)).toEqual(["/criu", "restore"]);
    expect(argv).toContain("--restore-detached");
    expect(valueAfter(argv, "--action-script")).toBe("/porter");
    expect(valueAfter(argv, "--external")).toBe("mnt[k0]:/elsewhere/usr");
    expect(argv).not.toContain("--cgroup-root");
  });

  test("a restore of another sandbox's memory uses this sandbox's cgroup path", () => {
    const argv = restoreArgv({
      ...common,
      externals,
      pidFile: "/w/pid",
      script: "/porter",
      cgroups: ["/a/b", "cpu:/c/a/b"],
    });
    const roots = argv.filter((_, index) => argv[index - 1] === "--cgroup-root");
    expect(roots).toEqual(["/a/b", "cpu:/c/a/b"]);
  });

  test("dump and restore have the same options for cgroups, locks, connections and network", () => {
    const both = [
      dumpArgv({ ...common, externals, pid: 42, freezer: "/cgroup", controllers: ["cpu", "memory"] }),
      restoreArgv({ ...common, externals, pidFile: "/w/pid", script: "/porter", cgroups: [] }),
    ];
    for (const argv of both) {
      const wanted = ["--manage-cgroups=soft", "--tcp-close", "--file-locks", "--no-default-config", "-v1"];
      expect(argv).toEqual(expect.arrayContaining(wanted));
      expect(valueAfter(argv, "--empty-ns")).toBe("net");
      expect(valueAfter(argv, "--root")).toBe("/r");
    }
  });

  test("errors with a known meaning are explained to the sandbox's owner", () => {
    expect(meaningOf("Error: tty: ctty inheritance detected sid/pgrp 4")).toMatch(/terminal/);
    expect(meaningOf("Error: write: No space left on device")).toMatch(/disk is full/);
    expect(meaningOf("Error: whatever")).toBeNull();
  });
});

describe("bind mounts of a sandbox", () => {
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

  test("are distinguished from the file systems that the runtime created", () => {
    expect(boundMounts(parseMounts(inside), { hostDirs: ["/usr"], drives: [] })).toEqual([
      { at: "/dev/null", source: { kind: "host", path: "/dev/null" } },
      { at: "/proc/keys", source: { kind: "host", path: "/dev/null" } },
      { at: "/usr", source: { kind: "host", path: "/usr" } },
      { at: "/usr/local", source: { kind: "host", path: "/usr/local" } },
      { at: "/.holdfast", source: { kind: "keeper" } },
      { at: "/.holdfast/control", source: { kind: "control" } },
    ]);
  });

  test("are not dumped if one was not requested", () => {
    expect(() => boundMounts(parseMounts(inside), { hostDirs: [], drives: [] })).toThrow("not requested");
  });

  test("are keyed by their position", () => {
    const bound = boundMounts(parseMounts(inside), { hostDirs: ["/usr"], drives: [] });
    const keys = externalsOf(bound, ({ kind }) => kind).map(({ key, from }) => [key, from]);
    expect(keys[0]).toEqual(["holdfast-0", "host"]);
    expect(keys[5]).toEqual(["holdfast-5", "control"]);
  });
});

describe("mapped files of the host", () => {
  test("are read from a process's memory map", () => {
    const maps = [
      "5581d8e00000-5581d8e2f000 r--p 00000000 fe:00 1234                       /usr/bin/python3.11",
      "5581d8e2f000-5581d8e3f000 r-xp 0002f000 fe:00 1234                       /usr/bin/python3.11",
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ",
      "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]",
      "7f1000000000-7f1000001000 r--p 00000000 fe:00 99                         /usr/lib/a b.so",
    ];
    expect(parseMapped(maps.join("\n"))).toEqual(["/usr/bin/python3.11", "/usr/lib/a b.so"]);
  });

  test("count as changed after a change of their metadata or their removal", () => {
    const mapped = readMapped([process.pid], ["/usr", "/lib"]);
    expect(mapped.length).toBeGreaterThan(0);
    expect(changedOf(mapped)).toEqual([]);
    const [first, ...rest] = mapped;
    if (first === undefined) throw new Error("no file is mapped");
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

  test.for(Object.keys(manifest))("is rejected without its %s", (field) => {
    expect(readManifest({ ...manifest, [field]: undefined })).toBeNull();
  });

  test("is rejected if a field has another type", () => {
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

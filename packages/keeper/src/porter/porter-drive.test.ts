import { type ChildProcessWithoutNullStreams, execFileSync, spawn, spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Identity } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { isAlive, soon, stopChild, temporary, until } from "../testing/test-keeper.ts";
import { Porter } from "./porter.ts";
import type { MountedInto, MountInto, MountPointBefore } from "./porter-drive.ts";

const porter = new Porter();
const BASE = 100_000;
const USER = BASE + 1_000;

let tools: string;
let directory: string;
const at = (...names: string[]) => join(directory, ...names);

beforeAll(() => {
  tools = temporary();
  const source = fileURLToPath(new URL("../../fixtures/instance.c", import.meta.url));
  execFileSync("gcc", ["-D_GNU_SOURCE", "-o", join(tools, "instance"), source]);
});
afterAll(() => porter.removeTree(tools));
beforeEach(() => {
  directory = temporary();
  chmodSync(directory, 0o755);
});
afterEach(() => porter.removeTree(directory));

const startTimeOf = (pid: number): string => {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
};

function identityOf(path: string): Identity {
  const { dev, ino } = statSync(path, { bigint: true });
  return { dev: String(dev), ino: String(ino) };
}

const likenessOf = (path: string): MountPointBefore => {
  const { uid, gid, mode } = statSync(path);
  return { uid, gid, mode: mode & 0o7777 };
};

/** A process in its own overlay, with mapped ids. */
class TestInstance {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #lines: AsyncIterator<string>;
  readonly #reader: Interface;
  pid = 0;
  startTime = "";

  private constructor(root: string) {
    this.#process = spawn(join(tools, "instance"), [root, String(BASE), "65536"]);
    this.#reader = createInterface(this.#process.stdout);
    this.#lines = this.#reader[Symbol.asyncIterator]();
  }

  static async start(root: string): Promise<TestInstance> {
    const instance = new TestInstance(root);
    instance.pid = Number(await instance.#line());
    instance.startTime = startTimeOf(instance.pid);
    return instance;
  }

  async #line(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`the instance ended: ${this.#process.stderr.read()}`);
    return value;
  }

  /** Runs a command as this user in the instance. Returns "done", or the name of the error. */
  async as(uid: number, verb: string, path: string): Promise<string> {
    this.#process.stdin.write(`${uid} ${verb} ${path}\n`);
    return this.#line();
  }

  async stop(): Promise<void> {
    this.#process.stdin.end();
    await stopChild(this.#process);
    await until("the instance is gone", () => !isAlive(this.pid));
  }
}

describe("a drive in a running instance", () => {
  let instance: TestInstance;
  let source: string;
  const root = () => at("root");

  beforeEach(async () => {
    for (const name of ["lower", "upper", "work", "root", "drive"]) mkdirSync(at(name));
    mkdirSync(at("lower", "home", "work"), { recursive: true });
    writeFileSync(at("lower", "home", "work", "under"), "of the image");
    execFileSync("chown", ["-R", `${BASE}:${BASE}`, at("lower"), at("upper")]);
    chownSync(at("lower", "home", "work"), USER, USER);
    chmodSync(at("lower", "home", "work"), 0o2770);
    source = at("drive");
    await porter.makeDriveRoot({ path: source, idBase: BASE, owner: BASE });
    await porter.mountOverlay({
      marker: "holdfast-test",
      target: root(),
      lower: [at("lower")],
      upper: at("upper"),
      work: at("work"),
    });
    instance = await TestInstance.start(root());
  });
  afterEach(async () => {
    await instance.stop();
    await porter.unmount(root());
  });

  const mount = (change: Partial<MountInto> = {}): Promise<MountedInto> =>
    porter.mountInto({
      pid: instance.pid,
      startTime: instance.startTime,
      source,
      subpath: "/",
      target: "/home/work",
      readOnly: false,
      sourceOwner: USER,
      targetOwner: USER,
      ...change,
    });
  const unmount = (target = "/home/work", before = { uid: USER, gid: USER, mode: 0o2770 }) =>
    porter.unmountFrom({ pid: instance.pid, startTime: instance.startTime, target, before });
  const tableOf = (target: string) =>
    readFileSync(`/proc/${instance.pid}/mountinfo`, "utf8")
      .split("\n")
      .filter((line) => line.split(" ")[4] === target);

  test("is visible, writable from inside, and reports the previous directory", async () => {
    writeFileSync(join(source, "file"), "of the drive");
    expect(await mount()).toEqual({
      mounted: identityOf(source),
      before: { uid: USER, gid: USER, mode: 0o2770 },
    });
    expect(await instance.as(0, "read", "/home/work/file")).toBe("done");
    expect(await instance.as(0, "read", "/home/work/under")).toBe("ENOENT");
    expect(await instance.as(1000, "write", "/home/work/new")).toBe("done");
    expect(statSync(join(source, "new")).uid).toBe(USER);
    expect(tableOf("/home/work")[0]).toMatch(/ rw,nosuid,nodev,relatime - /);
    expect(existsSync(join(root(), "home", "work", "new"))).toBe(false);
  });

  test("that is read-only accepts no writes", async () => {
    writeFileSync(join(source, "file"), "x");
    expect(await mount({ readOnly: true })).toMatchObject({ mounted: identityOf(source) });
    expect(await instance.as(0, "read", "/home/work/file")).toBe("done");
    for (const uid of [0, 1000]) expect(await instance.as(uid, "write", "/home/work/new")).toBe("EROFS");
  });

  test("can be a directory in the drive, which is created for its owner, as is the path to the mount point", async () => {
    const mounted = await mount({ subpath: "/a/b", target: "/srv/deep/er" });
    expect(mounted).toEqual({
      mounted: identityOf(join(source, "a", "b")),
      before: { uid: USER, gid: USER, mode: 0o755 },
    });
    expect(statSync(join(source, "a")).uid).toBe(USER);
    expect(likenessOf(join(root(), "srv", "deep"))).toEqual({ uid: USER, gid: USER, mode: 0o755 });
    for (const uid of [0, 1000]) expect(await instance.as(uid, "write", `/srv/deep/er/${uid}`)).toBe("done");
    expect(readdirSync(join(source, "a", "b")).toSorted()).toEqual(["0", "1000"]);
  });

  test("mounted again is a no-op; with other options, or another drive, the mount point is occupied", async () => {
    await mount();
    expect(await mount()).toEqual({ mounted: identityOf(source), before: null });
    expect(tableOf("/home/work")).toHaveLength(1);
    expect(await mount({ readOnly: true })).toMatchObject({ refused: "occupied" });
    expect(await mount({ subpath: "/other" })).toMatchObject({ refused: "occupied" });
    expect(await mount({ target: "/" })).toMatchObject({ refused: "occupied" });
    expect(tableOf("/home/work")).toHaveLength(1);
  });

  test.each(["/etc", "../outside", "inside"])(
    "is never mounted through a link to %s in the drive",
    async (link) => {
      mkdirSync(at("outside"));
      mkdirSync(join(source, "inside"));
      symlinkSync(link, join(source, "link"));
      for (const subpath of ["/link", "/link/deeper"]) {
        expect(await mount({ subpath })).toMatchObject({ refused: "symlink", message: /symbolic link/ });
      }
      expect(readdirSync(at("outside"))).toEqual([]);
      expect(tableOf("/home/work")).toEqual([]);
      expect(await instance.as(1000, "write", "/home/work/still")).toBe("done");
    },
  );

  test("is never mounted through a link on the path to its mount point", async () => {
    symlinkSync("/home", join(root(), "link"));
    symlinkSync("home/work", join(root(), "short"));
    for (const target of ["/link/work", "/short", "/link/made"]) {
      expect(await mount({ target })).toMatchObject({ refused: "symlink" });
    }
    expect(readdirSync(join(root(), "home"))).toEqual(["work"]);
    expect(await instance.as(1000, "write", "/home/work/still")).toBe("done");
  });

  test("is refused if a file is in the path, or there is no drive", async () => {
    writeFileSync(join(source, "file"), "");
    expect(await mount({ subpath: "/file" })).toMatchObject({ refused: "not_directory" });
    expect(await mount({ target: "/home/work/under" })).toMatchObject({ refused: "not_directory" });
    expect(await mount({ source: at("nowhere") })).toMatchObject({ refused: "source_missing" });
    await expect(mount({ subpath: "/../up" })).rejects.toThrow(/usage/);
    await expect(mount({ target: "/home/../etc" })).rejects.toThrow(/usage/);
    expect(likenessOf(join(root(), "home", "work"))).toEqual({ uid: USER, gid: USER, mode: 0o2770 });
  });

  test("is refused on a read-only file system, which is unchanged", async () => {
    await mount({ readOnly: true, target: "/ro" });
    mkdirSync(join(source, "there"));
    expect(await mount({ target: "/ro/new" })).toMatchObject({ refused: "read_only" });
    expect(await mount({ target: "/ro/there" })).toMatchObject({ refused: "read_only" });
    expect(readdirSync(source)).toEqual(["there"]);
  });

  test("that is missing leaves a directory that not even root can write to", async () => {
    await mount();
    expect(await instance.as(0, "umount", "/home/work")).toBe("done");
    expect(tableOf("/home/work")).toEqual([]);
    for (const uid of [0, 1000]) {
      expect(await instance.as(uid, "write", "/home/work/lost")).toBe("EACCES");
      expect(await instance.as(uid, "mkdir", "/home/work/lost")).toBe("EACCES");
    }
    expect(await mount()).toEqual({ mounted: identityOf(source), before: null });
    expect(await instance.as(1000, "write", "/home/work/kept")).toBe("done");
  });

  test("is unmounted with everything stacked on it, busy or not, and the directory is restored", async () => {
    await mount();
    await instance.as(0, "hold", "/home/work");
    for (let index = 0; index < 3; index++) await instance.as(0, "stack", "/home/work");
    expect(tableOf("/home/work")).toHaveLength(4);
    expect(await mount()).toMatchObject({ refused: "occupied" });
    expect(await unmount()).toBe("unmounted");
    expect(tableOf("/home/work")).toEqual([]);
    expect(likenessOf(join(root(), "home", "work"))).toEqual({ uid: USER, gid: USER, mode: 0o2770 });
    expect(await instance.as(1000, "write", "/home/work/mine")).toBe("done");
    expect(await unmount()).toBe("unmounted");
    expect(await unmount("/not/there")).toBe("unmounted");
    expect(await mount()).toMatchObject({ before: { uid: USER, gid: USER, mode: 0o2770 } });
  });

  test("is unmounted without changing a directory put in its place", async () => {
    await mount();
    await instance.as(0, "umount", "/home/work");
    rmSync(join(root(), "home", "work"), { recursive: true });
    mkdirSync(join(root(), "home", "work"), { mode: 0o700 });
    chownSync(join(root(), "home", "work"), BASE + 5, BASE + 6);
    expect(await unmount()).toBe("unmounted");
    expect(likenessOf(join(root(), "home", "work"))).toEqual({ uid: BASE + 5, gid: BASE + 6, mode: 0o700 });
  });

  test("is never mounted for another process with the same pid, nor on the host", async () => {
    const startTime = String(Number(instance.startTime) + 1);
    expect(await mount({ startTime })).toBe("gone");
    expect(await mount({ pid: 0x7fffffff })).toBe("gone");
    const gone = { pid: instance.pid, startTime, target: "/home/work" };
    expect(await porter.unmountFrom({ ...gone, before: likenessOf(source) })).toBe("gone");
    const own = { pid: process.pid, startTime: startTimeOf(process.pid) };
    await expect(mount({ ...own, target: at("lower") })).rejects.toThrow(/no mounts of its own/);
    expect(tableOf("/home/work")).toEqual([]);
  });

  test("is writable by both users, whichever of them created an entry", async () => {
    await mount();
    expect(await instance.as(0, "mkdir", "/home/work/roots")).toBe("done");
    expect(await instance.as(1000, "mkdir", "/home/work/users")).toBe("done");
    for (const [maker, other] of [
      [0, 1000],
      [1000, 0],
    ] as const) {
      for (const place of ["", "roots/", "users/"]) {
        expect(await instance.as(maker, "write", `/home/work/${place}of-${maker}`)).toBe("done");
        expect(await instance.as(other, "append", `/home/work/${place}of-${maker}`)).toBe("done");
      }
    }
    expect(await instance.as(1001, "write", "/home/work/strange")).toBe("EACCES");
    expect(await instance.as(1001, "append", "/home/work/of-0")).toBe("EACCES");
    expect(await instance.as(0, "private", "/home/work/secret")).toBe("done");
    expect(await instance.as(1000, "read", "/home/work/secret")).toBe("EACCES");
  });
});

describe("a mount point without an instance", () => {
  const sealed = { uid: 0, gid: 0, mode: 0o555 };
  const before = { uid: USER, gid: BASE, mode: 0o1777 };
  const unseal = (path: string, to: MountPointBefore = before, root = at("root")) =>
    porter.unseal({ root, path, before: to });

  test("that is sealed is restored, and nothing else is", async () => {
    mkdirSync(at("root", "a"), { recursive: true });
    chmodSync(at("root", "a"), sealed.mode);
    expect(likenessOf(at("root", "a"))).toEqual(sealed);
    await unseal("/a");
    expect(likenessOf(at("root", "a"))).toEqual(before);
    await unseal("/a", { uid: 7, gid: 8, mode: 0 });
    expect(likenessOf(at("root", "a"))).toEqual(before);
    await unseal("/none/there");
    await unseal("/there", before, at("none"));
  });

  test("is not reached by a link", async () => {
    mkdirSync(at("root"));
    mkdirSync(at("outside"));
    symlinkSync(at("outside"), at("root", "link"));
    const outside = likenessOf(at("outside"));
    await unseal("/link", { ...outside, mode: 0 });
    expect(likenessOf(at("outside"))).toEqual(outside);
  });
});

describe("a staged directory", () => {
  beforeEach(() => {
    for (const name of ["drive", "stage"]) mkdirSync(at(name));
  });
  afterEach(() => porter.unmount(at("stage")));

  const stage = (subpath: string, readOnly = false) =>
    porter.stage({ source: at("drive"), subpath, target: at("stage"), readOnly, sourceOwner: USER });
  const staged = () =>
    readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .filter((line) => line.split(" ")[4] === at("stage"));

  test("is a private mount of a directory that is created if missing", async () => {
    expect(await stage("/sub", true)).toEqual({ staged: identityOf(at("drive", "sub")) });
    expect(staged()[0]).toMatch(/ ro,nosuid,nodev,relatime - /);
    expect(statSync(at("drive", "sub")).uid).toBe(USER);
    expect(await stage("/sub", true)).toEqual({ staged: identityOf(at("drive", "sub")) });
    expect(staged()).toHaveLength(1);
    expect(await stage("/sub")).toMatchObject({ refused: "occupied" });
    expect(await stage("/else", true)).toMatchObject({ refused: "occupied" });
  });

  test("is never found through a link, nor if the drive is missing", async () => {
    mkdirSync(at("drive", "real"));
    symlinkSync("real", at("drive", "link"));
    symlinkSync("/", at("drive", "host"));
    for (const subpath of ["/link", "/host", "/host/etc", "/link/new"]) {
      expect(await stage(subpath)).toMatchObject({ refused: "symlink" });
    }
    expect(readdirSync(at("drive", "real"))).toEqual([]);
    execFileSync("rm", ["-r", at("drive")]);
    expect(await stage("/")).toMatchObject({ refused: "source_missing" });
    expect(staged()).toEqual([]);
  });
});

describe("the root of a drive", () => {
  test("is an existing directory, not a link to one", async () => {
    mkdirSync(at("real"));
    symlinkSync(at("real"), at("link"));
    const make = (path: string) => porter.makeDriveRoot({ path, idBase: BASE, owner: USER });
    await expect(make(at("none"))).rejects.toThrow(/can't be opened/);
    await expect(make(at("link"))).rejects.toThrow(/can't be opened/);
    expect(statSync(at("real")).uid).toBe(0);
    await make(at("real"));
    await make(at("real"));
    expect(likenessOf(at("real"))).toEqual({ uid: USER, gid: USER, mode: 0o775 });
  });

  test("has only owner and mode if the file system has no ACLs", async () => {
    mkdirSync(at("plain"));
    spawnSync("mount", ["-t", "tmpfs", "-o", "noacl", "none", at("plain")]);
    spawnSync("mount", ["-t", "ramfs", "none", at("plain")]);
    try {
      await porter.makeDriveRoot({ path: at("plain"), idBase: BASE, owner: BASE });
      expect(likenessOf(at("plain"))).toEqual({ uid: BASE, gid: BASE, mode: 0o755 });
    } finally {
      await porter.unmount(at("plain"));
    }
  });
});

describe("the usage of a tree", () => {
  const blocks = (...paths: string[]) => paths.reduce((sum, path) => sum + statSync(path).blocks * 512, 0);

  test("counts hard links once, holes not at all, and neither links nor mounts", async () => {
    const tree = at("tree");
    for (const name of ["sub", "mounted"]) mkdirSync(join(tree, name), { recursive: true });
    writeFileSync(join(tree, "one"), Buffer.alloc(100_000, 1));
    for (let index = 0; index < 20; index++) linkSync(join(tree, "one"), join(tree, "sub", `again-${index}`));
    execFileSync("truncate", ["-s", "1G", join(tree, "sparse")]);
    mkdirSync(at("outside"));
    writeFileSync(at("outside", "large"), Buffer.alloc(5_000_000, 1));
    symlinkSync(at("outside"), join(tree, "link"));
    spawnSync("mount", ["--bind", at("outside"), join(tree, "mounted")]);
    const under = () => blocks(tree, join(tree, "sub"), join(tree, "one"), join(tree, "sparse"));
    try {
      const usage = await porter.usage(tree, soon());
      expect(usage).toEqual({ bytes: under(), files: 3 });
      expect(usage.bytes).toBeGreaterThan(100_000);
      expect(usage.bytes).toBeLessThan(200_000);
    } finally {
      await porter.unmount(join(tree, "mounted"));
    }
    const [duBytes] = execFileSync("du", ["-s", "-B1", tree], { encoding: "utf8" }).split("\t");
    expect((await porter.usage(tree, soon())).bytes).toBe(Number(duBytes));
  });

  test("is counted however deep and branched it is", async () => {
    const dig = `
      const { mkdirSync, writeFileSync } = require("node:fs");
      for (let depth = 0; depth < 100; depth++) {
        for (const name of ["a", "m".repeat(50), "z"]) mkdirSync(name);
        writeFileSync("a/file", "x");
        if (depth % 20 === 10) mkdirSync("z/" + "deep/".repeat(40), { recursive: true });
        process.chdir("m".repeat(50));
      }`;
    mkdirSync(at("tree"));
    expect(spawnSync(process.execPath, ["-e", dig], { cwd: at("tree") }).status).toBe(0);
    const [duBytes] = execFileSync("du", ["-s", "-B1", at("tree")], { encoding: "utf8" }).split("\t");
    expect(await porter.usage(at("tree"), soon())).toEqual({ bytes: Number(duBytes), files: 100 });
  });

  test("is an error for a missing path or a link, and ends with its signal", async () => {
    await expect(porter.usage(at("none"), soon())).rejects.toThrow(/can't be opened/);
    symlinkSync("/usr", at("link"));
    await expect(porter.usage(at("link"), soon())).rejects.toThrow(/can't be opened/);
    await expect(porter.usage("/usr", AbortSignal.timeout(1))).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });
});

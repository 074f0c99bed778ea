import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { connectKeeper } from "../link/link.ts";
import {
  bodyOf,
  collect,
  IDENTITY,
  isAlive,
  pause,
  removeAll,
  soon,
  stopChild,
  temporary,
  until,
} from "../testing/test-keeper.ts";
import { keeperBinaries } from "./binaries.ts";
import { type Jail, type KeeperRename, Porter, type PrivateView } from "./porter.ts";
import { Spawner } from "./spawner.ts";

const porter = new Porter();
const NOBODY = { idBase: 100_000, idCount: 65_536 };

let directory: string;
beforeEach(() => {
  directory = temporary();
});
afterEach(() => removeAll(directory));

const startTimeOf = (pid: number): string => {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
};

const isMounted = (path: string): boolean =>
  readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .some((line) => line.split(" ")[4] === path);

describe("signal", () => {
  test("reaches the process that has the pid and the start time", async () => {
    const child = spawn("sleep", ["60"]);
    const pid = child.pid ?? 0;
    expect(await porter.signal(pid, startTimeOf(pid), 0)).toBe("sent");
    expect(isAlive(pid)).toBe(true);
    expect(await porter.signal(pid, startTimeOf(pid), 15)).toBe("sent");
    await until("the process is gone", () => !isAlive(pid));
    await stopChild(child);
    expect(await porter.signal(pid, "1", 9)).toBe("gone");
  });

  test("spares another process with the same pid", async () => {
    const child = spawn("sleep", ["60"]);
    const pid = child.pid ?? 0;
    expect(await porter.signal(pid, String(Number(startTimeOf(pid)) + 1), 9)).toBe("gone");
    await pause(20);
    expect(isAlive(pid)).toBe(true);
    await stopChild(child);
  });
});

describe("overlay", () => {
  test("is mounted with its marker and unmounted with every mount stacked on it", async () => {
    const at = (name: string) => join(directory, name);
    for (const name of ["a,b", "low:er", "upper", "work", "target"]) mkdirSync(at(name));
    writeFileSync(join(at("a,b"), "one"), "from the first");
    writeFileSync(join(at("low:er"), "two"), "from the second");
    const overlay = {
      target: at("target"),
      lower: [at("a,b"), at("low:er")],
      upper: at("upper"),
      work: at("work"),
    };
    try {
      await porter.mountOverlay({ marker: "holdfast:test:sbx_1", ...overlay });
      expect(readdirSync(at("target")).toSorted()).toEqual(["one", "two"]);
      expect(readFileSync("/proc/self/mountinfo", "utf8")).toContain(
        `${at("target")} rw,nosuid,nodev,relatime`,
      );
      expect(readFileSync("/proc/self/mountinfo", "utf8")).toContain(" - overlay holdfast:test:sbx_1 ");
      writeFileSync(join(at("target"), "three"), "");
      expect(existsSync(join(at("upper"), "three"))).toBe(true);
      spawnSync("mount", ["-t", "tmpfs", "none", at("target")]);
      await expect(porter.removeTree(directory)).rejects.toThrow(/mount/);
    } finally {
      await porter.unmount(at("target"));
    }
    expect(isMounted(at("target"))).toBe(false);
    await porter.unmount(at("target"));
    await porter.unmount(at("nowhere"));
  });

  test("that can't be mounted reports why", async () => {
    const overlay = {
      marker: "m",
      target: directory,
      lower: ["/nowhere"],
      upper: "/nowhere",
      work: "/nowhere",
    };
    await expect(porter.mountOverlay(overlay)).rejects.toThrow(/No such file/);
  });

  test("that is in use is detached", async () => {
    spawnSync("mount", ["-t", "tmpfs", "none", directory]);
    const child = spawn("sleep", ["60"], { cwd: directory });
    await until("the process is in there", () => readlinkSync(`/proc/${child.pid}/cwd`) === directory);
    await porter.unmount(directory);
    expect(isMounted(directory)).toBe(false);
    await stopChild(child);
  });
});

describe("sums", () => {
  test("are returned for every file of a directory, and change with any byte", async () => {
    const sizes = { empty: 0, byte: 1, small: 31, round: 32, more: 100, large: 3 * 1_048_576 + 5 };
    for (const [name, size] of Object.entries(sizes))
      writeFileSync(join(directory, name), Buffer.alloc(size, 7));
    const first = await porter.sums(directory);
    expect(new Map([...(first ?? [])].map(([name, { size }]) => [name, size]))).toEqual(
      new Map(Object.entries(sizes)),
    );
    expect(await porter.sums(directory)).toEqual(first);
    for (const [name, size] of Object.entries(sizes).filter(([, each]) => each > 0)) {
      for (const at of [0, size >> 1, size - 1]) {
        const bytes = Buffer.alloc(size, 7);
        bytes.writeUInt8(6, at);
        writeFileSync(join(directory, name), bytes);
        expect((await porter.sums(directory))?.get(name)?.sum).not.toBe(first?.get(name)?.sum);
      }
    }
    const distinct = new Set([...(first ?? [])].map(([, { sum }]) => sum));
    expect(distinct.size).toBe(Object.keys(sizes).length);
  });

  test("are refused if the directory is missing or contains anything but files", async () => {
    expect(await porter.sums(join(directory, "nowhere"))).toBeNull();
    symlinkSync("/etc/passwd", join(directory, "link"));
    await expect(porter.sums(directory)).rejects.toThrow(/can't be opened/);
    await porter.removeTree(join(directory, "link"));
    mkdirSync(join(directory, "below"));
    await expect(porter.sums(directory)).rejects.toThrow(/not a regular file/);
  });
});

test("a file system is flushed, and a missing one is an error", async () => {
  await porter.sync([directory, "/"]);
  await expect(porter.sync([join(directory, "nowhere")])).rejects.toThrow(/can't be opened/);
});

describe("a command in a mount namespace of its own", () => {
  const privately = (script: string, options: PrivateView) => {
    const [file = "", ...args] = porter.privateArgv(["/bin/sh", "-c", script], options);
    const { stdout, stderr } = spawnSync(file, args, { encoding: "utf8" });
    return stdout + stderr;
  };

  test("has a /run with one file in it, or none if that is missing", () => {
    const runFile = join(directory, "criu.kdat");
    expect(privately("ls -A /run; stat -f -c %T /run", { runFile })).toBe("tmpfs\n");
    writeFileSync(runFile, "known");
    expect(privately("ls -A /run; cat /run/*", { runFile })).toBe("criu.kdat\nknown");
    expect(isMounted("/run")).toBe(privately("true", {}) !== "");
  });

  test("has a /tmp with one directory, including its mounts", () => {
    const before = isMounted("/tmp");
    mkdirSync(join(directory, "below", "mounted"), { recursive: true });
    spawnSync("mount", ["-t", "tmpfs", "none", join(directory, "below", "mounted")]);
    try {
      writeFileSync(join(directory, "below", "mounted", "file"), "seen");
      const tmpDir = join(directory, "below");
      const look = `ls /tmp; cat ${tmpDir}/mounted/file; touch /tmp/left ${tmpDir}/kept`;
      expect(privately(look, { tmpDir })).toBe(`${directory.split("/")[2]}\nseen`);
      expect(existsSync("/tmp/left")).toBe(false);
      expect(existsSync(join(tmpDir, "kept"))).toBe(true);
      expect(privately("ls -A /tmp", { tmpDir: "/var" })).toBe("");
    } finally {
      spawnSync("umount", [join(directory, "below", "mounted")]);
    }
    expect(isMounted("/tmp")).toBe(before);
  });
});

describe("a command that enters a cgroup", () => {
  const entering = (script: string, view: PrivateView) => {
    const [file = "", ...args] = porter.privateArgv(["/bin/sh", "-c", script], view);
    return spawnSync(file, args, { encoding: "utf8" });
  };

  test("is in the cgroup before it runs, and has its own mount namespace only if needed", () => {
    const enter = join(directory, "procs");
    writeFileSync(enter, "");
    const look = `echo $$; cat ${enter}; readlink /proc/self/ns/mnt`;
    const [pid, entered, namespace] = entering(look, { enter }).stdout.split("\n");
    expect(entered).toBe(pid);
    expect(namespace).toBe(readlinkSync("/proc/self/ns/mnt"));
    const apart = entering(look, { enter, unmount: ["/not/mounted"] }).stdout.split("\n");
    expect(apart[2]).toMatch(/^mnt:/);
    expect(apart[2]).not.toBe(namespace);
  });

  test("is not run if there is no such cgroup, or it refuses the process", () => {
    for (const enter of [join(directory, "nowhere"), "/proc/version", directory]) {
      const { status, stdout, stderr } = entering("echo run", { enter });
      expect([status, stdout]).toEqual([1, ""]);
      expect(stderr).toMatch(/^the cgroup can't be entered: /);
    }
  });
});

test("only the command sees one directory in another's place, including its mounts", () => {
  const [from, to] = [join(directory, "from"), join(directory, "to")];
  for (const path of [join(from, "mounted"), to]) mkdirSync(path, { recursive: true });
  spawnSync("mount", ["-t", "tmpfs", "none", join(from, "mounted")]);
  try {
    writeFileSync(join(from, "mounted", "file"), "seen");
    const view = { bind: { from, to } };
    const [file = "", ...args] = porter.privateArgv(["/bin/cat", join(to, "mounted", "file")], view);
    expect(spawnSync(file, args, { encoding: "utf8" }).stdout).toBe("seen");
    expect(readdirSync(to)).toEqual([]);
    const [, ...wrong] = porter.privateArgv(["/bin/echo", "run"], { bind: { from, to: join(to, "none") } });
    expect(spawnSync(file, wrong, { encoding: "utf8" })).toMatchObject({ status: 1, stdout: "" });
  } finally {
    spawnSync("umount", [join(from, "mounted")]);
  }
});

describe("removeTree", () => {
  test("removes a tree deeper than any path can be", async () => {
    const tree = join(directory, "tree");
    mkdirSync(tree);
    const dig = `
      const { mkdirSync, writeFileSync } = require("node:fs");
      for (let depth = 0; depth < 300; depth++) {
        mkdirSync("n".repeat(50));
        mkdirSync("sibling");
        process.chdir("n".repeat(50));
        writeFileSync("file", "");
      }`;
    expect(spawnSync(process.execPath, ["-e", dig], { cwd: tree }).status).toBe(0);
    await porter.removeTree(tree);
    expect(existsSync(tree)).toBe(false);
  });

  test("removes a deep tree that has taken the names it would be moved to", async () => {
    const tree = join(directory, "tree");
    const deep = (name: string) => mkdirSync(join(tree, name, "n/".repeat(70)), { recursive: true });
    spawnSync("mount", ["-t", "tmpfs", "none", directory]);
    try {
      deep("found first where the oldest is");
      writeFileSync(join(tree, "file"), "");
      for (let index = 0; index < 100_000; index++) {
        linkSync(join(tree, "file"), join(tree, `.holdfast-removing-${index}`));
      }
      deep("found first where the newest is");
      await porter.removeTree(tree);
      expect(existsSync(tree)).toBe(false);
    } finally {
      await porter.unmount(directory);
    }
  });

  test("removes hostile names and never what links point at", async () => {
    const kept = join(directory, "kept");
    const tree = join(directory, "tree");
    mkdirSync(kept);
    writeFileSync(join(kept, "file"), "stays");
    mkdirSync(join(tree, "sub", "-rf", "a\nb"), { recursive: true });
    symlinkSync(kept, join(tree, "sub", "link"));
    symlinkSync("/", join(tree, "root"));
    linkSync(join(kept, "file"), join(tree, "hard"));
    spawnSync("mkfifo", [join(tree, "fifo")]);
    symlinkSync(kept, join(directory, "toplink"));
    await porter.removeTree(tree);
    await porter.removeTree(join(directory, "toplink"));
    expect(readdirSync(directory)).toEqual(["kept"]);
    expect(readFileSync(join(kept, "file"), "utf8")).toBe("stays");
  });

  test("does nothing for a missing path, and refuses a relative path", async () => {
    await porter.removeTree(join(directory, "nothing"));
    await porter.removeTree(join(directory, "no", "parent"));
    for (const path of ["/", "relative", `${directory}/..`, ""]) {
      await expect(porter.removeTree(path), path).rejects.toThrow();
    }
    expect(existsSync(directory)).toBe(true);
  });

  test("leaves a mount alone, inside the tree or at its top", async () => {
    const inside = join(directory, "tree", "deep", "mount");
    mkdirSync(inside, { recursive: true });
    spawnSync("mount", ["-t", "tmpfs", "none", inside]);
    writeFileSync(join(inside, "file"), "stays");
    await expect(porter.removeTree(join(directory, "tree"))).rejects.toThrow(/mount/);
    await expect(porter.removeTree(inside)).rejects.toThrow(/mount/);
    expect(existsSync(join(inside, "file"))).toBe(true);
    await porter.unmount(inside);
  });
});

test("a helper that does not end in time is killed", async () => {
  const stuck = join(directory, "stuck");
  writeFileSync(stuck, "#!/bin/sh\necho $$ > $2/pid\nexec sleep 60\n", { mode: 0o755 });
  const slow = new Porter({ binary: stuck, spawner: new Spawner(keeperBinaries().porter), deadlineMs: 300 });
  await expect(slow.unmount(directory)).rejects.toThrow(/did not end within 0.3 s/);
  const pid = Number(readFileSync(join(directory, "pid"), "utf8"));
  await until("it is gone", () => !isAlive(pid));
});

test("a private command sees some paths unmounted while the host keeps them", async () => {
  spawnSync("mount", ["-t", "tmpfs", "none", directory]);
  writeFileSync(join(directory, "file"), "");
  const [file = "", ...args] = porter.privateArgv(["ls", directory], {
    unmount: [directory, "/not/mounted"],
  });
  const listed = spawnSync(file, args, { encoding: "utf8" });
  expect([listed.status, listed.stdout]).toEqual([0, ""]);
  expect(existsSync(join(directory, "file"))).toBe(true);
  await porter.unmount(directory);
});

describe("renameKeeper", () => {
  const [OLD, NEW] = [IDENTITY.sandbox, "sbx_fedcba9876543210"];
  let outer: ChildProcess | null = null;
  let pid: number;

  /** Starts a process in namespaces like those of a sandbox. */
  const started = async (argv: readonly string[], environment: Record<string, string>): Promise<void> => {
    const namespaces = ["--user", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--"];
    outer = spawn("unshare", [...namespaces, ...argv], { env: { ...environment, PATH: "/usr/bin:/bin" } });
    const children = `/proc/${outer.pid}/task/${outer.pid}/children`;
    await until("it runs", () => {
      pid = Number(readFileSync(children, "utf8"));
      return pid > 0 && readFileSync(`/proc/${pid}/cmdline`, "utf8") === `${argv.join("\0")}\0`;
    });
  };
  const rename = (change: Partial<KeeperRename> = {}) =>
    porter.renameKeeper({
      pid,
      startTime: startTimeOf(pid),
      from: OLD,
      to: NEW,
      hostname: "fork",
      ...change,
    });
  const environment = () => readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
  const hostname = () =>
    spawnSync("nsenter", ["-t", `${pid}`, "-u", "uname", "-n"], { encoding: "utf8" }).stdout.trim();

  afterEach(async () => {
    if (outer?.pid !== undefined && isAlive(pid)) process.kill(pid, "SIGKILL");
    if (outer !== null) await stopChild(outer);
    outer = null;
  });

  test("makes a stopped keeper answer to the new name only, once it continues", async () => {
    const control = join(directory, "control");
    const installation = IDENTITY.installation;
    const names = { HOLDFAST_INSTALLATION: installation, HOLDFAST_SANDBOX: OLD, HOLDFAST_CONTROL: control };
    await started([keeperBinaries().keeper], names);
    const socketPath = join(control, "keeper.sock");
    const greeting = (sandbox: string) =>
      connectKeeper({ socketPath, installation, sandbox, generation: 1 }, soon());
    const answers = (link: { close(): void }) => {
      link.close();
      return true;
    };
    await until("it answers to the old one", () => greeting(OLD).then(answers, () => false));
    process.kill(pid, "SIGSTOP");
    const before = environment();
    expect(await rename()).toBe("renamed");
    expect(environment()).toEqual(before.map((entry) => entry.replace(OLD, NEW)));
    expect(hostname()).toBe("fork");
    process.kill(pid, "SIGCONT");
    (await greeting(NEW)).close();
    await expect(greeting(OLD)).rejects.toMatchObject({ reason: "wrong_identity" });
  });

  test("changes one whole entry, and nothing similar", async () => {
    const decoys = { A_HOLDFAST_SANDBOX: OLD, B: `HOLDFAST_SANDBOX=${OLD}`, HOLDFAST_SANDBOX_: OLD };
    await started(["sleep", "60"], { ...decoys, HOLDFAST_SANDBOX: OLD });
    const wanted = environment().map((entry) =>
      entry === `HOLDFAST_SANDBOX=${OLD}` ? `HOLDFAST_SANDBOX=${NEW}` : entry,
    );
    expect(await rename()).toBe("renamed");
    expect(environment()).toEqual(wanted);
  });

  test.each([
    ["has another name", { HOLDFAST_SANDBOX: "sbx_0123456789abcdeX" }],
    ["has a longer name", { HOLDFAST_SANDBOX: `${OLD}0` }],
    ["has a shorter name", { HOLDFAST_SANDBOX: OLD.slice(0, -1) }],
    ["has none", { HOLDFAST_SANDBOX_: OLD }],
  ])("leaves a process alone that %s", async (_, names) => {
    await started(["sleep", "60"], names);
    const before = [environment(), hostname()];
    await expect(rename()).rejects.toThrow(/does not have that name/);
    expect([environment(), hostname()]).toEqual(before);
  });

  test("does not change a process that has the name twice", async () => {
    await started(["sleep", "60"], { HOLDFAST_SANDBOX: OLD, HOLDFAST_SANDBOY: OLD });
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const start = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[47]);
    const at = readFileSync(`/proc/${pid}/environ`, "latin1").indexOf("BOY=");
    const memory = openSync(`/proc/${pid}/mem`, "r+");
    writeSync(memory, "BOX=", start + at);
    closeSync(memory);
    const before = environment();
    expect(before.filter((entry) => entry === `HOLDFAST_SANDBOX=${OLD}`)).toHaveLength(2);
    await expect(rename()).rejects.toThrow(/exactly once/);
    expect(environment()).toEqual(before);
  });

  test("spares another process with the same pid, and refuses invalid names", async () => {
    await started(["sleep", "60"], { HOLDFAST_SANDBOX: OLD });
    const before = [environment(), hostname()];
    expect(await rename({ startTime: String(Number(startTimeOf(pid)) + 1) })).toBe("gone");
    expect(await rename({ pid: 0x7fffffff })).toBe("gone");
    await expect(rename({ to: `${NEW}0` })).rejects.toThrow(/same length/);
    await expect(rename({ hostname: "" })).rejects.toThrow(/usage/);
    await expect(rename({ hostname: "n".repeat(65) })).rejects.toThrow(/usage/);
    expect([environment(), hostname()]).toEqual(before);
  });

  test("never changes the host's name", async () => {
    const host = spawnSync("uname", ["-n"], { encoding: "utf8" }).stdout;
    const child = spawn("sleep", ["60"], { env: { PATH: "/usr/bin:/bin", HOLDFAST_SANDBOX: OLD } });
    pid = child.pid ?? 0;
    await until("it runs", () => readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith("sleep"));
    await expect(rename()).rejects.toThrow(/no host name of its own/);
    expect(environment()).toContain(`HOLDFAST_SANDBOX=${OLD}`);
    expect(spawnSync("uname", ["-n"], { encoding: "utf8" }).stdout).toBe(host);
    await stopChild(child);
  });
});

describe("jail", () => {
  let jail: Jail;
  let root: string;
  let outside: string;
  beforeEach(async () => {
    outside = mkdtempSync(join(directory, "outside-"));
    writeFileSync(join(outside, "secret"), "of the host");
    root = mkdtempSync(join(directory, "root-"));
    spawnSync("chown", ["100000:100000", root]);
    jail = await porter.openJail(root, NOBODY, soon());
  });
  afterEach(() => jail.close());

  test("reads and writes below its root, with ids of its map", async () => {
    await jail.write("/etc/motd", bodyOf("hello"), { parents: true, uid: 0, gid: 0, mode: 0o640 }, soon());
    await jail.mkdir("/home/user", { parents: true, uid: 1000, gid: 1000 }, soon());
    await jail.symlink("/home/link", "../etc/motd", { uid: 1000, gid: 1000 }, soon());
    await jail.hardlink("/etc/motd", "/home/hard", soon());
    await jail.chown("/home/hard", { uid: 5, gid: 6 }, soon());
    await jail.touch("/home/hard", 1_000_000_000_000, soon());
    const host = statSync(join(root, "etc", "motd"));
    expect([host.uid, host.gid, host.mode & 0o777, host.mtimeMs]).toEqual([100_005, 100_006, 0o640, 1e12]);
    expect(statSync(join(root, "home", "user")).uid).toBe(101_000);
    expect(readlinkSync(join(root, "home", "link"))).toBe("../etc/motd");
    const { stat, body } = await jail.read("/home/link", { offset: 0, length: null }, soon());
    expect([stat.uid, (await collect(body)).toString()]).toEqual([5, "hello"]);
  });

  test("a planted link to a host path ends inside", async () => {
    symlinkSync("/etc/passwd", join(root, "passwd"));
    symlinkSync(outside, join(root, "outside"));
    symlinkSync(`../../../../../../../..${outside}`, join(root, "up"));
    const read = (path: string) => jail.read(path, { offset: 0, length: null }, soon());
    await expect(read("/passwd")).rejects.toMatchObject({ errno: "ENOENT" });
    await expect(read("/outside/secret")).rejects.toMatchObject({ errno: "ENOENT" });
    await expect(read("/up/secret")).rejects.toMatchObject({ errno: "ENOENT" });
    await expect(read("/../../../../etc/passwd")).rejects.toMatchObject({ reason: "system" });
    await expect(jail.write("/outside/new", bodyOf("x"), {}, soon())).rejects.toThrow();
    expect(readdirSync(outside)).toEqual(["secret"]);
    const seen = await jail.list("/", { limit: 10 }, soon());
    expect(seen.entries.map((entry) => entry.name).toSorted()).toEqual(["outside", "passwd", "up"]);
  });

  test("an absolute link leads to the file of that name inside", async () => {
    await jail.write("/etc/passwd", bodyOf("of the image"), { parents: true }, soon());
    symlinkSync("/etc/passwd", join(root, "link"));
    const { body } = await jail.read("/link", { offset: 0, length: null }, soon());
    expect((await collect(body)).toString()).toBe("of the image");
  });

  test("files of the host's root can be read at most, never changed", async () => {
    writeFileSync(join(root, "roots"), "secret", { mode: 0o600 });
    await expect(jail.read("/roots", { offset: 0, length: null }, soon())).rejects.toMatchObject({
      errno: "EACCES",
    });
    await expect(jail.chmod("/roots", 0o666, soon())).rejects.toMatchObject({ errno: "EPERM" });
  });

  test("ends with its close and leaves no process", async () => {
    const pids = () =>
      spawnSync("pgrep", ["-f", `jail /proc/.* ${root} `], { encoding: "utf8" })
        .stdout.split("\n")
        .filter(Boolean);
    expect(pids()).toHaveLength(2);
    await jail.close();
    expect(pids()).toEqual([]);
    await expect(jail.stat("/", { follow: true }, soon())).rejects.toMatchObject({ dispatched: "no" });
  });

  test("is started by the spawner, and not by this process", () => {
    const { stdout } = spawnSync("pgrep", ["-f", `jail /proc/.* ${root} `], { encoding: "utf8" });
    const parents = stdout
      .match(/\d+/g)
      ?.map((pid) => readFileSync(`/proc/${pid}/stat`, "latin1").split(" ")[3]);
    const programs = parents?.map((pid) => readFileSync(`/proc/${pid}/cmdline`, "latin1").split("\0")[1]);
    expect(programs?.sort()).toEqual(["jail", "spawn"]);
  });

  test("that does not connect is ended when the signal aborts", async () => {
    const stuck = join(directory, "stuck-jail");
    writeFileSync(stuck, "#!/bin/sh\nexec sleep 60\n", { mode: 0o755 });
    const late = new Porter({ binary: stuck, spawner: new Spawner(keeperBinaries().porter) });
    const gone = AbortSignal.timeout(200);
    await expect(late.openJail(root, NOBODY, gone)).rejects.toThrow("aborted due to timeout");
    late.close();
  });

  test("that can't be created reports why", async () => {
    await expect(porter.openJail(join(root, "nowhere"), NOBODY, soon())).rejects.toThrow(/can't be entered/);
  });
});

import { type ChildProcessWithoutNullStreams, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { isAlive, soon, stopChild, temporary, until } from "../testing/test-keeper.ts";
import { Porter } from "./porter.ts";
import { readCommandLines, readRemounted } from "./porter-instance.ts";

const porter = new Porter();
const BASE = "100000";
const MARKER = "holdfast-test";

let tools: string;
let directory: string;
const at = (...names: string[]) => join(directory, ...names);

beforeAll(() => {
  tools = temporary();
  const source = fileURLToPath(new URL("../../fixtures/instance.c", import.meta.url));
  execFileSync("gcc", ["-D_GNU_SOURCE", "-o", join(tools, "instance"), source]);
});
afterAll(async () => {
  await porter.removeTree(tools);
  porter.close();
});
beforeEach(() => {
  directory = temporary();
  chmodSync(directory, 0o755);
});
afterEach(() => porter.removeTree(directory));

const startTimeOf = (pid: number): string => {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
};
const mountsAt = (path: string): string[] =>
  readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .filter((line) => line.split(" ")[4] === path);

/** Starts a process with the directory as its root, and its own mounts and ids. */
async function instanceIn(root: string) {
  const child: ChildProcessWithoutNullStreams = spawn(join(tools, "instance"), [root, BASE, "65536"]);
  const [line] = await once(createInterface(child.stdout), "line");
  const pid = Number(line);
  const end = async () => {
    child.stdin.end();
    await stopChild(child);
    await until("the instance is gone", () => !isAlive(pid));
  };
  return { pid, startTime: startTimeOf(pid), end };
}

describe("a root that was unmounted on the host", () => {
  let instance: Awaited<ReturnType<typeof instanceIn>>;

  beforeEach(async () => {
    for (const name of ["lower", "upper", "work", "root"]) mkdirSync(at(name));
    writeFileSync(at("lower", "file"), "here");
    const overlay = { marker: MARKER, target: at("root"), lower: [at("lower")] };
    await porter.mountOverlay({ ...overlay, upper: at("upper"), work: at("work") });
    instance = await instanceIn(at("root"));
  });
  afterEach(async () => {
    await instance.end();
    await porter.unmount(at("root"));
  });

  const remount = (target = at("root")) => porter.remount({ ...instance, target });

  test("is remounted as the instance's own mount, once", async () => {
    const { dev, ino } = statSync(at("root"), { bigint: true });
    execFileSync("umount", ["-l", at("root")]);
    for (let i = 0; i < 2; i++) expect(await remount()).toEqual({ dev: String(dev), ino: String(ino) });
    const [mount, ...more] = mountsAt(at("root"));
    expect(mount).toContain(` - overlay ${MARKER} `);
    expect(mount?.split(" ")[5]?.split(",")).toEqual(expect.arrayContaining(["nosuid", "nodev"]));
    expect(more).toEqual([]);
    writeFileSync(at("root", "new"), "");
    expect(existsSync(at("upper", "new"))).toBe(true);
  });

  test("is mounted over whatever is in its place", async () => {
    execFileSync("umount", ["-l", at("root")]);
    execFileSync("mount", ["-t", "tmpfs", "none", at("root")]);
    await remount();
    expect(readFileSync(at("root", "file"), "utf8")).toBe("here");
  });

  test("is not remounted if the instance is gone, or another process has its pid", async () => {
    execFileSync("umount", ["-l", at("root")]);
    expect(await porter.remount({ pid: instance.pid, startTime: "1", target: at("root") })).toBe("gone");
    expect(await porter.remount({ pid: 2 ** 22 + 1, startTime: "1", target: at("root") })).toBe("gone");
    expect(mountsAt(at("root"))).toEqual([]);
  });

  test("is not remounted if the target is not a directory, or is a link", async () => {
    writeFileSync(at("file"), "");
    execFileSync("ln", ["-s", at("root"), at("link")]);
    await expect(remount(at("file"))).rejects.toThrow("Not a directory");
    await expect(remount(at("link"))).rejects.toThrow(/can't be opened/);
    await expect(remount(at("nowhere"))).rejects.toThrow("No such file");
  });
});

test("a process that is not an instance, or has no overlay, has no root to remount", async () => {
  mkdirSync(at("plain"));
  const plain = await instanceIn(at("plain"));
  onTestFinished(plain.end);
  await expect(porter.remount({ ...plain, target: at("plain") })).rejects.toThrow("is not an overlay");
  const own = { pid: process.pid, startTime: startTimeOf(process.pid), target: at("plain") };
  await expect(porter.remount(own)).rejects.toThrow("no mounts of its own");
  expect(mountsAt(at("plain"))).toEqual([]);
});

describe("the command lines of processes", () => {
  /** Starts a process with this environment and arguments, and waits until it has executed. */
  async function named(env: Record<string, string>, ...args: string[]) {
    const child = spawn("/bin/sh", ["-c", "read line", ...args], {
      env,
      stdio: ["pipe", "ignore", "ignore"],
    });
    onTestFinished(() => stopChild(child));
    const pid = child.pid ?? 0;
    await until("it runs", () => readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith("/bin/sh"));
    return { pid, startTime: startTimeOf(pid) };
  }

  test("come with their exec id, and are truncated if long", async () => {
    const one = await named({ HOME: "/", HOLDFAST_EXEC: "exe_1-a", PATH: "/bin" }, "ü", "two words");
    const two = await named({ NOT_HOLDFAST_EXEC: "x" }, "y".repeat(1_000));
    const words = await porter.commandLines([one, two], soon());
    expect(words.get(one.pid)).toEqual({
      execId: "exe_1-a",
      commandLine: "/bin/sh -c read line ü two words",
    });
    expect(words.get(two.pid)?.execId).toBe("");
    expect(words.get(two.pid)?.commandLine).toHaveLength(256);
  });

  test("are found after a large environment, with valid exec ids only", async () => {
    const large = { A: "a".repeat(100_000), B: "b".repeat(100_000), C: "c".repeat(100_000) };
    const behind = await named({ ...large, HOLDFAST_EXEC: "exe_1" });
    const odd = await Promise.all(
      ["", "two words", "line\nline", "x".repeat(65), "ü"].map((id) => named({ HOLDFAST_EXEC: id })),
    );
    const words = await porter.commandLines([behind, ...odd], soon());
    expect(words.get(behind.pid)?.execId).toBe("exe_1");
    expect(odd.map(({ pid }) => words.get(pid)?.execId)).toEqual(["", "", "", "", ""]);
  });

  test("are not returned for a reused pid", async () => {
    const { pid, startTime } = await named({});
    const words = await porter.commandLines([{ pid, startTime: String(Number(startTime) + 1) }], soon());
    expect(words).toEqual(new Map());
    expect(await porter.commandLines([], soon())).toEqual(new Map());
  });

  test("are not awaited beyond the signal", async () => {
    const { pid, startTime } = await named({});
    await expect(
      porter.commandLines([{ pid, startTime }], AbortSignal.abort(new Error("late"))),
    ).rejects.toThrow("late");
  });
});

test.for(["", "remounted 1", "staged 1 2\n", "remounted 1 2\nremounted 1 2\n"])(
  "unexpected porter output is not parsed as a root: %j",
  (output) => expect(() => readRemounted(output)).toThrow("unexpected output"),
);

test.for(["x", "1 exe", "1 exe 0", "1 two words 00", "1  00"])(
  "unexpected porter output is not parsed as command lines: %j",
  (output) => expect(() => readCommandLines(`${output}\n`)).toThrow("unexpected output"),
);

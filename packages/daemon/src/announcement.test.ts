import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { announce, startTimeOf } from "./announcement.ts";

let dir = "";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "holdfast-announce-"));
});
afterEach(() => rm(dir, { recursive: true }));

const read = async (file: string): Promise<unknown> => JSON.parse(await readFile(file, "utf8"));
const url = "http://127.0.0.1:1";
const key = "hf_run_secret";
/** A pid above any that Linux assigns. */
const NO_PID = 4_194_305;

test("clients and scripts find the server while it runs, and not afterwards", async () => {
  const announcement = announce({ stateDir: dir, repository: dir });
  const scripts = join(dir, ".holdfast", `server-${process.pid}.json`);
  expect(await read(scripts)).toEqual({ pid: process.pid, startTime: startTimeOf(process.pid) });
  expect(existsSync(join(dir, "server.json"))).toBe(false);
  announcement.listening(url, key);
  const self = { pid: process.pid, startTime: startTimeOf(process.pid) };
  expect(await read(join(dir, "server.json"))).toEqual({ url, ...self, key });
  expect(await read(scripts)).toEqual({ url, pid: process.pid, startTime: startTimeOf(process.pid) });
  announcement.closing();
  expect(existsSync(join(dir, "server.json"))).toBe(false);
  expect(existsSync(scripts)).toBe(true);
  announcement.withdraw();
  announcement.withdraw();
  expect(existsSync(scripts)).toBe(false);
});

test("only its owner can read the announced key, also in the file of an earlier version", async () => {
  await writeFile(join(dir, "server.json.spare"), "{}", { mode: 0o644 });
  const announcement = announce({ stateDir: dir, repository: dir });
  announcement.listening(url, key);
  expect((await stat(join(dir, "server.json"))).mode & 0o777).toBe(0o600);
  expect(await readFile(join(dir, ".holdfast", `server-${process.pid}.json`), "utf8")).not.toContain(key);
  announcement.withdraw();
});

test("the next server's announcement reuses the disk space of the last one's", async () => {
  const file = join(dir, "server.json");
  const inodes = new Set<number>();
  for (const withdrawn of [true, false, true]) {
    const announcement = announce({ stateDir: dir, repository: dir });
    const announced = withdrawn ? url : `${url}2345`;
    announcement.listening(announced, key);
    inodes.add((await stat(file)).ino);
    expect(await read(file)).toMatchObject({ url: announced, pid: process.pid });
    if (withdrawn) announcement.withdraw();
  }
  expect(inodes.size).toBe(1);
});

test("a server that ends leaves the announcement of its successor in place", async () => {
  const announcement = announce({ stateDir: dir, repository: dir });
  announcement.listening(url, key);
  const successor = { url: "http://127.0.0.1:2", pid: 1 };
  await writeFile(join(dir, "server.json"), JSON.stringify(successor));
  announcement.withdraw();
  expect(await read(join(dir, "server.json"))).toEqual(successor);
});

test("announcements of killed servers are removed, and those of running servers kept", async () => {
  const scripts = join(dir, ".holdfast");
  await mkdir(scripts);
  const put = (pid: number, text: string) => writeFile(join(scripts, `server-${pid}.json`), text);
  const pids = { running: process.ppid, reused: 1 };
  await put(NO_PID, JSON.stringify({ pid: NO_PID, startTime: "1" }));
  await put(NO_PID + 1, "half a fi");
  await put(pids.reused, JSON.stringify({ pid: pids.reused, startTime: "-1" }));
  await put(pids.running, JSON.stringify({ pid: pids.running, startTime: startTimeOf(pids.running) }));
  await writeFile(join(scripts, "other.json"), "{}");
  const announcement = announce({ stateDir: dir, repository: dir });
  const kept = ["other.json", `server-${pids.running}.json`, `server-${process.pid}.json`];
  expect((await readdir(scripts)).sort()).toEqual(kept.sort());
  announcement.withdraw();
});

test("a process that ended has no start time, although its parent has not reaped it", async () => {
  const parent = spawn("sh", ["-c", "sleep 60 & echo $!; exec sleep 60"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const [line] = (await once(parent.stdout, "data")) as [Buffer];
  const pid = Number(String(line));
  const readProc = (of: number | undefined, file: string) => readFile(`/proc/${of}/${file}`, "utf8");
  // The shell would reap its child. The program that replaces it does not know of the child.
  await expect.poll(() => readProc(parent.pid, "comm")).toBe("sleep\n");
  process.kill(pid, "SIGKILL");
  await expect.poll(() => readProc(pid, "stat")).toContain(") Z ");
  expect(startTimeOf(pid)).toBeNull();
  parent.kill("SIGKILL");
  await once(parent, "exit");
});

test("the start time comes from the kernel", async () => {
  const stat = await readFile(`/proc/${process.pid}/stat`, "utf8");
  expect(startTimeOf(process.pid)).toMatch(/^\d+$/);
  expect(stat.split(" ")).toContain(startTimeOf(process.pid));
  expect(startTimeOf(NO_PID)).toBeNull();
});

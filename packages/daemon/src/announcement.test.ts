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
/** Above any that Linux gives. */
const NO_PID = 4_194_305;

test("clients and scripts find the server while it runs, and nothing afterwards", async () => {
  const announcement = announce({ stateDir: dir, repository: dir });
  const scripts = join(dir, ".holdfast", `server-${process.pid}.json`);
  expect(await read(scripts)).toEqual({ pid: process.pid, startTime: startTimeOf(process.pid) });
  expect(existsSync(join(dir, "server.json"))).toBe(false);
  announcement.serving(url);
  expect(await read(join(dir, "server.json"))).toEqual({ url, pid: process.pid });
  expect(await read(scripts)).toEqual({ url, pid: process.pid, startTime: startTimeOf(process.pid) });
  announcement.withdraw();
  announcement.withdraw();
  expect(existsSync(join(dir, "server.json"))).toBe(false);
  expect(existsSync(scripts)).toBe(false);
});

test("the next server is told of in the room that the last one's had, withdrawn or not", async () => {
  const file = join(dir, "server.json");
  const inodes = new Set<number>();
  for (const withdrawn of [true, false, true]) {
    const announcement = announce({ stateDir: dir, repository: dir });
    announcement.serving(withdrawn ? url : `${url}2345`);
    inodes.add((await stat(file)).ino);
    expect(await read(file)).toEqual({ url: withdrawn ? url : `${url}2345`, pid: process.pid });
    if (withdrawn) announcement.withdraw();
  }
  expect(inodes.size).toBe(1);
});

test("a server that ends leaves the announcement of its successor alone", async () => {
  const announcement = announce({ stateDir: dir, repository: dir });
  announcement.serving(url);
  const successor = { url: "http://127.0.0.1:2", pid: 1 };
  await writeFile(join(dir, "server.json"), JSON.stringify(successor));
  announcement.withdraw();
  expect(await read(join(dir, "server.json"))).toEqual(successor);
});

test("what killed servers left is removed, and that of running ones kept", async () => {
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

test("the start time is the kernel's", async () => {
  const stat = await readFile(`/proc/${process.pid}/stat`, "utf8");
  expect(startTimeOf(process.pid)).toMatch(/^\d+$/);
  expect(stat.split(" ")).toContain(startTimeOf(process.pid));
  expect(startTimeOf(NO_PID)).toBeNull();
});

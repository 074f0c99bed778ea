import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { announce, ownStartTime } from "./announcement.ts";

let dir = "";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "holdfast-announce-"));
});
afterEach(() => rm(dir, { recursive: true }));

const read = async (file: string): Promise<unknown> => JSON.parse(await readFile(file, "utf8"));
const url = "http://127.0.0.1:1";

test("clients and scripts find the server while it runs, and nothing afterwards", async () => {
  const announcement = announce({ stateDir: dir, repository: dir, url });
  const scripts = join(dir, ".holdfast", `server-${process.pid}.json`);
  expect(await read(join(dir, "server.json"))).toEqual({ url, pid: process.pid });
  expect(await read(scripts)).toEqual({ url, pid: process.pid, startTime: ownStartTime() });
  announcement.withdraw();
  announcement.withdraw();
  expect(existsSync(join(dir, "server.json"))).toBe(false);
  expect(existsSync(scripts)).toBe(false);
});

test("a server that ends leaves the announcement of its successor alone", async () => {
  const announcement = announce({ stateDir: dir, repository: dir, url });
  const successor = { url: "http://127.0.0.1:2", pid: 1 };
  await writeFile(join(dir, "server.json"), JSON.stringify(successor));
  announcement.withdraw();
  expect(await read(join(dir, "server.json"))).toEqual(successor);
});

test("the start time is the kernel's", async () => {
  const stat = await readFile(`/proc/${process.pid}/stat`, "utf8");
  expect(ownStartTime()).toMatch(/^\d+$/);
  expect(stat.split(" ")).toContain(ownStartTime());
});

import { expect, test } from "vitest";
import { kilobytes } from "./capacity.ts";
import { openFilesHard } from "./host.ts";
import { mountsOf, parseMounts } from "./mounts.ts";
import { parseStat, readLiving } from "./processes.ts";

const stat = (name: string, state: string) => `7 (${name}) ${state} ${"0 ".repeat(18)}4711 0 0`;

test("a process can't hide its start time behind its name", () => {
  expect(parseStat(stat("sleep", "S"))).toEqual({ state: "S", startTime: "4711" });
  expect(parseStat(stat("a) R 1 1 1", "T"))).toEqual({ state: "T", startTime: "4711" });
  expect(parseStat("")).toBeNull();
});

test("our own process lives, one that can't exist does not", () => {
  expect(readLiving(process.pid)?.startTime).toMatch(/^\d+$/);
  expect(readLiving(2 ** 22 + 1)).toBeNull();
});

test("mounts are found by place and by marker, the last one first", () => {
  const mounts = parseMounts(
    [
      "60 1 0:39 / /state/sandboxes/a/root rw - overlay holdfast-i-a rw,lowerdir=/x",
      "61 1 0:40 / /elsewhere\\040with\\040space rw - overlay holdfast-i-a rw",
      "62 60 0:41 / /state/sandboxes/a/root rw shared:7 master:1 - tmpfs cover rw",
      "63 1 0:42 / /state/sandboxes/ab/root rw - overlay holdfast-i-ab rw",
      "",
    ].join("\n"),
  );
  expect(
    mountsOf(mounts, "/state/sandboxes/a", "holdfast-i-a").map(({ mountPoint, source }) => [
      mountPoint,
      source,
    ]),
  ).toEqual([
    ["/state/sandboxes/a/root", "cover"],
    ["/elsewhere with space", "holdfast-i-a"],
    ["/state/sandboxes/a/root", "holdfast-i-a"],
  ]);
});

test("the hard limit on open files is read, also where there is none", () => {
  expect(openFilesHard("Max open files            1024                 20000                files")).toBe(
    20_000,
  );
  expect(openFilesHard("Max open files            1024                 unlimited            files")).toBe(
    65_536,
  );
});

test("memory that the kernel does not tell is not made up", () => {
  const meminfo = "MemTotal:       2000 kB\nMemFree:        1000 kB\n";
  expect(kilobytes(meminfo, "MemTotal")).toBe(2_000);
  expect(() => kilobytes(meminfo, "MemAvailable")).toThrow("MemAvailable");
});

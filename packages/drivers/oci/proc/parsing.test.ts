import { expect, test } from "vitest";
import { kilobytes } from "../machine/capacity.ts";
import { openFilesHard } from "../machine/host-facts.ts";
import { fieldOf } from "./fields.ts";
import { mountsOf, parseMounts, topAt } from "./mount-table.ts";
import {
  parseIo,
  parseProcess,
  parseStat,
  parseStatus,
  parseStopPending,
  readIo,
  readLiving,
} from "./proc-files.ts";

const stat = (name: string, state: string) => `7 (${name}) ${state} ${"0 ".repeat(18)}4711 0 0`;

test("the start time is parsed correctly, whatever the process's name contains", () => {
  expect(parseStat(stat("sleep", "S"))).toEqual({ state: "S", startTime: "4711" });
  expect(parseStat(stat("a) R 1 1 1", "T"))).toEqual({ state: "T", startTime: "4711" });
  expect(parseStat("")).toBeNull();
});

test("the fields of a process are parsed correctly, whatever its name contains", () => {
  const text = `11901 (py) 3 (S) S 11877 11901 11901 0 -1 4194304 1021 7 2 0 12 5 9 9 20 0 6 0 181536 9000000 2227 0 0\n`;
  expect(parseProcess(text)).toEqual({
    state: "S",
    startTime: "181536",
    name: "py) 3 (S",
    parent: 11_877,
    faults: 1_021,
    cpuMs: 170,
    threads: 6,
  });
  expect(parseProcess("gone")).toBeNull();
});

test("the inside pid is that of the innermost namespace, and an ended process has no memory", () => {
  const status = "Name:\tcat\nNSpid:\t11880\t40\t4\nVmRSS:\t    1300 kB\n";
  expect(parseStatus(status)).toEqual({ insidePid: 4, rssBytes: 1_331_200 });
  expect(parseStatus("Name:\tcat\nNSpid:\t11880\t4\n")).toEqual({ insidePid: 4, rssBytes: 0 });
  expect(parseStatus("")).toBeNull();
});

test("a pending SIGSTOP is distinguished from other signals, for the thread and for the process", () => {
  const status = (own: string, shared: string) =>
    `State:\tD\nSigPnd:\t${own}\nShdPnd:\t${shared}\nSigBlk:\t0000000000040000\n`;
  const none = "0000000000000000";
  expect(parseStopPending(status(none, "0000000000040000"))).toBe(true);
  expect(parseStopPending(status("0000000000050000", none))).toBe(true);
  expect(parseStopPending(status("fffffffffffbffff", none))).toBe(false);
  expect(parseStopPending("")).toBe(false);
});

test("writes that were cancelled before they reached the disk do not count as written", () => {
  const io =
    "rchar: 1\nwchar: 2\nsyscr: 30\nsyscw: 12\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 8000\n";
  expect(parseIo(io)).toEqual({ readBytes: 4_096, writtenBytes: 192, calls: 42 });
  expect(parseIo("")).toEqual({ readBytes: 0, writtenBytes: 0, calls: 0 });
  expect(readIo(process.pid)?.calls).toBeGreaterThan(0);
  expect(readIo(2 ** 22 + 1)).toBeNull();
});

test("a number is found only by its full name at the start of a line", () => {
  const text = "oom_kill_disable 0\nunder_oom 1\noom_kill 3";
  expect([fieldOf(text, "oom_kill_disable"), fieldOf(text, "oom_kill"), fieldOf(text, "oom")]).toEqual([
    0, 3, 0,
  ]);
  expect(fieldOf(text, "under_oom")).toBe(1);
  expect(fieldOf("", "max")).toBe(0);
});

test("our own process is living; a pid above the maximum is not", () => {
  expect(readLiving(process.pid)?.startTime).toMatch(/^\d+$/);
  expect(readLiving(2 ** 22 + 1)).toBeNull();
});

test("mounts are found by directory and by marker, newest first", () => {
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
    mountsOf(mounts, ["/state/sandboxes/a"], "holdfast-i-a").map(({ mountPoint, source }) => [
      mountPoint,
      source,
    ]),
  ).toEqual([
    ["/state/sandboxes/a/root", "cover"],
    ["/elsewhere with space", "holdfast-i-a"],
    ["/state/sandboxes/a/root", "holdfast-i-a"],
  ]);
});

test("the topmost mount at a path is the one mounted last", () => {
  const mounts = parseMounts("60 1 0:39 / /a rw - overlay one rw\n61 60 0:40 / /a rw - tmpfs two rw\n");
  expect([topAt(mounts, "/a")?.source, topAt(mounts, "/b")]).toEqual(["two", undefined]);
  expect(topAt(mounts.slice(0, 1), "/a")?.source).toBe("one");
});

test('the hard limit on open files is parsed, including "unlimited"', () => {
  expect(openFilesHard("Max open files            1024                 20000                files")).toBe(
    20_000,
  );
  expect(openFilesHard("Max open files            1024                 unlimited            files")).toBe(
    65_536,
  );
});

test("a figure that is missing from meminfo is an error", () => {
  const meminfo = "MemTotal:       2000 kB\nMemFree:        1000 kB\n";
  expect(kilobytes(meminfo, "MemTotal")).toBe(2_000);
  expect(() => kilobytes(meminfo, "MemAvailable")).toThrow("MemAvailable");
});

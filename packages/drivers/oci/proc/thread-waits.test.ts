import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { CALLS } from "./wait-calls.ts";
import {
  type Descriptor,
  groupWaits,
  parseCall,
  parsePlace,
  type ThreadSeen,
  type Wait,
  waitOf,
} from "./waits.ts";

const OPEN: Record<number, Descriptor> = {
  3: { link: "pipe:[4711]", kind: "other" },
  4: { link: "socket:[4712]", kind: "other" },
  5: { link: "/tmp/queue", kind: "fifo" },
  6: { link: "/dev/pts/0", kind: "terminal" },
  7: { link: "/home/user/data", kind: "other" },
  8: { link: "anon_inode:[eventfd]", kind: "other" },
  9: { link: "anon_inode:inotify", kind: "other" },
  10: { link: "/tmp/pipe:[1]", kind: "other" },
};

const look = (
  state: string,
  place: string,
  call: string,
  { frozen = false, arch = "x64" as NodeJS.Architecture } = {},
): Wait => {
  const thread: ThreadSeen = { state, place: parsePlace(place), call: parseCall(call) };
  return waitOf(thread, { frozen, arch, descriptor: (fd) => OPEN[fd] ?? null });
};

/** A line of /proc/PID/syscall: number, arguments, stack and program counter. */
const call = (number: number, ...args: (number | bigint)[]): string =>
  [number, ...[...args, 0, 0, 0, 0, 0, 0].slice(0, 6), 0x7ffc8712n, 0x7f9ffn]
    .map((value, index) => (index === 0 ? String(value) : `0x${value.toString(16)}`))
    .join(" ");

const UNTIL_WOKEN = 0xffff_ffffn;

test.for<
  [what: string, state: string, place: string, call: string, on: string, bounded: boolean, string | null]
>([
  ["nothing but its turn", "R", "0", "running", "cpu", true, null],
  ["nothing, though it seemed to sleep a moment ago", "S", "0", "running", "cpu", true, null],
  ["a lock", "S", "futex_do_wait", call(202, 0x1000, 0x189), "futex", false, null],
  ["a lock with a time limit", "S", "futex_do_wait", call(202, 0x1000, 0x89, 0, 0x7ffe), "futex", true, null],
  ["one of several locks", "S", "futex_wait_multiple", call(449, 0x1000, 2, 0, 0), "futex", false, null],
  ["a lock, asked for the new way", "S", "futex_do_wait", call(455, 0, 0, 0, 0, 0x7ffe), "futex", true, null],
  ["a semaphore", "S", "do_semtimedop", call(65, 1), "futex", false, "a semaphore"],
  ["a read of a pipe", "S", "anon_pipe_read", call(0, 3), "pipe", false, null],
  ["a write to a pipe", "S", "anon_pipe_write", call(1, 3), "pipe", false, null],
  ["a read of a socket", "S", "unix_stream_read_generic", call(0, 4), "socket", false, null],
  ["a message", "S", "sk_wait_data", call(45, 4), "socket", false, null],
  ["a connection", "S", "inet_csk_accept", call(288, 4), "socket", false, null],
  ["a read of a FIFO", "S", "anon_pipe_read", call(0, 5), "fifo", false, "/tmp/queue"],
  ["the other end of a FIFO", "S", "wait_for_partner", call(257, 0xffffff9c, 0x7ffe), "fifo", false, null],
  ["the other end of a FIFO, on older kernels", "S", "fifo_open", call(2, 0x7ffe), "fifo", false, null],
  ["the opening of something else", "S", "lookup_slow", call(257, 0xffffff9c), "file", false, null],
  ["a key", "S", "wait_woken", call(0, 6), "terminal", false, "/dev/pts/0"],
  ["a file", "S", "somewhere", call(0, 7), "file", false, "/home/user/data"],
  ["a file with the name of a pipe", "S", "somewhere", call(0, 10), "file", false, "/tmp/pipe:[1]"],
  ["an eventfd", "S", "eventfd_read", call(0, 8), "events", false, "eventfd"],
  ["inotify", "S", "inotify_read", call(0, 9), "events", false, "inotify"],
  ["a descriptor that was closed meanwhile", "S", "anon_pipe_read", call(0, 99), "pipe", false, null],
  ["flock", "S", "locks_lock_inode_wait", call(73, 7, 2), "lock", false, "/home/user/data"],
  ["a record lock", "S", "fcntl_setlk", call(72, 7, 7), "lock", false, "/home/user/data"],
  ["fcntl for another reason", "S", "somewhere", call(72, 3, 1031), "pipe", false, null],
  ["a child", "S", "do_wait", call(61, UNTIL_WOKEN), "child", false, null],
  ["any child", "S", "do_wait", call(247), "child", false, null],
  ["a child that borrowed its memory", "D", "kernel_clone", call(58), "child", false, null],
  ["time", "S", "hrtimer_nanosleep", call(230, 0, 0, 0x7ffe), "sleep", true, null],
  [
    "events for ever",
    "S",
    "poll_schedule_timeout.constprop.0",
    call(7, 0, 0, UNTIL_WOKEN),
    "events",
    false,
    null,
  ],
  ["events for a while", "S", "poll_schedule_timeout.constprop.0", call(7, 0, 0, 1000), "events", true, null],
  ["ppoll for ever", "S", "poll_schedule_timeout", call(271, 0x7ffe, 1, 0), "events", false, null],
  ["pselect for a while", "S", "poll_schedule_timeout", call(270, 1, 0, 0, 0, 0x7ffe), "events", true, null],
  ["epoll for ever", "S", "do_epoll_wait", call(232, 3, 0x7ffe, 64, 2n ** 64n - 1n), "events", false, null],
  ["epoll for a while", "S", "do_epoll_wait", call(281, 3, 0x7ffe, 64, 900), "events", true, null],
  ["epoll until a moment", "S", "do_epoll_wait", call(441, 3, 0x7ffe, 64, 0x7ffe), "events", true, null],
  ["a signal", "S", "sigsuspend.isra.0", call(130, 0x7ffe, 8), "events", false, "a signal"],
  ["a sleep that was interrupted and goes on", "S", "hrtimer_nanosleep", call(219), "sleep", true, null],
  ["the disk", "D", "folio_wait_bit_common", call(0, 7), "disk", false, "folio_wait_bit_common"],
  [
    "the disk, in a page fault",
    "D",
    "folio_wait_bit_common",
    "-1 0x7ffc 0x55c4",
    "disk",
    false,
    "folio_wait_bit_common",
  ],
  ["being continued", "T", "do_signal_stop", call(62), "stopped", false, null],
  ["whoever traces it", "t", "ptrace_stop", call(0, 3), "stopped", false, null],
  ["its parent", "Z", "0", "", "zombie", false, null],
  ["being thawed", "D", "__refrigerator", call(0, 3), "frozen", false, null],
  ["being thawed, on version 2", "S", "do_freezer_trap", call(0, 3), "frozen", false, null],
  ["a pipe, where calls are hidden", "S", "pipe_read", "", "pipe", false, null],
  [
    "a lock, where calls are hidden: that it has no end can't be said",
    "S",
    "futex_wait_queue",
    "",
    "futex",
    true,
    null,
  ],
  ["something that nobody knows", "S", "mystery_wait", call(999), "unknown", false, "mystery_wait"],
  [
    "something with the name of what every object has",
    "S",
    "constructor",
    "",
    "unknown",
    false,
    "constructor",
  ],
  ["nothing that could be read", "S", "", "", "unknown", false, null],
])("a thread waits for %s", ([, state, place, line, on, bounded, what]) => {
  expect(look(state, place, line)).toEqual({ on, bounded, what });
});

test("all of a frozen sandbox is frozen, but for what has ended", () => {
  const frozen = { frozen: true };
  expect(look("D", "hrtimer_nanosleep", call(230), frozen).on).toBe("frozen");
  expect(look("D", "do_signal_stop", call(62), frozen).on).toBe("frozen");
  expect(look("Z", "0", "", frozen).on).toBe("zombie");
});

test("calls are read by the numbers of the architecture", () => {
  const arm = { arch: "arm64" as const };
  expect(look("S", "futex_do_wait", call(98, 0x1000, 0x189), arm)).toMatchObject({
    on: "futex",
    bounded: false,
  });
  expect(look("S", "anon_pipe_read", call(63, 5), arm)).toMatchObject({ on: "fifo", what: "/tmp/queue" });
  expect(look("S", "do_wait", call(260), arm)).toMatchObject({ on: "child" });
  expect(look("S", "somewhere", call(98, 0x1000), { arch: "riscv64" })).toMatchObject({ on: "unknown" });
});

test.for([
  "",
  "0",
  "0 0x1",
  "running away",
  "7 0x1 0x2 0x3 0x4 0x5 zz 0x1 0x2",
  "1e3 0x0 0x0 0x0 0x0 0x0 0x0",
])("what is no line of the kernel's says nothing: '%s'", (text) => {
  expect(parseCall(text)).toEqual({ kind: "hidden" });
});

describe("threads of one process", () => {
  const lock: Wait = { on: "futex", bounded: false, what: null };
  const pipe: Wait = { on: "pipe", bounded: false, what: null };

  test("are told by what the first of them waits for, then by what most do", () => {
    expect(groupWaits([pipe, { ...lock, bounded: true }, lock, lock])).toEqual([
      { ...pipe, threads: 1 },
      { ...lock, threads: 2 },
      { ...lock, bounded: true, threads: 1 },
    ]);
    expect(groupWaits([])).toEqual([]);
  });
});

test("a name that a sandbox chose is cut", () => {
  const long = { link: `/${"x".repeat(4_000)}`, kind: "other" as const };
  const thread: ThreadSeen = { state: "S", place: "", call: parseCall(call(0, 3)) };
  const { what } = waitOf(thread, { frozen: false, arch: "x64", descriptor: () => long });
  expect(what).toHaveLength(256);
});

const HEADERS = {
  x64: "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
  arm64: "/usr/include/asm-generic/unistd.h",
} as const;

test.for(["x64", "arm64"] as const)("the numbers of calls are the kernel's, on %s", (arch, { skip }) => {
  if (!existsSync(HEADERS[arch])) return skip("its headers are not installed");
  const header = readFileSync(HEADERS[arch], "utf8");
  const column = arch === "x64" ? 1 : 2;
  let compared = 0;
  for (const row of CALLS) {
    const number = new RegExp(`__NR(?:3264)?_${row[0]}\\s+(\\d+)$`, "m").exec(header)?.[1];
    // Headers may be older than the kernel.
    if (number === undefined) continue;
    expect(`${row[0]} ${row[column]}`).toBe(`${row[0]} ${number}`);
    compared++;
  }
  expect(compared).toBeGreaterThan(40);
});

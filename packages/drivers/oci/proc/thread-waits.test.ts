import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { CALLS } from "./blocking-syscalls.ts";
import {
  type Descriptor,
  groupWaits,
  parseCall,
  parsePlace,
  type ThreadSeen,
  type Wait,
  waitOf,
} from "./thread-waits.ts";

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

/** Builds a line of /proc/PID/syscall: call number, arguments, stack pointer and program counter. */
const call = (number: number, ...args: (number | bigint)[]): string =>
  [number, ...[...args, 0, 0, 0, 0, 0, 0].slice(0, 6), 0x7ffc8712n, 0x7f9ffn]
    .map((value, index) => (index === 0 ? String(value) : `0x${value.toString(16)}`))
    .join(" ");

const UNTIL_WOKEN = 0xffff_ffffn;

test.for<
  [what: string, state: string, place: string, call: string, on: string, bounded: boolean, string | null]
>([
  ["the CPU", "R", "0", "running", "cpu", true, null],
  [
    "the CPU, although its state was read as sleeping a moment before",
    "S",
    "0",
    "running",
    "cpu",
    true,
    null,
  ],
  ["a lock", "S", "futex_do_wait", call(202, 0x1000, 0x189), "futex", false, null],
  ["a lock with a time limit", "S", "futex_do_wait", call(202, 0x1000, 0x89, 0, 0x7ffe), "futex", true, null],
  ["one of several locks", "S", "futex_wait_multiple", call(449, 0x1000, 2, 0, 0), "futex", false, null],
  [
    "a lock, with the newer system call",
    "S",
    "futex_do_wait",
    call(455, 0, 0, 0, 0, 0x7ffe),
    "futex",
    true,
    null,
  ],
  ["a semaphore", "S", "do_semtimedop", call(65, 1), "futex", false, "a semaphore"],
  ["a read of a pipe", "S", "anon_pipe_read", call(0, 3), "pipe", false, null],
  ["a write to a pipe", "S", "anon_pipe_write", call(1, 3), "pipe", false, null],
  ["a read of a socket", "S", "unix_stream_read_generic", call(0, 4), "socket", false, null],
  ["a message", "S", "sk_wait_data", call(45, 4), "socket", false, null],
  ["a connection", "S", "inet_csk_accept", call(288, 4), "socket", false, null],
  ["a read of a FIFO", "S", "anon_pipe_read", call(0, 5), "fifo", false, "/tmp/queue"],
  ["the other end of a FIFO", "S", "wait_for_partner", call(257, 0xffffff9c, 0x7ffe), "fifo", false, null],
  ["the other end of a FIFO, on older kernels", "S", "fifo_open", call(2, 0x7ffe), "fifo", false, null],
  ["the opening of another kind of file", "S", "lookup_slow", call(257, 0xffffff9c), "file", false, null],
  ["terminal input", "S", "wait_woken", call(0, 6), "terminal", false, "/dev/pts/0"],
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
  ["a vfork child", "D", "kernel_clone", call(58), "child", false, null],
  ["a sleep", "S", "hrtimer_nanosleep", call(230, 0, 0, 0x7ffe), "sleep", true, null],
  [
    "events without a timeout",
    "S",
    "poll_schedule_timeout.constprop.0",
    call(7, 0, 0, UNTIL_WOKEN),
    "events",
    false,
    null,
  ],
  [
    "events with a timeout",
    "S",
    "poll_schedule_timeout.constprop.0",
    call(7, 0, 0, 1000),
    "events",
    true,
    null,
  ],
  ["ppoll without a timeout", "S", "poll_schedule_timeout", call(271, 0x7ffe, 1, 0), "events", false, null],
  [
    "pselect with a timeout",
    "S",
    "poll_schedule_timeout",
    call(270, 1, 0, 0, 0, 0x7ffe),
    "events",
    true,
    null,
  ],
  [
    "epoll without a timeout",
    "S",
    "do_epoll_wait",
    call(232, 3, 0x7ffe, 64, 2n ** 64n - 1n),
    "events",
    false,
    null,
  ],
  [
    "epoll with a timeout in milliseconds",
    "S",
    "do_epoll_wait",
    call(281, 3, 0x7ffe, 64, 900),
    "events",
    true,
    null,
  ],
  [
    "epoll with a timeout structure",
    "S",
    "do_epoll_wait",
    call(441, 3, 0x7ffe, 64, 0x7ffe),
    "events",
    true,
    null,
  ],
  ["a signal", "S", "sigsuspend.isra.0", call(130, 0x7ffe, 8), "events", false, "a signal"],
  ["a sleep that was interrupted and resumed", "S", "hrtimer_nanosleep", call(219), "sleep", true, null],
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
  ["a SIGCONT", "T", "do_signal_stop", call(62), "stopped", false, null],
  ["its tracer", "t", "ptrace_stop", call(0, 3), "stopped", false, null],
  ["its parent", "Z", "0", "", "zombie", false, null],
  ["the thaw of its cgroup", "D", "__refrigerator", call(0, 3), "frozen", false, null],
  ["the thaw of its cgroup, on cgroup v2", "S", "do_freezer_trap", call(0, 3), "frozen", false, null],
  ["a pipe, if the system call is unknown", "S", "pipe_read", "", "pipe", false, null],
  [
    "a lock that counts as bounded, because the system call is unknown",
    "S",
    "futex_wait_queue",
    "",
    "futex",
    true,
    null,
  ],
  ["an unknown kernel function", "S", "mystery_wait", call(999), "unknown", false, "mystery_wait"],
  [
    "a kernel function named like a property of every JavaScript object",
    "S",
    "constructor",
    "",
    "unknown",
    false,
    "constructor",
  ],
  ["something unknown, if nothing can be read", "S", "", "", "unknown", false, null],
])("a thread waits for %s", ([, state, place, line, on, bounded, what]) => {
  expect(look(state, place, line)).toEqual({ on, bounded, what });
});

test("every thread of a frozen sandbox counts as frozen, except zombies", () => {
  const frozen = { frozen: true };
  expect(look("D", "hrtimer_nanosleep", call(230), frozen).on).toBe("frozen");
  expect(look("D", "do_signal_stop", call(62), frozen).on).toBe("frozen");
  expect(look("Z", "0", "", frozen).on).toBe("zombie");
});

test("system call numbers are those of the architecture", () => {
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
])("a line in another format means that the call is unknown: '%s'", (text) => {
  expect(parseCall(text)).toEqual({ kind: "hidden" });
});

describe("threads of one process", () => {
  const lock: Wait = { on: "futex", bounded: false, what: null };
  const pipe: Wait = { on: "pipe", bounded: false, what: null };

  test("are grouped by wait: the first thread's group first, then the largest groups", () => {
    expect(groupWaits([pipe, { ...lock, bounded: true }, lock, lock])).toEqual([
      { ...pipe, threads: 1 },
      { ...lock, threads: 2 },
      { ...lock, bounded: true, threads: 1 },
    ]);
    expect(groupWaits([])).toEqual([]);
  });
});

test("a file name chosen by a sandbox is truncated", () => {
  const long = { link: `/${"x".repeat(4_000)}`, kind: "other" as const };
  const thread: ThreadSeen = { state: "S", place: "", call: parseCall(call(0, 3)) };
  const { what } = waitOf(thread, { frozen: false, arch: "x64", descriptor: () => long });
  expect(what).toHaveLength(256);
});

const HEADERS = {
  x64: "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
  arm64: "/usr/include/asm-generic/unistd.h",
} as const;

test.for(["x64", "arm64"] as const)(
  "the system call numbers match the kernel's headers, on %s",
  (arch, { skip }) => {
    if (!existsSync(HEADERS[arch])) return skip("the kernel headers are not installed");
    const header = readFileSync(HEADERS[arch], "utf8");
    const column = arch === "x64" ? 1 : 2;
    let compared = 0;
    for (const row of CALLS) {
      const number = new RegExp(`__NR(?:3264)?_${row[0]}\\s+(\\d+)$`, "m").exec(header)?.[1];
      // Installed headers may be older than the kernel and lack a call.
      if (number === undefined) continue;
      expect(`${row[0]} ${row[column]}`).toBe(`${row[0]} ${number}`);
      compared++;
    }
    expect(compared).toBeGreaterThan(40);
  },
);

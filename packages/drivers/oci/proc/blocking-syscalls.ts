import type { WaitsOn } from "@holdfast/contract";

/** The argument that holds a call's timeout. A null pointer or a negative number of milliseconds means no timeout. */
export interface Timeout {
  argument: number;
  as: "pointer" | "milliseconds";
}

export type CallRule =
  /** The call always waits for the same kind of thing, which `on` names. */
  | { kind: "on"; on: WaitsOn; until: Timeout | "always" | "never"; what?: string }
  /** The thread waits for a file. The call's argument with number `argument` is the file descriptor. */
  | { kind: "descriptor"; argument: number }
  /**
   * The thread waits for a lock on a file. The call's argument with number `argument` is the file descriptor. `fcntl`
   * waits for a lock only if its command is one of `commands`.
   */
  | { kind: "lock"; argument: number; commands?: readonly number[] }
  /**
   * The call opens a path, and the opening blocks: for example, opening a FIFO blocks until another process opens its
   * other end. Only the kernel function in which the thread waits shows what kind of file it is.
   */
  | { kind: "open" }
  /**
   * The call continues an interrupted call. Only the kernel function in which the thread waits shows what the thread
   * waits for.
   */
  | { kind: "restart" };

const on = (word: WaitsOn, until: Timeout | "always" | "never" = "never", what?: string): CallRule => ({
  kind: "on",
  on: word,
  until,
  ...(what === undefined ? {} : { what }),
});
const pointer = (argument: number): Timeout => ({ argument, as: "pointer" });
const milliseconds = (argument: number): Timeout => ({ argument, as: "milliseconds" });
const descriptor = (argument: number): CallRule => ({ kind: "descriptor", argument });

const F_SETLKW = 7;
const F_OFD_SETLKW = 38;
const FIRST = descriptor(0);
const OPEN: CallRule = { kind: "open" };
const SIGNAL = "a signal";
const SEMAPHORE = "a semaphore";

/**
 * System calls that can block: number on each architecture (null if it lacks the call), and what the thread waits for.
 */
export const CALLS: readonly [name: string, x64: number | null, arm64: number | null, rule: CallRule][] = [
  ["read", 0, 63, FIRST],
  ["write", 1, 64, FIRST],
  ["pread64", 17, 67, FIRST],
  ["pwrite64", 18, 68, FIRST],
  ["readv", 19, 65, FIRST],
  ["writev", 20, 66, FIRST],
  ["preadv", 295, 69, FIRST],
  ["pwritev", 296, 70, FIRST],
  ["preadv2", 327, 286, FIRST],
  ["pwritev2", 328, 287, FIRST],
  ["ioctl", 16, 29, FIRST],
  ["sendfile", 40, 71, FIRST],
  ["splice", 275, 76, FIRST],
  ["tee", 276, 77, FIRST],
  ["vmsplice", 278, 75, FIRST],
  ["copy_file_range", 326, 285, FIRST],
  ["getdents64", 217, 61, FIRST],
  ["fsync", 74, 82, FIRST],
  ["fdatasync", 75, 83, FIRST],
  ["open", 2, null, OPEN],
  ["creat", 85, null, OPEN],
  ["openat", 257, 56, OPEN],
  ["openat2", 437, 437, OPEN],
  ["connect", 42, 203, on("socket")],
  ["accept", 43, 202, on("socket")],
  ["accept4", 288, 242, on("socket")],
  ["sendto", 44, 206, on("socket")],
  ["recvfrom", 45, 207, on("socket")],
  ["sendmsg", 46, 211, on("socket")],
  ["recvmsg", 47, 212, on("socket")],
  ["sendmmsg", 307, 269, on("socket")],
  ["recvmmsg", 299, 243, on("socket", pointer(4))],
  ["futex", 202, 98, on("futex", pointer(3))],
  ["futex_waitv", 449, 449, on("futex", pointer(3))],
  ["futex_wait", 455, 455, on("futex", pointer(4))],
  ["semop", 65, 193, on("futex", "never", SEMAPHORE)],
  ["semtimedop", 220, 192, on("futex", pointer(3), SEMAPHORE)],
  ["flock", 73, 32, { kind: "lock", argument: 0 }],
  ["fcntl", 72, 25, { kind: "lock", argument: 0, commands: [F_SETLKW, F_OFD_SETLKW] }],
  ["wait4", 61, 260, on("child")],
  ["waitid", 247, 95, on("child")],
  ["clone", 56, 220, on("child")],
  ["clone3", 435, 435, on("child")],
  ["vfork", 58, null, on("child")],
  ["nanosleep", 35, 101, on("sleep", "always")],
  ["clock_nanosleep", 230, 115, on("sleep", "always")],
  ["poll", 7, null, on("events", milliseconds(2))],
  ["ppoll", 271, 73, on("events", pointer(2))],
  ["select", 23, null, on("events", pointer(4))],
  ["pselect6", 270, 72, on("events", pointer(4))],
  ["epoll_wait", 232, null, on("events", milliseconds(3))],
  ["epoll_pwait", 281, 22, on("events", milliseconds(3))],
  ["epoll_pwait2", 441, 441, on("events", pointer(3))],
  ["pause", 34, null, on("events", "never", SIGNAL)],
  ["rt_sigsuspend", 130, 133, on("events", "never", SIGNAL)],
  ["rt_sigtimedwait", 128, 137, on("events", pointer(2), SIGNAL)],
  ["restart_syscall", 219, 128, { kind: "restart" }],
];

const rulesOf = (column: 1 | 2): ReadonlyMap<number, CallRule> =>
  new Map(CALLS.flatMap((row) => (row[column] === null ? [] : [[row[column], row[3]]])));

const RULES: Partial<Record<NodeJS.Architecture, ReadonlyMap<number, CallRule>>> = {
  x64: rulesOf(1),
  arm64: rulesOf(2),
};

/** Returns the rule of a system call; undefined if the call is unknown or never blocks. */
export const ruleOf = (number: number, arch: NodeJS.Architecture): CallRule | undefined =>
  RULES[arch]?.get(number);

/**
 * Kernel functions in which threads wait (the values of /proc/PID/wchan). Threads wait in some of these functions both
 * with and without a timeout. Such a function is listed as bounded, because its name does not show which of the two
 * applies.
 */
export const WAIT_CHANNELS: Readonly<Record<string, { on: WaitsOn; bounded: boolean }>> = {
  futex_do_wait: { on: "futex", bounded: true },
  futex_wait_queue: { on: "futex", bounded: true },
  futex_wait_queue_me: { on: "futex", bounded: true },
  futex_wait_multiple: { on: "futex", bounded: true },
  pipe_read: { on: "pipe", bounded: false },
  pipe_write: { on: "pipe", bounded: false },
  pipe_wait: { on: "pipe", bounded: false },
  anon_pipe_read: { on: "pipe", bounded: false },
  anon_pipe_write: { on: "pipe", bounded: false },
  wait_for_partner: { on: "fifo", bounded: false },
  fifo_open: { on: "fifo", bounded: false },
  unix_stream_read_generic: { on: "socket", bounded: false },
  unix_stream_data_wait: { on: "socket", bounded: false },
  unix_wait_for_peer: { on: "socket", bounded: false },
  sock_alloc_send_pskb: { on: "socket", bounded: false },
  sk_wait_data: { on: "socket", bounded: false },
  sk_stream_wait_memory: { on: "socket", bounded: false },
  inet_csk_accept: { on: "socket", bounded: false },
  inet_wait_for_connect: { on: "socket", bounded: true },
  __skb_wait_for_more_packets: { on: "socket", bounded: false },
  n_tty_read: { on: "terminal", bounded: false },
  n_tty_write: { on: "terminal", bounded: false },
  do_wait: { on: "child", bounded: false },
  kernel_wait4: { on: "child", bounded: false },
  wait_for_vfork_done: { on: "child", bounded: false },
  hrtimer_nanosleep: { on: "sleep", bounded: true },
  do_nanosleep: { on: "sleep", bounded: true },
  poll_schedule_timeout: { on: "events", bounded: true },
  do_sys_poll: { on: "events", bounded: true },
  do_select: { on: "events", bounded: true },
  do_epoll_wait: { on: "events", bounded: true },
  ep_poll: { on: "events", bounded: true },
  sigsuspend: { on: "events", bounded: false },
  do_sigtimedwait: { on: "events", bounded: true },
  __do_sys_pause: { on: "events", bounded: false },
  locks_lock_inode_wait: { on: "lock", bounded: false },
  flock_lock_inode_wait: { on: "lock", bounded: false },
  posix_lock_inode_wait: { on: "lock", bounded: false },
  fcntl_setlk: { on: "lock", bounded: false },
  do_lock_file_wait: { on: "lock", bounded: false },
};

/** Kernel functions in which a thread waits after vfork, until its child executes a program or exits. */
export const VFORK_WAITS: ReadonlySet<string> = new Set([
  "wait_for_vfork_done",
  "kernel_clone",
  "_do_fork",
  "do_fork",
]);

/** Kernel functions in which the threads of a frozen cgroup wait. */
export const FREEZERS: ReadonlySet<string> = new Set(["__refrigerator", "do_freezer_trap"]);

import type { ThreadWait } from "@holdfast/contract";
import { type CallRule, FREEZERS, ruleOf, type Timeout, WAIT_CHANNELS } from "./blocking-syscalls.ts";

/** The system call that a thread is in, from /proc/PID/task/TID/syscall. */
type SystemCall =
  | { kind: "running" }
  /** The thread sleeps outside any system call, for example in a page fault. */
  | { kind: "none" }
  | { kind: "call"; number: number; args: readonly bigint[] }
  /** The call is unknown: the file can't be read, or its line has another format. */
  | { kind: "hidden" };

/** State of a thread, as read from /proc. */
export interface ThreadSeen {
  /** State letter, as shown by `ps`. */
  state: string;
  /** Kernel function in which the thread waits; empty if unknown. */
  place: string;
  call: SystemCall;
}

/** An open file descriptor of a process, described without opening the file. */
export interface Descriptor {
  /** Target of the symbolic link /proc/PID/fd/N: a path as the process sees it, or a pseudo name such as `pipe:[7]`. */
  link: string;
  kind: "fifo" | "terminal" | "other";
}

export interface WaitContext {
  /** Whether the cgroup is frozen. If so, every thread in it is reported as frozen, whatever it waits for. */
  frozen: boolean;
  arch: NodeJS.Architecture;
  /** Returns null if the descriptor is no longer open. */
  descriptor: (fd: number) => Descriptor | null;
}

export type Wait = Omit<ThreadWait, "threads">;

/** Maximum length of `what`: it may contain a file name, which a sandbox can make very long. */
const WHAT_MAX = 256;

const wait = (on: Wait["on"], bounded = false, what: string | null = null): Wait => ({
  on,
  bounded,
  what: what === null || what === "" ? null : what.slice(0, WHAT_MAX),
});

const CALL_LINE = /^\d+( 0x[0-9a-f]+){6,}$/;

export function parseCall(text: string): SystemCall {
  const line = text.trim();
  if (line === "running") return { kind: "running" };
  if (line.startsWith("-1 ")) return { kind: "none" };
  if (!CALL_LINE.test(line)) return { kind: "hidden" };
  const [number, ...args] = line.split(" ");
  return { kind: "call", number: Number(number), args: args.slice(0, 6).map(BigInt) };
}

/**
 * Parses /proc/PID/wchan. Drops the suffix that compilers add to the names of specialised functions (`.constprop.0`).
 * The kernel writes "0" for a thread that does not wait.
 */
export function parsePlace(text: string): string {
  const [name = ""] = text.trim().split(".");
  return name === "0" ? "" : name;
}

/** Determines what one thread waits for. */
export function waitOf(thread: ThreadSeen, context: WaitContext): Wait {
  const { state, place, call } = thread;
  if (state === "Z" || state === "X") return wait("zombie");
  if (context.frozen || FREEZERS.has(place)) return wait("frozen");
  if (state === "T" || state === "t") return wait("stopped");
  const rule = call.kind === "call" ? ruleOf(call.number, context.arch) : undefined;
  // State D (uninterruptible) means a wait for a disk, with one exception: a thread in vfork is also in state D until
  // its child runs a program or exits.
  if (state === "D") return isForking(rule) ? wait("child") : wait("disk", false, place);
  if (state === "R" || call.kind === "running") return wait("cpu", true);
  const known = rule === undefined || call.kind !== "call" ? null : waitIn(rule, call.args, thread, context);
  return known ?? waitAt(place);
}

const isForking = (rule: CallRule | undefined): boolean => rule?.kind === "on" && rule.on === "child";

function waitIn(
  rule: CallRule,
  args: readonly bigint[],
  { place }: ThreadSeen,
  { descriptor }: WaitContext,
): Wait | null {
  switch (rule.kind) {
    case "on":
      return wait(rule.on, isBounded(rule.until, args), rule.what);
    case "descriptor":
      return waitOn(descriptor(asInt(args[rule.argument])));
    case "lock": {
      const open = descriptor(asInt(args[rule.argument]));
      const isLock = rule.commands === undefined || rule.commands.includes(asInt(args[1]));
      return isLock ? wait("lock", false, open?.link) : waitOn(open);
    }
    case "open":
      return Object.hasOwn(WAIT_CHANNELS, place) ? null : wait("file");
    case "restart":
      return null;
  }
}

function isBounded(until: Timeout | "always" | "never", args: readonly bigint[]): boolean {
  if (until === "always" || until === "never") return until === "always";
  const value = args[until.argument] ?? 0n;
  return until.as === "pointer" ? value !== 0n : asInt(value) >= 0;
}

/** Reads an int argument. The kernel shows the whole 64-bit register, whose lower half is the int. */
const asInt = (value = 0n): number => Number(BigInt.asIntN(32, value));

function waitOn(open: Descriptor | null): Wait | null {
  if (open === null) return null;
  const { link, kind } = open;
  if (link.startsWith("pipe:")) return wait("pipe");
  if (link.startsWith("socket:")) return wait("socket");
  if (link.startsWith("anon_inode:"))
    return wait("events", false, link.slice("anon_inode:".length).replace(/^\[(.*)\]$/, "$1"));
  return wait(kind === "other" ? "file" : kind, false, link);
}

function waitAt(place: string): Wait {
  const known = Object.hasOwn(WAIT_CHANNELS, place) ? WAIT_CHANNELS[place] : undefined;
  return known === undefined ? wait("unknown", false, place) : wait(known.on, known.bounded);
}

/**
 * Groups equal waits. The group of the first thread comes first, because the main thread shows best what a process
 * does. The other groups are sorted by their number of threads, largest first.
 */
export function groupWaits(waits: readonly Wait[]): ThreadWait[] {
  const groups = new Map<string, ThreadWait>();
  for (const each of waits) {
    const key = JSON.stringify([each.on, each.bounded, each.what]);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, { ...each, threads: 1 });
    else group.threads++;
  }
  const [first, ...others] = groups.values();
  return first === undefined ? [] : [first, ...others.sort((a, b) => b.threads - a.threads)];
}

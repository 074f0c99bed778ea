import type { ThreadWait } from "@holdfast/contract";
import { type CallRule, FREEZERS, PLACES, ruleOf, type Timeout } from "./wait-calls.ts";

/** What a thread is in, by /proc/PID/task/TID/syscall. */
export type SystemCall =
  | { kind: "running" }
  /** It sleeps outside of any call, such as in a page fault. */
  | { kind: "none" }
  | { kind: "call"; number: number; args: readonly bigint[] }
  /** The kernel does not say. */
  | { kind: "hidden" };

/** A thread as /proc has it. */
export interface ThreadSeen {
  /** One letter, as in ps. */
  state: string;
  /** Where in the kernel it waits; empty where that is not said. */
  place: string;
  call: SystemCall;
}

/** What an open descriptor of a process is, without opening it. */
export interface Descriptor {
  /** What /proc/PID/fd/N links to: a path as the process would say it, or words such as `pipe:[7]`. */
  link: string;
  kind: "fifo" | "terminal" | "other";
}

export interface WaitContext {
  /** Whether the cgroup is frozen: what else its threads would wait for does not count then. */
  frozen: boolean;
  arch: NodeJS.Architecture;
  /** Null where it is not open any more. */
  descriptor: (fd: number) => Descriptor | null;
}

export type Wait = Omit<ThreadWait, "threads">;

/** Names that a sandbox chose are not carried further than this. */
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

/** Compilers add a suffix to the names of functions that they changed; 0 is nowhere. */
export function parsePlace(text: string): string {
  const [name = ""] = text.trim().split(".");
  return name === "0" ? "" : name;
}

/** What one thread waits for. */
export function waitOf(thread: ThreadSeen, context: WaitContext): Wait {
  const { state, place, call } = thread;
  if (state === "Z" || state === "X") return wait("zombie");
  if (context.frozen || FREEZERS.has(place)) return wait("frozen");
  if (state === "T" || state === "t") return wait("stopped");
  const rule = call.kind === "call" ? ruleOf(call.number, context.arch) : undefined;
  // Whoever forked and lends its memory until the child runs a program can't be interrupted either.
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
      return Object.hasOwn(PLACES, place) ? null : wait("file");
    case "again":
      return null;
  }
}

function isBounded(until: Timeout | "always" | "never", args: readonly bigint[]): boolean {
  if (until === "always" || until === "never") return until === "always";
  const value = args[until.argument] ?? 0n;
  return until.as === "pointer" ? value !== 0n : asInt(value) >= 0;
}

/** The kernel shows whole registers, of which an int is the lower half. */
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
  const known = Object.hasOwn(PLACES, place) ? PLACES[place] : undefined;
  return known === undefined ? wait("unknown", false, place) : wait(known.on, known.bounded);
}

/** Equal waits together: that of the first thread first, which is what a process is about, then most threads first. */
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

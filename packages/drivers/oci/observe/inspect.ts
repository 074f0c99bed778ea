import { readdirSync, readlinkSync, type Stats, statSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Look, ProcessSeen } from "@holdfast/engine";
import { errnoOf, isGone } from "./errno.ts";
import type { Machine } from "./machine.ts";
import { HIDDEN, parseProcess, parseStat, parseStatus, readCgroups, readIo, readProc } from "./processes.ts";
import { inTurns } from "./turns.ts";
import {
  type Descriptor,
  groupWaits,
  parseCall,
  parsePlace,
  type Wait,
  type WaitContext,
  waitOf,
} from "./waits.ts";

/** Of one sandbox, and threads of each process: what is beyond is said to be there, and not looked at. */
const PROCESSES_MAX = 512;
const THREADS_MAX = 64;
/** What processes say of themselves is not worth more of a wait. */
const WORDS_MS = 1_000;
/** Of terminals: the consoles, what a process calls its own one, and the two ends of pairs. */
const TERMINAL_MAJORS = new Set([4, 5, 136, 137, 138, 139, 140, 141, 142, 143]);

type Words = Pick<ProcessSeen, "execId" | "commandLine">;

/** A process by the host's numbers, before it has said anything of itself. */
interface Found extends Omit<ProcessSeen, keyof Words> {
  hostPid: number;
  hostParent: number;
  children: number[];
  truncated: boolean;
}

interface Place {
  machine: Machine;
  id: SandboxId;
  frozen: boolean;
  members: ReadonlySet<number>;
  signal: AbortSignal;
}

/**
 * The processes of an instance as the host has them, so that nobody inside is asked: one that is frozen, stopped or silent
 * is seen as well. Those that ended and were not asked about have left their cgroups: they are found by their parents.
 * A pid may be another's by the time that it is looked at: only what proves to be in this sandbox is told.
 */
export async function inspect(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<Look> {
  const at = machine.clock.now();
  const members = machine.cgroups.members(id);
  const frozen = machine.cgroups.isFrozen(id);
  const place: Place = { machine, id, frozen, members: new Set(members), signal };
  const pids = new Set(members);
  const found: Found[] = [];
  // Grows while it is gone through.
  for await (const pid of inTurns(pids, signal)) {
    if (found.length === PROCESSES_MAX) break;
    const process = await lookAt(place, pid);
    if (process === null) continue;
    found.push(process);
    for (const child of process.children) pids.add(child);
  }
  const words = await wordsOf(machine, id, found, frozen, signal);
  const truncated = found.length < pids.size && found.length === PROCESSES_MAX;
  return {
    at,
    processes: tell(found, words),
    truncated: truncated || found.some((process) => process.truncated),
  };
}

/** Null where it is gone, or is not of this sandbox. */
async function lookAt(place: Place, pid: number): Promise<Found | null> {
  const stat = parseProcess(readProc(pid, "stat") ?? "");
  const status = parseStatus(readProc(pid, "status") ?? "");
  if (stat === null || status === null || !isOf(place, pid, stat)) return null;
  const { name, startTime, faults, cpuMs, threads } = stat;
  const tids = threadsOf(pid);
  const seen: Thread[] = [];
  const children: number[] = [];
  const context = contextFor(place, pid);
  for await (const tid of inTurns(tids.slice(0, THREADS_MAX), place.signal)) {
    const thread = threadOf(pid, tid, context);
    if (thread !== null) seen.push(thread);
    children.push(...childrenOf(pid, tid));
  }
  const whole = threadsThatCount(seen);
  const calls = readIo(pid)?.calls ?? null;
  if (parseProcess(readProc(pid, "stat") ?? "")?.startTime !== startTime) return null;
  return {
    ...{ hostPid: pid, hostParent: stat.parent, children, truncated: tids.length > THREADS_MAX },
    ...{ pid: status.insidePid, parent: 0, name, startTime, cpuMs, faults, calls },
    state: whole[0]?.state ?? stat.state,
    rssBytes: status.rssBytes,
    threads,
    waits: groupWaits(whole.map(({ wait }) => wait)),
  };
}

interface Thread {
  state: string;
  wait: Wait;
}

/** A first thread that has ended, of a process whose others go on, says nothing of it. */
function threadsThatCount(threads: readonly Thread[]): readonly Thread[] {
  const living = threads.filter(({ wait }) => wait.on !== "zombie");
  return living.length === 0 ? threads.slice(0, 1) : living;
}

/** One that ended is in no cgroup of version 1 any more, but still its parent's. */
function isOf(
  { machine, id, members }: Place,
  pid: number,
  { state, parent }: { state: string; parent: number },
): boolean {
  if (state === "Z" && members.has(parent)) return true;
  const path = machine.cgroups.path(id);
  const isWithin = (at: string) => at === path || at.startsWith(`${path}/`);
  return (readCgroups(pid) ?? "").split("\n").some((line) => isWithin(line.replace(/^\d+:[^:]*:/, "")));
}

const contextFor = ({ frozen }: Place, pid: number): WaitContext => ({
  frozen,
  arch: process.arch,
  descriptor: (fd) => descriptorOf(pid, fd),
});

function threadOf(pid: number, tid: number, context: WaitContext): Thread | null {
  const read = (file: string) => readProc(pid, `task/${tid}/${file}`, HIDDEN);
  const state = parseStat(read("stat") ?? "")?.state;
  if (state === undefined) return null;
  const call = parseCall(read("syscall") ?? "");
  return { state, wait: waitOf({ state, place: parsePlace(read("wchan") ?? ""), call }, context) };
}

/** Where the kernel tells no children, those that ended stay unseen. */
const childrenOf = (pid: number, tid: number): number[] =>
  (readProc(pid, `task/${tid}/children`, HIDDEN) ?? "").split(" ").filter(Boolean).map(Number);

function threadsOf(pid: number): number[] {
  return orNull(() => readdirSync(`/proc/${pid}/task`))?.map(Number) ?? [];
}

/** Looks through the descriptor and opens nothing: what is there is the sandbox's. */
function descriptorOf(pid: number, fd: number): Descriptor | null {
  if (fd < 0) return null;
  const path = `/proc/${pid}/fd/${fd}`;
  const link = orNull(() => readlinkSync(path));
  if (link === null) return null;
  const stat = link.startsWith("/") ? orNull(() => statSync(path)) : null;
  return { link, kind: stat === null ? "other" : kindOf(stat) };
}

function kindOf(stat: Stats): Descriptor["kind"] {
  if (stat.isFIFO()) return "fifo";
  return stat.isCharacterDevice() && TERMINAL_MAJORS.has(majorOf(stat.rdev)) ? "terminal" : "other";
}

/** As the C library takes a device's number apart, as far as terminals go. */
const majorOf = (rdev: number): number => (rdev >> 8) & 0xfff;

function orNull<Result>(read: () => Result): Result | null {
  try {
    return read();
  } catch (error) {
    if (isGone(error) || HIDDEN.includes(errnoOf(error))) return null;
    throw error;
  }
}

/**
 * Names of execs and command lines lie in the processes' own memory, which one that hangs in the kernel may never give:
 * they are read by a helper that can be ended, and not of those that seem to hang.
 */
async function wordsOf(
  { porter, log }: Machine,
  id: SandboxId,
  found: readonly Found[],
  frozen: boolean,
  signal: AbortSignal,
): Promise<Awaited<ReturnType<Machine["porter"]["words"]>>> {
  const willing = found.filter(
    ({ state, waits }) => state !== "Z" && (frozen || waits.every(({ on }) => on !== "disk")),
  );
  const names = willing.map(({ hostPid: pid, startTime }) => ({ pid, startTime }));
  try {
    return await porter.words(names, AbortSignal.any([signal, AbortSignal.timeout(WORDS_MS)]));
  } catch (error) {
    signal.throwIfAborted();
    log.warn({ sandboxId: id, error: String(error) }, "its processes' command lines could not be read");
    return new Map();
  }
}

const FIRST_PROCESS = 1;

/** By their numbers inside. One that threw the name of its exec away belongs to its parent's. */
function tell(found: readonly Found[], words: ReadonlyMap<number, Words>): ProcessSeen[] {
  const byHostPid = new Map(found.map((process) => [process.hostPid, process]));
  const execOf = (process: Found | undefined, depth = 0): string => {
    if (process === undefined || process.pid === FIRST_PROCESS || depth > found.length) return "";
    return words.get(process.hostPid)?.execId || execOf(byHostPid.get(process.hostParent), depth + 1);
  };
  return found
    .map((process) => {
      const { hostPid, hostParent, children: _children, truncated: _truncated, ...seen } = process;
      const parent = byHostPid.get(hostParent)?.pid ?? 0;
      const commandLine = words.get(hostPid)?.commandLine ?? "";
      return { ...seen, parent, commandLine, execId: execOf(process) };
    })
    .sort((a, b) => a.pid - b.pid);
}

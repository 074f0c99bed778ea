import { readdirSync, readlinkSync, type Stats, statSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { ProcessSeen, ProcessSnapshot } from "@holdfast/engine";
import type { Machine } from "../machine/machine.ts";
import { errnoOf, isGone } from "../proc/errno.ts";
import { inBatches } from "../proc/in-batches.ts";
import {
  HIDDEN,
  parseProcess,
  parseStat,
  parseStatus,
  readCgroups,
  readIo,
  readProc,
} from "../proc/proc-files.ts";
import {
  type Descriptor,
  groupWaits,
  parseCall,
  parsePlace,
  type Wait,
  type WaitContext,
  waitOf,
} from "../proc/thread-waits.ts";

/** Maximum number of inspected processes per sandbox. If a sandbox has more, the result is marked as `truncated`. */
const PROCESSES_MAX = 512;
/** Maximum number of inspected threads per process. If a process has more, the result is marked as `truncated`. */
const THREADS_MAX = 64;
/** Time limit for reading command lines and exec ids from the processes' memory. */
const COMMAND_LINES_MS = 1_000;
/** Major device numbers of terminals: consoles, /dev/tty, and both ends of pseudoterminals. */
const TERMINAL_MAJORS = new Set([4, 5, 136, 137, 138, 139, 140, 141, 142, 143]);

/** Fields whose values are read from the memory of the inspected process. */
type MemoryFields = Pick<ProcessSeen, "execId" | "commandLine">;

/** A process with its pid on the host. Its command line and exec id have not been read yet. */
interface Found extends Omit<ProcessSeen, keyof MemoryFields> {
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
 * Lists the processes of an instance from the host's /proc, without the keeper's help, so that a frozen or stopped
 * instance can be inspected too. On cgroup v1 zombies have left their cgroups, so they are found through their parents.
 * The kernel may reuse a pid between the listing and the inspection, so a process is returned only if it is verified to
 * belong to this sandbox.
 */
export async function inspect(
  machine: Machine,
  id: SandboxId,
  signal: AbortSignal,
): Promise<ProcessSnapshot> {
  const at = machine.clock.now();
  const members = machine.cgroups.members(id);
  const frozen = machine.cgroups.isFrozen(id);
  const place: Place = { machine, id, frozen, members: new Set(members), signal };
  const pids = new Set(members);
  const found: Found[] = [];
  // The loop adds each process's children to `pids` while it iterates.
  for await (const pid of inBatches(pids, signal)) {
    if (found.length === PROCESSES_MAX) break;
    const process = await inspectProcess(place, pid);
    if (process === null) continue;
    found.push(process);
    for (const child of process.children) pids.add(child);
  }
  const fields = await readCommandLines(machine, id, found, frozen, signal);
  const truncated = found.length < pids.size && found.length === PROCESSES_MAX;
  return {
    at,
    processes: toProcessesSeen(found, fields),
    truncated: truncated || found.some((process) => process.truncated),
  };
}

/** Inspects one process. Returns null if the process has ended or belongs to another sandbox. */
async function inspectProcess(place: Place, pid: number): Promise<Found | null> {
  const stat = parseProcess(readProc(pid, "stat") ?? "");
  const status = parseStatus(readProc(pid, "status") ?? "");
  if (stat === null || status === null || !belongsTo(place, pid, stat)) return null;
  const { name, startTime, faults, cpuMs, threads } = stat;
  const tids = threadsOf(pid);
  const seen: Thread[] = [];
  const children: number[] = [];
  const context = contextFor(place, pid);
  for await (const tid of inBatches(tids.slice(0, THREADS_MAX), place.signal)) {
    const thread = threadOf(pid, tid, context);
    if (thread !== null) seen.push(thread);
    children.push(...childrenOf(pid, tid));
  }
  const whole = livingThreads(seen);
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

/**
 * Returns the living threads of a process, or its main thread if none lives. A main thread that ended before the others
 * is left out: it is a zombie.
 */
function livingThreads(threads: readonly Thread[]): readonly Thread[] {
  const living = threads.filter(({ wait }) => wait.on !== "zombie");
  return living.length === 0 ? threads.slice(0, 1) : living;
}

/**
 * Whether a process belongs to the sandbox. On cgroup v1 a zombie is in no cgroup, so the cgroup of its parent is
 * checked instead.
 */
function belongsTo(
  { machine, id, members }: Place,
  pid: number,
  { state, parent }: { state: string; parent: number },
): boolean {
  if (state === "Z" && members.has(parent)) return true;
  return machine.cgroups.hasMember(id, readCgroups(pid) ?? "");
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

/** Children that a thread has forked. If the kernel does not provide this list, zombies are not found. */
const childrenOf = (pid: number, tid: number): number[] =>
  (readProc(pid, `task/${tid}/children`, HIDDEN) ?? "").split(" ").filter(Boolean).map(Number);

function threadsOf(pid: number): number[] {
  return orNull(() => readdirSync(`/proc/${pid}/task`))?.map(Number) ?? [];
}

/**
 * Describes an open file descriptor of a process by its symbolic link /proc/PID/fd/N and by the stat of its file. The
 * file belongs to the sandbox, so it is not opened: opening it could block.
 */
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

/** Major number of a device. Correct for terminals, whose major numbers have at most 12 bits. */
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
 * Reads exec ids and command lines, which are in the processes' own memory. Reading the memory of a process that hangs
 * in the kernel may block forever. So a helper reads it, which can be killed, and processes that seem to hang are
 * skipped.
 */
async function readCommandLines(
  { porter, log }: Machine,
  id: SandboxId,
  found: readonly Found[],
  frozen: boolean,
  signal: AbortSignal,
): Promise<Awaited<ReturnType<Machine["porter"]["commandLines"]>>> {
  const readable = found.filter(
    ({ state, waits }) => state !== "Z" && (frozen || waits.every(({ on }) => on !== "disk")),
  );
  const names = readable.map(({ hostPid: pid, startTime }) => ({ pid, startTime }));
  try {
    return await porter.commandLines(names, AbortSignal.any([signal, AbortSignal.timeout(COMMAND_LINES_MS)]));
  } catch (error) {
    signal.throwIfAborted();
    log.warn(
      { sandboxId: id, error: String(error) },
      "command lines of the sandbox's processes could not be read",
    );
    return new Map();
  }
}

const FIRST_PROCESS = 1;

/**
 * Returns the processes, sorted by their pids inside the sandbox. A process without an exec id of its own gets that of
 * its parent.
 */
function toProcessesSeen(found: readonly Found[], fields: ReadonlyMap<number, MemoryFields>): ProcessSeen[] {
  const byHostPid = new Map(found.map((process) => [process.hostPid, process]));
  const execOf = (process: Found | undefined, depth = 0): string => {
    if (process === undefined || process.pid === FIRST_PROCESS || depth > found.length) return "";
    return fields.get(process.hostPid)?.execId || execOf(byHostPid.get(process.hostParent), depth + 1);
  };
  return found
    .map((process) => {
      const { hostPid, hostParent, children: _children, truncated: _truncated, ...seen } = process;
      const parent = byHostPid.get(hostParent)?.pid ?? 0;
      const commandLine = fields.get(hostPid)?.commandLine ?? "";
      return { ...seen, parent, commandLine, execId: execOf(process) };
    })
    .sort((a, b) => a.pid - b.pid);
}

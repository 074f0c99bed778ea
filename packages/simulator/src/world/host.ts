import type { CheckpointId, DriveId, ExecId, SandboxId } from "@holdfast/contract";
import type {
  Capacity,
  Driver,
  ExecOrder,
  Instance,
  KeeperExec,
  LaunchOrder,
  MountPoint,
  Observation,
  Usage,
} from "@holdfast/engine";
import type { StoredCheckpoint } from "./checkpoints.ts";
import type { DriveDirectory } from "./drives.ts";
import type { Fact } from "./facts.ts";
import type { Armed, Faults } from "./faults.ts";
import type { Journal } from "./journal.ts";
import { type KeeperMemory, SimulatedKeeper } from "./keeper.ts";
import type { SimulatedLink } from "./link.ts";
import { ownPaths, type Places, placesFor, seenMounts } from "./mounts.ts";
import type { Random } from "./random.ts";
import type { StoredCopy } from "./saved.ts";
import type { VirtualTime } from "./virtual-time.ts";

export const GIGABYTE = 2 ** 30;
const TOTAL = { disk: 100 * GIGABYTE, memory: 16 * GIGABYTE };
/** What is free while nothing is wrong. */
const PLENTY = { disk: 50 * GIGABYTE, memory: 8 * GIGABYTE };

/** What a sandbox has on disk. */
export interface Directory {
  readonly things: Set<"directory" | "mount" | "cgroup">;
  readonly journals: Map<ExecId, Journal>;
  readonly files: Map<string, Uint8Array>;
  readonly checkpoints: Map<CheckpointId, StoredCheckpoint>;
  readonly saved: Map<CheckpointId, StoredCopy>;
  /** How much was done in the sandbox, by its files. */
  steps: number;
}

/** One incarnation of a sandbox: its processes, and the keeper among them. */
export interface SimulatedInstance {
  readonly sandboxId: SandboxId;
  readonly generation: number;
  readonly pid: number;
  readonly startTime: string;
  readonly hostBootId: string;
  readonly keeper: SimulatedKeeper;
  readonly links: Set<SimulatedLink>;
  alive: boolean;
  isMounted: boolean;
  /** A root that was unmounted can't be put back. */
  isRootLost: boolean;
  /** Where drives are mounted, or expected, by their paths. */
  readonly places: Places;
  oomKills: number;
  /** Whether a caller's command ever ran in it. */
  hasRun: boolean;
  /** The largest generation that a link came with. */
  greeted: number;
  /** Since when it can't serve though it should: dead, stopped or without its root. */
  brokenSince: number | null;
  /** When a command of a proof last ran in it. */
  provenAt: number | null;
  /** What keeps it from running: a signal, or the freezer of its cgroup. */
  readonly holds: Set<Hold>;
  /** Resolves when nothing holds it any more. */
  resumed: PromiseWithResolvers<void> | null;
  /** What it has written to disk, and how fast it goes on. */
  written: { bytes: number; since: number; perSecond: number };
  /** The checkpoint that it came out of; null where it was launched, as a fork or not. */
  readonly origin: CheckpointId | null;
  /** A part of the processes that it should have. */
  readonly isHalf: boolean;
  /** Checkpoints of it that were written to the end. */
  readonly dumps: CheckpointId[];
}

export type Hold = "stopped" | "frozen";

/** A launch, a dump or a restore under way: a process of its own, which the server's death does not end. */
export interface Helper {
  readonly sandboxId: SandboxId;
  killed: boolean;
}

/**
 * The machine under the servers: processes, directories, journals, the disk. It obeys physics and nothing else: what was
 * started runs, what was written stays, whoever it was that asked. A reboot ends every process and leaves every file.
 */
export class Host {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly faults: Faults;
  readonly tell: (fact: Fact) => void;
  readonly directories = new Map<SandboxId, Directory>();
  readonly instances = new Set<SimulatedInstance>();
  readonly #instancesOf = new Map<SandboxId, SimulatedInstance[]>();
  readonly helpers = new Set<Helper>();
  readonly kept = new Map<SandboxId, Map<ExecId, Journal>>();
  readonly drives = new Map<DriveId, DriveDirectory>();
  readonly #ends = new Map<SandboxId, number>();
  /** What standby keeps here. */
  readonly standby: Driver["standby"];
  bootId = "boot-1";
  diskIsFull = false;
  diskFreeBytes = PLENTY.disk;
  memoryFreeBytes = PLENTY.memory;
  /** When the host last was short of disk or memory. */
  shortAt = Number.NEGATIVE_INFINITY;
  #boots = 1;
  #pids = 1_000;
  #inodes = 0;

  constructor(parts: {
    time: VirtualTime;
    random: Random;
    faults: Faults;
    tell: (fact: Fact) => void;
    keepsMemory: boolean;
  }) {
    this.time = parts.time;
    this.random = parts.random;
    this.faults = parts.faults;
    this.tell = parts.tell;
    this.standby = parts.keepsMemory
      ? { kind: "memory", why: null }
      : { kind: "files", why: "memory can't be written here" };
  }

  /** How long something takes: often no time at all, so that everything also happens at once. */
  latency(): number {
    return this.random.chance(0.6) ? 0 : this.random.between(1, 25);
  }

  capacity(): Capacity {
    return {
      cpus: 4,
      memoryTotalBytes: TOTAL.memory,
      memoryFreeBytes: this.memoryFreeBytes,
      diskTotalBytes: TOTAL.disk,
      diskFreeBytes: this.diskIsFull ? 0 : this.diskFreeBytes,
    };
  }

  /** There is less of it than there should be, until it is relieved. */
  runShort(of: { disk?: number; memory?: number }): void {
    this.diskFreeBytes = of.disk ?? this.diskFreeBytes;
    this.memoryFreeBytes = of.memory ?? this.memoryFreeBytes;
    this.shortAt = Number.POSITIVE_INFINITY;
  }

  relieve(): void {
    this.diskIsFull = false;
    this.diskFreeBytes = PLENTY.disk;
    this.memoryFreeBytes = PLENTY.memory;
    if (this.shortAt === Number.POSITIVE_INFINITY) this.shortAt = this.time.elapsed;
    for (const instance of this.instances) this.write(instance, 0);
  }

  /** So much a second from now on. */
  write(instance: SimulatedInstance, perSecond: number): void {
    instance.written = { bytes: this.writtenBy(instance), since: this.time.elapsed, perSecond };
  }

  writtenBy({ written: { bytes, since, perSecond }, holds }: SimulatedInstance): number {
    return holds.size > 0 ? bytes : bytes + (perSecond * (this.time.elapsed - since)) / 1_000;
  }

  directory(id: SandboxId): Directory {
    const there = this.directories.get(id);
    if (there !== undefined) return there;
    const made: Directory = {
      things: new Set(["directory"]),
      journals: new Map(),
      files: new Map(),
      checkpoints: new Map(),
      saved: new Map(),
      steps: 0,
    };
    this.directories.set(id, made);
    return made;
  }

  /** The directory of a drive comes into being, whoever wants it. */
  makeDrive(id: DriveId, how: Pick<DriveDirectory, "isSized" | "state">): DriveDirectory {
    this.#inodes += 1;
    const drive = { id, ino: String(this.#inodes), ...how, isOpen: true, isAway: false };
    this.drives.set(id, drive);
    this.tell({ type: "drive-made", id });
    return drive;
  }

  /** Where there are several, which must not be, the first. */
  instanceOf(id: SandboxId): SimulatedInstance | null {
    return this.#instancesOf.get(id)?.[0] ?? null;
  }

  /** When the last process of a sandbox ended; null where it never had one. */
  absentSince(id: SandboxId): number | null {
    return this.#ends.get(id) ?? null;
  }

  /** A process comes into being. Whether it may is for the one who asked to know: a machine starts what it is told to. */
  spawn(order: Birth): SimulatedInstance {
    return this.#bear(order, null);
  }

  /** One comes back with its memory. None of its processes runs yet. */
  revive(
    order: Birth,
    { id, memory, greeted, paths }: StoredCheckpoint,
    { isHalf }: { isHalf: boolean },
  ): SimulatedInstance {
    return this.#bear(order, { memory, greeted, paths, origin: id, isHalf });
  }

  /** One begins with a copy of another's memory, and runs. */
  fork(order: Birth, memory: KeeperMemory, { greeted, paths: had }: Pick<Back, "greeted" | "paths">) {
    const paths = ownPaths(had, order.mounts);
    const instance = this.#bear(order, { memory, greeted, paths, origin: null, isHalf: false });
    this.tell({ type: "forked", sandboxId: order.sandboxId, instance });
    this.release(instance, "frozen");
    return instance;
  }

  #bear({ sandboxId, generation, mounts }: Birth, back: Back | null): SimulatedInstance {
    const directory = this.directory(sandboxId);
    const { journals, things } = directory;
    things.add("mount").add("cgroup");
    this.#pids += 1;
    const pid = this.#pids;
    const surroundings = {
      time: this.time,
      begun: (order: ExecOrder, why: "asked" | "next") => this.#begun(instance, order, why),
      cancelled: ({ id, timeoutMs }: ExecOrder, livedMs: number) =>
        this.tell({ type: "cancelled", sandboxId, id, livedMs, timeoutMs }),
      announce: (exec: KeeperExec) => this.#announce(instance, exec),
      announceStart: (exec: KeeperExec) => this.#announceStart(instance, exec),
      forgetsTimeout: () => this.faults.take("exec.timeout") !== null,
      stepped: (memory: number) => this.#stepped(sandboxId, directory, memory),
    };
    const host = this;
    const born = back?.memory ?? { bootId: `keeper-${pid}`, steps: directory.steps };
    const keeper = new SimulatedKeeper(born, journals, {
      ...surroundings,
      get diskIsFull() {
        return host.diskIsFull;
      },
    });
    const instance: SimulatedInstance = {
      sandboxId,
      generation,
      pid,
      startTime: `start-${pid}`,
      hostBootId: this.bootId,
      keeper,
      links: new Set(),
      alive: true,
      isMounted: true,
      isRootLost: false,
      places: placesFor(this, back?.paths ?? [], mounts),
      oomKills: 0,
      hasRun: back !== null,
      greeted: back?.greeted ?? 0,
      brokenSince: back === null ? null : this.time.elapsed,
      provenAt: null,
      holds: new Set(back === null ? [] : ["frozen"]),
      resumed: back === null ? null : Promise.withResolvers(),
      written: { bytes: 0, since: this.time.elapsed, perSecond: 0 },
      origin: back?.origin ?? null,
      isHalf: back?.isHalf ?? false,
      dumps: [],
    };
    this.instances.add(instance);
    this.#instancesOf.set(sandboxId, [...(this.#instancesOf.get(sandboxId) ?? []), instance]);
    this.tell({ type: "spawned", sandboxId, generation });
    return instance;
  }

  #stepped(sandboxId: SandboxId, directory: Directory, memory: number): void {
    directory.steps += 1;
    if (memory !== directory.steps) this.tell({ type: "behind", sandboxId, memory, disk: directory.steps });
  }

  #begun(instance: SimulatedInstance, { id, digest, argv }: ExecOrder, why: "asked" | "next"): void {
    const isProof = argv[1] === "prove";
    if (!isProof) instance.hasRun = true;
    this.tell({ type: "command", sandboxId: instance.sandboxId, id, digest, isProof, why });
  }

  /** Events are not answered, so nobody notices that one was dropped. */
  #announce(instance: SimulatedInstance, exec: KeeperExec): void {
    if (exec.id.startsWith("proof-")) instance.provenAt = this.time.elapsed;
    else this.tell({ type: "command-ended", sandboxId: instance.sandboxId, exec });
    const fault = exec.id.startsWith("proof-") ? null : this.faults.take("exec.end");
    this.#deliver(instance, fault, (link) => link.hearEnd(exec));
  }

  #announceStart(instance: SimulatedInstance, exec: KeeperExec): void {
    this.#deliver(instance, this.faults.take("exec.end"), (link) => link.hearStart(exec));
  }

  #deliver(instance: SimulatedInstance, fault: Armed | null, hear: (link: SimulatedLink) => void): void {
    const deliver = () => {
      for (const link of instance.links) hear(link);
    };
    if (fault?.kind === "end-lost") return;
    if (fault?.kind === "end-late") {
      const links = [...instance.links];
      this.time.after(fault.ms, () => {
        for (const link of links) hear(link);
      });
      return;
    }
    deliver();
    if (fault?.kind === "end-twice") this.time.after(fault.ms, deliver);
  }

  /** Ends the processes of an instance, by whatever it was. */
  kill(instance: SimulatedInstance, why: string): void {
    if (!instance.alive) return;
    instance.alive = false;
    this.#ends.set(instance.sandboxId, this.time.elapsed);
    instance.brokenSince ??= this.time.elapsed;
    instance.keeper.die();
    this.instances.delete(instance);
    const { sandboxId } = instance;
    const others = this.#instancesOf.get(sandboxId)?.filter((other) => other !== instance) ?? [];
    if (others.length > 0) this.#instancesOf.set(sandboxId, others);
    else this.#instancesOf.delete(sandboxId);
    for (const link of [...instance.links]) link.drop(why);
  }

  unmount(instance: SimulatedInstance): void {
    instance.isMounted = false;
    instance.brokenSince ??= this.time.elapsed;
  }

  /** It neither answers nor ends, until nothing holds it any more. */
  hold(instance: SimulatedInstance, hold: Hold): void {
    if (!instance.alive || instance.holds.has(hold)) return;
    const wasFree = instance.holds.size === 0;
    this.write(instance, instance.written.perSecond);
    instance.holds.add(hold);
    if (!wasFree) return;
    instance.keeper.stop();
    instance.brokenSince ??= this.time.elapsed;
    instance.resumed = Promise.withResolvers();
    for (const link of instance.links) link.fallSilent();
  }

  release(instance: SimulatedInstance, hold: Hold): void {
    const wasHeld = instance.holds.delete(hold);
    if (!instance.alive || !wasHeld || instance.holds.size > 0) return;
    const { sandboxId } = instance;
    const disk = this.directories.get(sandboxId)?.steps ?? 0;
    this.tell({ type: "goes-on", sandboxId, instance, memory: instance.keeper.steps, disk });
    instance.keeper.resume();
    if (instance.isMounted) instance.brokenSince = null;
    instance.resumed?.resolve();
    instance.resumed = null;
    for (const link of instance.links) link.hearAgain();
  }

  /** Its root is where the host sees it again. */
  mountAgain(instance: SimulatedInstance): void {
    instance.isMounted = true;
    this.directories.get(instance.sandboxId)?.things.add("mount");
    if (instance.alive && instance.holds.size === 0) instance.brokenSince = null;
  }

  usageOf(instance: SimulatedInstance): Usage {
    const running = [...instance.keeper.execs.values()].filter(({ state }) => state === "running").length;
    return {
      at: this.time.now(),
      cpuMs: 0,
      throttledMs: 0,
      memoryBytes: 1_048_576,
      processes: 1 + running,
      pidsRefused: 0,
      readBytes: 0,
      writtenBytes: this.writtenBy(instance),
      ioOperations: 0,
      disk: null,
    };
  }

  reference({ sandboxId, generation, pid, startTime, hostBootId }: SimulatedInstance): Instance {
    return { sandboxId, generation, pid, startTime, hostBootId, keeperVersion: "simulated" };
  }

  see(id: SandboxId): Observation {
    const at = this.time.now();
    const instance = this.instanceOf(id);
    if (instance === null)
      return { seen: "absent", at, leftovers: [...(this.directories.get(id)?.things ?? [])] };
    const { pid, startTime, isMounted, oomKills, holds } = instance;
    const problems = [
      ...(holds.has("stopped")
        ? [{ code: "keeper_stopped", message: "the keeper was stopped by a signal" }]
        : []),
      ...(holds.has("frozen") ? [{ code: "frozen", message: "all processes are frozen" }] : []),
      ...(isMounted ? [] : [{ code: "root_unmounted", message: "the root is not mounted on the host" }]),
    ];
    const root = isMounted ? ROOT : null;
    const state = holds.has("frozen") ? "frozen" : holds.has("stopped") ? "stopped" : "running";
    const mounts = seenMounts(this, instance);
    return { seen: "present", at, pid, startTime, state, root, oomKills, mounts, problems };
  }

  /** Every process ends, every file stays; pids and boot id mean nothing any more. */
  reboot(): void {
    for (const instance of [...this.instances]) this.kill(instance, "the host rebooted");
    for (const helper of this.helpers) helper.killed = true;
    this.helpers.clear();
    for (const { things } of this.directories.values()) {
      things.delete("mount");
      things.delete("cgroup");
    }
    for (const drive of this.drives.values()) if (drive.isSized) drive.isOpen = false;
    this.#boots += 1;
    this.bootId = `boot-${this.#boots}`;
  }

  /** What the disk had not got yet is gone from the journals. */
  tearJournals(): void {
    const all = [...this.directories.values()].flatMap(({ journals }) => [...journals.values()]);
    for (const journal of all)
      if (this.random.chance(0.3)) journal.tear(this.random.below(journal.records.length + 1));
  }
}

/** Memory that an instance comes into being with. */
interface Back {
  memory: KeeperMemory;
  greeted: number;
  /** Where it expects drives. */
  paths: readonly string[];
  /** The checkpoint that is spent with it; null where any number may have it. */
  origin: CheckpointId | null;
  isHalf: boolean;
}

type Birth = Pick<LaunchOrder, "sandboxId" | "generation"> & { mounts?: readonly MountPoint[] };

/** Of every root, seen from inside and outside. */
export const ROOT = { dev: "1", ino: "2" };

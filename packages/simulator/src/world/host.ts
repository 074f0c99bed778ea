import type { CheckpointId, DriveId, ExecId, SandboxId } from "@holdfast/contract";
import type {
  Capacity,
  ExecOrder,
  Instance,
  InstanceIdentity,
  KeeperExec,
  LaunchOrder,
  MountPoint,
  Observation,
  StandbySupport,
  Usage,
} from "@holdfast/engine";
import type { Armed, Faults } from "../schedule/armed-faults.ts";
import type { Random } from "../schedule/random.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { StoredCheckpoint } from "./checkpoints.ts";
import type { DriveDirectory } from "./drives.ts";
import type { Fact } from "./facts.ts";
import type { Journal } from "./journal.ts";
import { type KeeperMemory, SimulatedKeeper } from "./keeper.ts";
import type { SimulatedLink } from "./link.ts";
import { ownPaths, type Places, placesFor, seenMounts } from "./mounts.ts";
import type { StoredCopy } from "./saved-checkpoints.ts";

export const GIGABYTE = 2 ** 30;
const TOTAL = { disk: 100 * GIGABYTE, memory: 16 * GIGABYTE };
/** Free resources of a healthy host. */
const PLENTY = { disk: 50 * GIGABYTE, memory: 8 * GIGABYTE };

/** A sandbox's data on disk. */
export interface Directory {
  readonly things: Set<"directory" | "mount" | "cgroup">;
  readonly journals: Map<ExecId, Journal>;
  readonly files: Map<string, Uint8Array>;
  readonly checkpoints: Map<CheckpointId, StoredCheckpoint>;
  readonly saved: Map<CheckpointId, StoredCopy>;
  /** Number of the sandbox's actions that are recorded in its files. */
  steps: number;
}

/** One incarnation of a sandbox: its processes, including the keeper. */
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
  /** Whether the root on the host was unmounted in a way that can't be repaired. */
  isRootLost: boolean;
  /** Paths at which drives are mounted, or at which the instance's memory expects drives. */
  readonly places: Places;
  oomKills: number;
  /** Whether a caller's command ever ran in the instance. */
  hasRun: boolean;
  /** The largest generation with which a server ever connected to the instance's keeper. */
  greeted: number;
  /**
   * Time since which the instance has not been able to serve, because it is dead, stopped, frozen or without its root.
   * Null if the instance can serve.
   */
  brokenSince: number | null;
  /** When a proof command last ran in the instance. */
  provenAt: number | null;
  /** What prevents the instance from running: a signal, or the freezer of its cgroup. */
  readonly holds: Set<Hold>;
  /** Resolves when nothing prevents the instance from running any more; null while it runs. */
  resumed: PromiseWithResolvers<void> | null;
  /** Bytes written to disk until `since`, and the number of bytes written per second from then on. */
  written: { bytes: number; since: number; perSecond: number };
  /** The checkpoint that the instance was restored from; null if it was launched or forked. */
  readonly origin: CheckpointId | null;
  /** Whether only some of the instance's processes exist, because its restore failed. */
  readonly isHalf: boolean;
  /** Complete checkpoints of the instance. */
  readonly dumps: CheckpointId[];
}

type Hold = "stopped" | "frozen";

/** A launch, dump or restore in progress. It is a process of its own, which keeps running when its server dies. */
export interface Helper {
  readonly sandboxId: SandboxId;
  killed: boolean;
}

/**
 * The machine on which the servers run: processes, directories, journals, the disk. It only models physics: started
 * processes run and written data stays, whichever server caused them. A reboot ends every process and keeps every file.
 */
export class Host {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly faults: Faults;
  readonly report: (fact: Fact) => void;
  readonly directories = new Map<SandboxId, Directory>();
  readonly instances = new Set<SimulatedInstance>();
  readonly #instancesOf = new Map<SandboxId, SimulatedInstance[]>();
  readonly helpers = new Set<Helper>();
  readonly kept = new Map<SandboxId, Map<ExecId, Journal>>();
  readonly drives = new Map<DriveId, DriveDirectory>();
  readonly #ends = new Map<SandboxId, number>();
  /** The kind of standby that the host supports. */
  readonly standby: StandbySupport;
  bootId = "boot-1";
  diskIsFull = false;
  diskFreeBytes = PLENTY.disk;
  memoryFreeBytes = PLENTY.memory;
  /** Time at which the host was last short of disk or memory; infinity while it is short. */
  shortAt = Number.NEGATIVE_INFINITY;
  #boots = 1;
  #pids = 1_000;
  #inodes = 0;

  constructor(parts: {
    time: VirtualTime;
    random: Random;
    faults: Faults;
    report: (fact: Fact) => void;
    keepsMemory: boolean;
  }) {
    this.time = parts.time;
    this.random = parts.random;
    this.faults = parts.faults;
    this.report = parts.report;
    this.standby = parts.keepsMemory
      ? { kind: "memory", why: null }
      : { kind: "files", why: "memory can't be written here" };
  }

  /**
   * Returns a random duration for an operation. It is often zero, so that several operations complete at the same
   * moment.
   */
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

  /** Reduces the free disk or memory until `relieve` is called. */
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

  /** Sets the rate at which an instance writes to disk, in bytes per second. */
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

  /** Creates the directory of a drive, on a server's request or because of a fault. */
  makeDrive(id: DriveId, how: Pick<DriveDirectory, "isSized" | "state">): DriveDirectory {
    this.#inodes += 1;
    const drive = { id, ino: String(this.#inodes), ...how, isOpen: true, isAway: false };
    this.drives.set(id, drive);
    this.report({ type: "drive-made", id });
    return drive;
  }

  /**
   * Returns the running instance of a sandbox, or null. If there are several, which breaks a promise, returns the
   * first.
   */
  instanceOf(id: SandboxId): SimulatedInstance | null {
    return this.#instancesOf.get(id)?.[0] ?? null;
  }

  /** When the last process of a sandbox ended; null if it never had one. */
  absentSince(id: SandboxId): number | null {
    return this.#ends.get(id) ?? null;
  }

  /** Starts an instance without any checks: the caller decides whether the instance may start. */
  spawn(order: InstanceOrder): SimulatedInstance {
    return this.#create(order, null);
  }

  /** Restores an instance with its memory. The instance stays frozen. */
  revive(
    order: InstanceOrder,
    { id, memory, greeted, paths }: StoredCheckpoint,
    { isHalf }: { isHalf: boolean },
  ): SimulatedInstance {
    return this.#create(order, { memory, greeted, paths, origin: id, isHalf });
  }

  /** Starts a running instance with a copy of another instance's memory. */
  fork(
    order: InstanceOrder,
    memory: KeeperMemory,
    { greeted, paths: had }: Pick<InitialMemory, "greeted" | "paths">,
  ) {
    const paths = ownPaths(had, order.mounts);
    const instance = this.#create(order, { memory, greeted, paths, origin: null, isHalf: false });
    this.report({ type: "forked", sandboxId: order.sandboxId, instance });
    this.release(instance, "frozen");
    return instance;
  }

  #create({ sandboxId, generation, mounts }: InstanceOrder, back: InitialMemory | null): SimulatedInstance {
    const directory = this.directory(sandboxId);
    const { journals, things } = directory;
    things.add("mount").add("cgroup");
    this.#pids += 1;
    const pid = this.#pids;
    const surroundings = {
      time: this.time,
      begun: (order: ExecOrder, why: "asked" | "next") => this.#begun(instance, order, why),
      cancelled: ({ id, timeoutMs }: ExecOrder, livedMs: number) =>
        this.report({ type: "cancelled", sandboxId, id, livedMs, timeoutMs }),
      announce: (exec: KeeperExec) => this.#announce(instance, exec),
      announceStart: (exec: KeeperExec) => this.#announceStart(instance, exec),
      forgetsTimeout: () => this.faults.take("exec.timeout") !== null,
      endsAtDeadline: () => this.#endsAtDeadline(instance),
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
    this.report({ type: "spawned", sandboxId, generation });
    return instance;
  }

  #endsAtDeadline(instance: SimulatedInstance): boolean {
    if (instance.links.size > 0) return false;
    this.kill(instance, "the keeper's deadline has passed");
    return true;
  }

  #stepped(sandboxId: SandboxId, directory: Directory, memory: number): void {
    directory.steps += 1;
    if (memory !== directory.steps) this.report({ type: "behind", sandboxId, memory, disk: directory.steps });
  }

  #begun(instance: SimulatedInstance, { id, digest, argv }: ExecOrder, why: "asked" | "next"): void {
    const isProof = argv[1] === "prove";
    if (!isProof) instance.hasRun = true;
    this.report({ type: "command", sandboxId: instance.sandboxId, id, digest, isProof, why });
  }

  /**
   * Sends the end of an exec to all links. Links do not acknowledge such an event, so the keeper does not notice if the
   * event is lost.
   */
  #announce(instance: SimulatedInstance, exec: KeeperExec): void {
    if (exec.id.startsWith("proof-")) instance.provenAt = this.time.elapsed;
    else this.report({ type: "command-ended", sandboxId: instance.sandboxId, exec });
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

  /** Ends the processes of an instance. */
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

  /**
   * Stops an instance by a signal or by its freezer, depending on `hold`. The instance neither answers nor ends until
   * all its holds are released.
   */
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
    this.report({ type: "resumed", sandboxId, instance, memory: instance.keeper.steps, disk });
    instance.keeper.resume();
    if (instance.isMounted) instance.brokenSince = null;
    instance.resumed?.resolve();
    instance.resumed = null;
    for (const link of instance.links) link.hearAgain();
  }

  /** Mounts the root on the host again. */
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
    const identity = { pid, startTime, hostBootId } as unknown as InstanceIdentity;
    return { sandboxId, generation, identity, keeperVersion: "simulated" };
  }

  see(id: SandboxId): Observation {
    const at = this.time.now();
    const instance = this.instanceOf(id);
    if (instance === null)
      return { seen: "absent", at, leftovers: [...(this.directories.get(id)?.things ?? [])] };
    const { isMounted, oomKills, holds } = instance;
    const { identity } = this.reference(instance);
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
    return { seen: "present", at, identity, state, root, oomKills, mounts, problems };
  }

  /** Reboots the host: every process ends, every file stays, and earlier pids and boot ids become invalid. */
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

  /** Removes data that was not flushed to disk from some journals, as a power cut does. */
  tearJournals(): void {
    const all = [...this.directories.values()].flatMap(({ journals }) => [...journals.values()]);
    for (const journal of all)
      if (this.random.chance(0.3)) journal.tear(this.random.below(journal.records.length + 1));
  }
}

/** Memory that a restored or forked instance starts with. */
interface InitialMemory {
  memory: KeeperMemory;
  greeted: number;
  /** Paths at which the memory expects drives. */
  paths: readonly string[];
  /**
   * The checkpoint that is used up when the instance starts; null if the memory comes from a checkpoint that can be
   * forked again.
   */
  origin: CheckpointId | null;
  isHalf: boolean;
}

type InstanceOrder = Pick<LaunchOrder, "sandboxId" | "generation"> & { mounts?: readonly MountPoint[] };

/** Identity of every root, which is the same inside a sandbox and on the host. */
export const ROOT = { dev: "1", ino: "2" };

import { PassThrough } from "node:stream";
import type { CheckpointId, ExecId, Image, SandboxId, StandbyKind } from "@holdfast/contract";
import {
  type Checkpoint,
  type CheckpointOrder,
  type Checkpoints,
  CheckpointUnusable,
  type Driver,
  type DriverCapabilities,
  type ExecOrder,
  type FileAccess,
  type ForkSource,
  type Found,
  type Freezer,
  type ImageStore,
  type Instance,
  type InstanceIdentity,
  type JournalRecord,
  type JournalsAfterDeath,
  type KeeperExec,
  KeeperRefusal,
  type LaunchOrder,
  type Link,
  LinkLost,
  type MemoryStandby,
  type MountOrder,
  type MountPoint,
  MountRefused,
  type MountSeen,
  type Observation,
  type OfflineFiles,
  type OutsideView,
  type PortDialing,
  type PortStream,
  type ProcessSeen,
  type ProcessSnapshot,
  type RestoreOrder,
  type SaveOrder,
  type StandbySupport,
  type SupervisedRun,
  type SupervisePolicy,
  type Usage,
} from "../ports/index.ts";
import { HostileDrives } from "./hostile-drives.ts";
import { type FakeDisk, fakeFiles, noSpace } from "./hostile-files.ts";

/** Faults to inject. Each function is called right before the step that it affects. */
interface Faults {
  launch?: (order: LaunchOrder, signal: AbortSignal) => Promise<void>;
  capacity?: () => Promise<void>;
  /** Called after the instance exists, before the launch returns. */
  launchAnswer?: () => Promise<void>;
  stop?: () => Promise<void>;
  destroy?: () => Promise<void>;
  observe?: () => Observation | null;
  connect?: () => Promise<void>;
  dial?: () => Promise<void>;
  recover?: (id: SandboxId) => Promise<void>;
  freeze?: (id: SandboxId) => Promise<void>;
  thaw?: (id: SandboxId) => Promise<void>;
  measure?: (signal: AbortSignal) => Promise<void>;
  inspect?: (signal: AbortSignal) => Promise<void>;
  remount?: (signal: AbortSignal) => Promise<void>;
  /** Called when the disk of a sandbox in standby is opened. */
  files?: () => Promise<void>;
  /** Called before a checkpoint is removed. */
  discard?: (id: SandboxId) => Promise<void>;
  /** Called before memory is written. */
  checkpoint?: (order: CheckpointOrder, signal: AbortSignal) => Promise<void>;
  /** Called before memory is restored. */
  restore?: (order: RestoreOrder, signal: AbortSignal) => Promise<void>;
  /** Called after memory was restored, before the call returns. */
  restoreAnswer?: () => Promise<void>;
  /** Called while files and memory are copied. */
  save?: (order: SaveOrder, signal: AbortSignal) => Promise<void>;
  /** Called after files and memory were copied, before the call returns. */
  saveAnswer?: () => Promise<void>;
  /** Called before a saved checkpoint is removed. */
  unsave?: () => Promise<void>;
  /** Called before a drive is mounted. */
  mount?: (order: MountOrder, signal: AbortSignal) => Promise<void>;
  /** Called after the drive was mounted, before the call returns. */
  mountAnswer?: () => Promise<void>;
  /** Called before an unmount. */
  unmount?: (path: string, options: { keepClosed: boolean }, signal: AbortSignal) => Promise<void>;
  /** The boot id of a process that answers in place of the keeper. */
  impostor?: () => string;
  /** Called before the keeper starts the command of a proof. */
  prove?: () => Promise<void>;
  /** Called before the keeper accepts a start. */
  start?: () => Promise<void>;
  /** Called after the keeper has accepted a start, before it answers. */
  startAnswer?: () => Promise<void>;
}

/** A supervised process. Unlike in a keeper, the waits are short, and the restart count is never reset. */
interface FakeRow {
  policy: SupervisePolicy;
  last: ExecId;
  state: SupervisedRun["state"];
  restarts: number;
  nextAt: number | null;
}

interface FakeExec {
  order: ExecOrder;
  stdin: Uint8Array;
  known: KeeperExec;
  records: JournalRecord[];
}

/** A mount point, at which either the directory of a drive or an empty read-only directory is mounted. */
interface FakeMount extends MountPoint {
  ino: string | null;
  /** Whether the mount was ever made. Before that, the driver does not report it. */
  wasMounted: boolean;
}

const NO_USAGE: Usage = {
  at: 0,
  cpuMs: 0,
  throttledMs: 0,
  memoryBytes: 0,
  processes: 1,
  pidsRefused: 0,
  readBytes: 0,
  writtenBytes: 0,
  ioOperations: 0,
  disk: null,
};

const CLOSED = "an empty directory";

/** An instance with its keeper, in memory. Like a real one, it outlives links, servers and driver objects. */
class FakeInstance implements FakeDisk {
  readonly generation: number;
  readonly pid: number;
  /**
   * The keeper's boot id. Like the highest generation of the keeper's links, it is part of the keeper's memory and is
   * restored with it.
   */
  readonly bootId: string;
  greeted = 0;
  alive = true;
  root = true;
  full: FakeDisk["full"] = null;
  execs = new Map<ExecId, FakeExec>();
  /** Supervised commands by the exec id of their first run. */
  rows = new Map<ExecId, FakeRow>();
  /** Whether the instance is frozen. While it is, no process runs, and work that becomes due waits for the thaw. */
  isFrozen: () => boolean = () => false;
  /** Whether the keeper supports supervised processes. */
  canKeep = true;
  /** Whether the keeper supports holding output. */
  canHold = true;
  /** The requested holds, oldest first. */
  readonly holds: { id: ExecId; cursor: number; leaseMs: number }[] = [];
  /** Journals are on disk and outlive the processes. */
  readonly journals: Map<ExecId, FakeExec>;
  files = new Map<string, Uint8Array>();
  readonly mounts = new Map<string, FakeMount>();
  readonly links = new Set<FakeLink>();
  /** The last `remainingMs` given to `setDeadline`; undefined if it was never called. */
  deadlineMs: number | null | undefined;
  starts = 0;
  /** Called whenever output is read. */
  onRead: ((id: ExecId) => void) | null = null;

  constructor(generation: number, pid: number, journals: Map<ExecId, FakeExec>, bootId = String(pid)) {
    this.generation = generation;
    this.pid = pid;
    this.bootId = bootId;
    this.journals = journals;
  }

  keep(order: ExecOrder, policy: SupervisePolicy): { existed: boolean; exec: KeeperExec } {
    if (!this.canKeep) throw new KeeperRefusal("unknown_type", "this keeper starts nothing again");
    const answer = this.start(order);
    if (!answer.existed)
      this.rows.set(order.id, { policy, last: order.id, state: "running", restarts: 0, nextAt: null });
    return answer;
  }

  kept(): SupervisedRun[] {
    return [...this.rows.values()].map(({ last, state, restarts, nextAt }) => ({
      execId: last,
      state,
      restarts,
      nextAt,
    }));
  }

  #rowOf(id: ExecId): FakeRow | undefined {
    return [...this.rows.values()].find(({ last }) => last === id);
  }

  /** Applies the restart policy after the end of a run. */
  #follow(row: FakeRow, { state, exitCode }: KeeperExec): void {
    if (row.state !== "running") return;
    const { on, max, backoffMs } = row.policy;
    if (state === "exited" && exitCode === 0 && on === "failure") row.state = "done";
    else if (row.restarts >= max) row.state = "given_up";
    else {
      const ms = Math.min(60_000, backoffMs * 2 ** row.restarts);
      row.state = "waiting";
      row.nextAt = Date.now() + ms;
      this.#beginLater(row, ms);
    }
  }

  #beginLater(row: FakeRow, ms: number): void {
    setTimeout(() => this.#beginNext(row), ms).unref();
  }

  /** Restarts the supervised processes whose restart became due during a freeze. */
  runDueRestarts(): void {
    for (const row of this.rows.values()) if (row.state === "waiting") this.#beginLater(row, 1);
  }

  #beginNext(row: FakeRow): void {
    const order = this.execs.get(row.last)?.order;
    if (!this.alive || this.isFrozen() || row.state !== "waiting" || order === undefined) return;
    if ([...this.rows.values()].every((each) => each !== row)) return;
    const [process, run] = row.last.split("-");
    const id = `${process}-${Number(run) + 1}` as ExecId;
    Object.assign(row, { last: id, state: "running", restarts: row.restarts + 1, nextAt: null });
    const { exec } = this.start({ ...order, id });
    for (const link of this.links) link.tellStart(exec);
  }

  cancel(id: ExecId): void {
    const row = this.#rowOf(id);
    if (row?.state === "running" || row?.state === "waiting") row.state = "stopped";
    this.end(id, -1, "", "cancelled");
  }

  forget(id: ExecId, keepJournal: boolean): void {
    if (!this.execs.has(id) && !this.journals.has(id)) throw new KeeperRefusal("no_such_exec", "unknown");
    const row = this.#rowOf(id);
    if (row?.state === "waiting" || row?.state === "running")
      throw new KeeperRefusal("exec_running", "the command is about to be started again");
    for (const [first, each] of this.rows) if (each === row) this.rows.delete(first);
    this.execs.delete(id);
    if (!keepJournal) this.journals.delete(id);
  }

  die(): void {
    this.alive = false;
    for (const link of [...this.links]) link.drop("the keeper is gone");
  }

  start(order: ExecOrder): { existed: boolean; exec: KeeperExec } {
    const there = this.execs.get(order.id);
    if (there) {
      if (there.order.digest !== order.digest) throw new KeeperRefusal("exec_conflict", "another command");
      return { existed: true, exec: { ...there.known } };
    }
    if (this.journals.has(order.id)) throw new KeeperRefusal("exec_conflict", "a journal of this id exists");
    if (this.full === "inodes") throw noSpace();
    this.starts += 1;
    const known: KeeperExec = {
      id: order.id,
      state: "running",
      pid: 100 + this.starts,
      exitCode: -1,
      signal: 0,
      failure: "",
      startedAt: Date.now(),
      endedAt: 0,
      journalFloor: 0,
      journalEnd: 0,
      digest: order.digest,
    };
    const exec = { order, known, records: [], stdin: new Uint8Array() };
    this.execs.set(order.id, exec);
    this.journals.set(order.id, exec);
    const [command, , token] = order.argv;
    if (command === "/.holdfast/keeper") queueMicrotask(() => this.end(order.id, 0, `${token}\n`));
    if (command === "exit") queueMicrotask(() => this.end(order.id, Number(order.argv[1]), ""));
    return { existed: false, exec: { ...known } };
  }

  inoAt(path: string): string | null {
    const mount = this.mounts.get(path);
    return mount === undefined ? null : (mount.ino ?? CLOSED);
  }

  stdin(id: ExecId): string {
    return Buffer.from(this.execs.get(id)?.stdin ?? []).toString();
  }

  print(id: ExecId, output: string): void {
    const exec = this.execs.get(id);
    if (exec === undefined || output === "") return;
    if (this.full !== null) exec.known.failure = "journal_full";
    if (exec.known.failure !== "") return;
    const data = Buffer.from(output);
    const cursor = endOf(exec) + data.length;
    exec.records.push({ stream: "stdout", at: Date.now(), cursor, data });
  }

  end(
    id: ExecId,
    exitCode: number,
    output: string,
    state: KeeperExec["state"] = "exited",
    { silently = false } = {},
  ): void {
    const exec = this.execs.get(id);
    if (exec?.known.state !== "running") return;
    this.print(id, output);
    exec.known = { ...exec.known, state, exitCode, endedAt: Date.now(), journalEnd: endOf(exec) };
    const row = this.#rowOf(id);
    if (row !== undefined) this.#follow(row, exec.known);
    if (silently) return;
    for (const link of this.links) link.announceEnd({ ...exec.known });
  }
}

interface FakeCheckpoint {
  sandboxId: SandboxId;
  bootId: string;
  greeted: number;
  execs: Map<ExecId, FakeExec>;
  rows: Map<ExecId, FakeRow>;
  files: Map<string, Uint8Array>;
  /** The sandbox's mounts when its memory was saved. */
  mounts: readonly MountPoint[];
}

/** A saved checkpoint: a copy of everything including journals, unaffected by later changes of the sandbox. */
interface FakeSaved extends FakeCheckpoint {
  kind: StandbyKind;
  journals: Map<ExecId, FakeExec>;
}

/** Copies execs deeply, so that two copies share nothing. */
const copied = (execs: Iterable<[ExecId, FakeExec]>): Map<ExecId, FakeExec> =>
  new Map([...execs].map(([id, exec]) => [id, { ...exec, records: [...exec.records] }]));

const copiedRows = (rows: Iterable<[ExecId, FakeRow]>): Map<ExecId, FakeRow> =>
  new Map([...rows].map(([id, row]) => [id, { ...row }]));

const etc = (name: string): [string, Uint8Array][] => [
  ["/etc/hostname", Buffer.from(`${name}\n`)],
  ["/etc/hosts", Buffer.from(`127.0.0.1 localhost\n127.0.1.1 ${name}\n`)],
];

const pointsOf = ({ mounts }: FakeInstance): MountPoint[] =>
  [...mounts.values()].map(({ ino: _ino, wasMounted: _wasMounted, ...point }) => point);

const endOf = ({ records }: FakeExec): number => records.at(-1)?.cursor ?? 0;

function sliceOf(exec: FakeExec, cursor: number) {
  const records = exec.records.filter((record) => record.cursor > cursor);
  const end = endOf(exec);
  return { records, next: end, floor: 0, end, more: exec.known.state === "running" };
}

class FakeLink implements Link {
  readonly keeper: Link["keeper"];
  readonly #instance: FakeInstance;
  readonly #faults: Faults;
  readonly #over = Promise.withResolvers<string>();
  #listeners: ((exec: KeeperExec) => void)[] = [];
  #startListeners: ((exec: KeeperExec) => void)[] = [];
  #open = true;

  constructor(instance: FakeInstance, faults: Faults) {
    this.#instance = instance;
    this.#faults = faults;
    this.keeper = { version: "fake", bootId: faults.impostor?.() ?? instance.bootId, startedAt: 0 };
    instance.links.add(this);
  }

  get closed(): Promise<string> {
    return this.#over.promise;
  }
  get lastReceivedAt(): number {
    return Date.now();
  }

  drop(why: string): void {
    this.#open = false;
    this.#instance.links.delete(this);
    this.#over.resolve(why);
  }
  close(): void {
    this.drop("closed");
  }
  announceEnd(exec: KeeperExec): void {
    for (const listener of this.#listeners) listener(exec);
  }
  onExecEnd(listener: (exec: KeeperExec) => void): void {
    this.#listeners.push(listener);
  }

  tellStart(exec: KeeperExec): void {
    for (const listener of this.#startListeners) listener(exec);
  }
  onExecStart(listener: (exec: KeeperExec) => void): void {
    this.#startListeners.push(listener);
  }

  #check(): FakeInstance {
    if (!this.#open) throw new LinkLost("the link is closed", "unknown");
    return this.#instance;
  }

  async ping(): Promise<void> {
    this.#check();
  }
  async startExec(order: ExecOrder) {
    this.#check();
    await (order.id.startsWith("proof-") ? this.#faults.prove?.() : this.#faults.start?.());
    const answer = this.#check().start(order);
    if (!order.id.startsWith("proof-")) await this.#faults.startAnswer?.();
    this.#check();
    return answer;
  }
  async superviseExec(order: ExecOrder, policy: SupervisePolicy) {
    await this.#faults.start?.();
    const answer = this.#check().keep(order, policy);
    await this.#faults.startAnswer?.();
    this.#check();
    return answer;
  }
  async listSupervised() {
    return this.#check().kept();
  }
  async readExec(id: ExecId, { cursor }: { cursor: number }) {
    const exec = this.#check().execs.get(id);
    if (!exec) throw new KeeperRefusal("no_such_exec", "unknown");
    await new Promise((resolve) => setImmediate(resolve));
    const slice = sliceOf(exec, cursor);
    this.#instance.onRead?.(id);
    return { ...slice, more: slice.more || endOf(exec) > slice.end };
  }
  async holdExec(id: ExecId, hold: { cursor: number; leaseMs: number }): Promise<boolean> {
    const { holds, canHold } = this.#check();
    holds.push({ id, ...hold });
    // The keeper handles requests in order, so it knows every exec with an earlier start request. This pause lets those
    // starts finish first.
    await new Promise((resolve) => setImmediate(resolve));
    if (!this.#check().execs.has(id)) throw new KeeperRefusal("no_such_exec", "unknown");
    return canHold;
  }
  /** Like the keeper, skips bytes that it already has, and accepts only a few bytes at once. */
  async writeStdin(id: ExecId, { offset, data }: { offset: number; data: Uint8Array }) {
    await new Promise((resolve) => setImmediate(resolve));
    const exec = this.#check().execs.get(id);
    if (!exec) throw new KeeperRefusal("no_such_exec", "unknown");
    if (offset > exec.stdin.length) throw new KeeperRefusal("bad_cursor", "a gap");
    const news = data.subarray(exec.stdin.length - offset).subarray(0, 3);
    exec.stdin = Buffer.concat([exec.stdin, news]);
    this.#check();
    return { accepted: exec.stdin.length };
  }
  async signalExec(): Promise<void> {
    this.#check();
  }
  async cancelExec(id: ExecId): Promise<void> {
    this.#check().cancel(id);
  }
  async listExecs() {
    return [...this.#check().execs.values()].map(({ known }) => ({ ...known }));
  }
  async forgetExec(id: ExecId, { keepJournal }: { keepJournal: boolean }): Promise<void> {
    this.#check().forget(id, keepJournal);
  }
  async resizeExec(): Promise<void> {
    this.#check();
  }
  async setDeadline(remainingMs: number | null): Promise<void> {
    this.#check().deadlineMs = remainingMs;
  }
  async probe() {
    this.#check();
    return { root: { dev: "1", ino: "2" }, livedMs: 1, processes: 1 };
  }
  async processes() {
    this.#check();
    return [];
  }

  readonly files: FileAccess = fakeFiles(() => this.#check());
}

/** Size of every saved checkpoint. */
export const SAVED_BYTES = 1_000;

/** A driver for instances in memory. It works until a fault is injected. */
export class HostileDriver
  implements Driver, Freezer, MemoryStandby, Checkpoints, PortDialing, OutsideView, OfflineFiles
{
  readonly name = "hostile";
  hostBootId = "boot";
  keeperVersion = "fake";
  diskFreeBytes = 1 << 30;
  memoryFreeBytes = 1 << 30;
  readonly instances = new Map<SandboxId, FakeInstance>();
  /** Directories of sandboxes, which outlive the processes. */
  readonly directories = new Set<SandboxId>();
  readonly journalFiles = new Map<SandboxId, Map<ExecId, FakeExec>>();
  readonly archivedJournals = new Set<SandboxId>();
  readonly drives = new HostileDrives();
  faults: Faults = {};
  launches = 0;
  #pids = 10;

  async capacity() {
    await this.faults.capacity?.();
    const gigabyte = 1 << 30;
    return {
      cpus: 2,
      memoryTotalBytes: gigabyte,
      memoryFreeBytes: this.memoryFreeBytes,
      diskTotalBytes: gigabyte,
      diskFreeBytes: this.diskFreeBytes,
    };
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    this.launches += 1;
    if (!order.restart && this.directories.has(order.sandboxId))
      throw new Error("files of an earlier instance are there");
    this.directories.add(order.sandboxId);
    await this.faults.launch?.(order, signal);
    if (order.restart && !this.directories.has(order.sandboxId)) throw new Error("its files are gone");
    this.#pids += 1;
    const instance = order.fork === undefined ? this.#fresh(order) : this.#forked(order, order.fork);
    this.#settle(order.sandboxId, instance);
    await this.faults.launchAnswer?.();
    return this.#reference(order.sandboxId, instance);
  }

  #fresh({ sandboxId, generation, name, restart }: LaunchOrder): FakeInstance {
    const journals = this.journalFiles.get(sandboxId) ?? new Map<ExecId, FakeExec>();
    this.journalFiles.set(sandboxId, journals);
    const instance = new FakeInstance(generation, this.#pids, journals);
    const files = restart ? this.instances.get(sandboxId)?.files : undefined;
    instance.files = files ?? new Map(etc(name));
    return instance;
  }

  #forked(
    { sandboxId, generation, mounts }: LaunchOrder,
    { id, kind, generation: from }: ForkSource,
  ): FakeInstance {
    const kept = this.saved.get(id);
    if (kept === undefined) throw new CheckpointUnusable("checkpoint_missing", "there is no such checkpoint");
    if (kept.kind !== kind) throw new Error("the checkpoint is of another kind");
    if (generation <= from) throw new Error("a fork counts on from what it was forked from");
    const journals = copied(kept.journals);
    this.journalFiles.set(sandboxId, journals);
    const hasMemory = kind === "memory";
    const bootId = hasMemory ? kept.bootId : String(this.#pids);
    const instance = new FakeInstance(generation, this.#pids, journals, bootId);
    instance.files = new Map(kept.files);
    if (!hasMemory) return instance;
    instance.greeted = kept.greeted;
    instance.execs = copied(kept.execs);
    instance.rows = copiedRows(kept.rows);
    // Leaves out mounts of the checkpoint at whose paths the restored sandbox has no mount: there, its own disk is
    // visible.
    const own = kept.mounts.filter(({ path }) => mounts?.some((each) => each.path === path));
    this.#remount(instance, own, mounts);
    for (const key of journals.keys()) {
      const exec = instance.execs.get(key);
      if (exec !== undefined) journals.set(key, exec);
    }
    return instance;
  }

  #reference(sandboxId: SandboxId, { generation, pid }: FakeInstance): Instance {
    return {
      sandboxId,
      generation,
      identity: this.#identityOf(pid),
      keeperVersion: "fake",
    };
  }

  #identityOf(pid: number): InstanceIdentity {
    return { pid, boot: this.hostBootId } as unknown as InstanceIdentity;
  }

  isOfThisBoot(identity: InstanceIdentity): boolean {
    return identity.boot === this.hostBootId;
  }

  describe({ pid }: InstanceIdentity): { pid: number } {
    return { pid: Number(pid) };
  }

  async recover(instance: Instance): Promise<Instance | null> {
    await this.faults.recover?.(instance.sandboxId);
    const there = this.instances.get(instance.sandboxId);
    return there?.alive ? this.#reference(instance.sandboxId, there) : null;
  }

  async connect(instance: Instance): Promise<Link> {
    await this.faults.connect?.();
    const there = this.instances.get(instance.sandboxId);
    if (!there?.alive || this.frozen.has(instance.sandboxId)) throw new Error("nobody listens");
    if (instance.generation < there.greeted)
      throw new KeeperRefusal("stale_generation", "a later generation was greeted");
    there.greeted = instance.generation;
    return new FakeLink(there, this.faults);
  }

  /** Ports with an echo server. Nothing listens on other ports. */
  readonly echoes = new Set<number>();

  async dial(instance: Instance, port: number, signal: AbortSignal): Promise<PortStream> {
    await this.faults.dial?.();
    signal.throwIfAborted();
    const there = this.instances.get(instance.sandboxId);
    if (!there?.alive || this.frozen.has(instance.sandboxId)) throw new LinkLost("nobody listens", "no");
    if (!this.echoes.has(port)) throw new KeeperRefusal("system", "Connection refused", "ECONNREFUSED");
    return { bootId: this.faults.impostor?.() ?? there.bootId, bytes: new PassThrough({ signal }) };
  }

  async observe(ids: readonly SandboxId[]): Promise<Map<SandboxId, Observation>> {
    return new Map(ids.map((id) => [id, this.faults.observe?.() ?? this.#see(id)]));
  }

  #see(id: SandboxId): Observation {
    const there = this.instances.get(id);
    if (!there?.alive) return { seen: "absent", at: Date.now(), leftovers: [] };
    const isFrozen = this.frozen.has(id);
    const problems = [
      ...(this.filesRemoved.has(id) ? [{ code: "files_gone", message: "the files were removed" }] : []),
      ...(isFrozen ? [{ code: "frozen", message: "all processes are frozen" }] : []),
      ...(there.root ? [] : [{ code: "root_unmounted", message: "the root is not mounted" }]),
    ];
    const root = there.root ? { dev: "1", ino: "2" } : null;
    const { pid } = there;
    const mounted = [...there.mounts.values()].filter(({ wasMounted }) => wasMounted);
    const mounts = mounted.map((mount) => this.#seeMount(mount));
    const state = isFrozen ? "frozen" : "running";
    const own = { identity: this.#identityOf(pid), state, root, oomKills: 0 } as const;
    return { seen: "present", at: Date.now(), ...own, mounts, problems };
  }

  #seeMount({ ino, wasMounted: _wasMounted, ...point }: FakeMount): MountSeen {
    const outside = this.drives.identity(point.driveId, point.subpath);
    const gone = { code: "drive_gone", message: `the drive of ${point.path} is not there` };
    if (outside === null) return { ...point, outside, problem: gone };
    const off = { code: "mount_gone", message: `nothing is mounted at ${point.path}` };
    return { ...point, outside, problem: ino === outside.ino ? null : off };
  }

  async mount(order: MountOrder, signal: AbortSignal): Promise<void> {
    const there = this.instances.get(order.sandboxId);
    if (!there?.alive) throw new Error("there is no instance to mount into");
    const { sandboxId: _sandboxId, ...point } = order;
    // As in a real driver, an empty directory is created first, and the drive is mounted over it.
    if (!there.mounts.has(order.path))
      there.mounts.set(order.path, { ...point, ino: null, wasMounted: false });
    await this.faults.mount?.(order, signal);
    const ino = this.#inoOf(point);
    if (ino === null) throw new MountRefused("drive_gone", "the drive is not there");
    there.mounts.set(order.path, { ...point, ino, wasMounted: true });
    await this.faults.mountAnswer?.();
  }

  async unmount(
    id: SandboxId,
    path: string,
    options: { keepClosed: boolean },
    signal: AbortSignal,
  ): Promise<void> {
    await this.faults.unmount?.(path, options, signal);
    const mounts = this.instances.get(id)?.mounts;
    const mount = mounts?.get(path);
    if (mount === undefined) return;
    if (options.keepClosed) mount.ino = null;
    else mounts?.delete(path);
  }

  #inoOf = ({ driveId, subpath }: MountPoint): string | null =>
    this.drives.identity(driveId, subpath)?.ino ?? null;

  /**
   * Makes the mounts that the checkpoint had. At paths that `named` contains, the drive is mounted if it exists; at all
   * other paths, an empty directory.
   */
  #remount(instance: FakeInstance, had: readonly MountPoint[], named: readonly MountPoint[] = []): void {
    for (const { path, ...rest } of had) {
      const point = { ...rest, ...named.find((each) => each.path === path), path };
      const isNamed = named.some((each) => each.path === path);
      instance.mounts.set(path, { ...point, ino: isNamed ? this.#inoOf(point) : null, wasMounted: isNamed });
    }
  }

  async list(): Promise<Found[]> {
    const ids = new Set([...this.directories, ...this.instances.keys()]);
    return [...ids].map((sandboxId) => ({
      sandboxId,
      things: ["directory"],
      alive: this.instances.get(sandboxId)?.alive ?? false,
    }));
  }

  readonly frozen = new Set<SandboxId>();
  readonly writes = new Map<SandboxId, number>();

  /** What standby preserves. Tests set this. */
  standby: StandbySupport = { kind: "memory", why: null };
  get support(): StandbySupport {
    return this.standby;
  }

  readonly checkpoints = new Map<CheckpointId, FakeCheckpoint>();
  readonly saved = new Map<CheckpointId, FakeSaved>();
  readonly halfSaved = new Map<CheckpointId, SandboxId>();
  restores = 0;
  saves = 0;

  async freeze(id: SandboxId): Promise<void> {
    await this.faults.freeze?.(id);
    this.frozen.add(id);
  }
  async memoryBytes(): Promise<number> {
    return 1;
  }

  async checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint> {
    const { sandboxId, generation, id } = order;
    const there = this.instances.get(sandboxId);
    if (!there?.alive || !this.frozen.has(sandboxId)) throw new Error("it is not frozen");
    if (there.links.size > 0) throw new Error("a link is open");
    await this.faults.checkpoint?.(order, signal);
    const execs = new Map([...there.execs].map(([key, exec]) => [key, { ...exec }]));
    const { bootId, greeted, files } = there;
    const mounts = pointsOf(there);
    const rows = copiedRows(there.rows);
    this.checkpoints.set(id, { sandboxId, bootId, greeted, execs, rows, files, mounts });
    return { id, takenAt: Date.now(), generation, sizeBytes: 1 };
  }

  async restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance> {
    const { sandboxId, generation, checkpoint } = order;
    if (this.instances.get(sandboxId)?.alive) throw new Error("invariant broken: it has an instance");
    this.restores += 1;
    await this.faults.restore?.(order, signal);
    const kept = this.checkpoints.get(checkpoint.id);
    if (kept === undefined) throw new CheckpointUnusable("checkpoint_missing", "there is no such checkpoint");
    this.#pids += 1;
    const journals = this.journalFiles.get(sandboxId) ?? new Map<ExecId, FakeExec>();
    const instance = new FakeInstance(generation, this.#pids, journals, kept.bootId);
    instance.execs = new Map([...kept.execs].map(([key, exec]) => [key, { ...exec }]));
    for (const [key, exec] of instance.execs) journals.set(key, exec);
    instance.rows = copiedRows(kept.rows);
    instance.files = kept.files;
    instance.greeted = kept.greeted;
    this.#remount(instance, kept.mounts, order.mounts);
    this.frozen.add(sandboxId);
    this.#settle(sandboxId, instance);
    await this.faults.restoreAnswer?.();
    return this.#reference(sandboxId, instance);
  }

  async discard(sandboxId: SandboxId, keep: CheckpointId | null): Promise<void> {
    await this.faults.discard?.(sandboxId);
    for (const [id, { sandboxId: owner }] of this.checkpoints)
      if (owner === sandboxId && id !== keep) this.checkpoints.delete(id);
  }

  async save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }> {
    const { sandboxId, id, kind, maxBytes } = order;
    const there = this.instances.get(sandboxId);
    if (!there?.alive || !this.frozen.has(sandboxId)) throw new Error("it is not frozen");
    if (there.links.size > 0) throw new Error("a link is open");
    this.saves += 1;
    const { bootId, greeted } = there;
    const execs = copied(kind === "memory" ? there.execs : []);
    const rows = copiedRows(kind === "memory" ? there.rows : []);
    const journals = copied([...there.journals].filter(([key]) => order.journals.includes(key)));
    const files = new Map(there.files);
    const mounts = pointsOf(there);
    // A save that fails from here on leaves a partial copy.
    this.halfSaved.set(id, sandboxId);
    await this.faults.save?.(order, signal);
    if (SAVED_BYTES > maxBytes) throw new Error("no space left on device");
    this.halfSaved.delete(id);
    this.saved.set(id, { sandboxId, kind, bootId, greeted, execs, rows, journals, files, mounts });
    await this.faults.saveAnswer?.();
    return { sizeBytes: SAVED_BYTES, memoryBytes: kind === "memory" ? 1 : 0 };
  }

  async unsave(sandboxId: SandboxId, keep: readonly CheckpointId[]): Promise<void> {
    await this.faults.unsave?.();
    this.#removeSaved(sandboxId, keep);
  }

  #removeSaved(sandboxId: SandboxId, keep: readonly CheckpointId[]): void {
    for (const [id, { sandboxId: owner }] of this.saved)
      if (owner === sandboxId && !keep.includes(id)) this.saved.delete(id);
    for (const [id, owner] of this.halfSaved) if (owner === sandboxId) this.halfSaved.delete(id);
  }

  async files(id: SandboxId) {
    await this.faults.files?.();
    const disk = { full: null, files: this.instances.get(id)?.files ?? new Map<string, Uint8Array>() };
    const files = fakeFiles(() => disk);
    const onDisk: FileAccess["read"] = async (path, range, signal) => {
      if (path.startsWith("/proc/")) throw new KeeperRefusal("not_on_disk", "only while it is awake");
      return files.read(path, range, signal);
    };
    return { files: { ...files, read: onDisk }, close: async () => undefined };
  }

  /** Sandboxes whose files a person removed from the host. */
  readonly filesRemoved = new Set<SandboxId>();

  async missing(ids: readonly SandboxId[]) {
    return new Map(
      ids.map((id) => [id, this.filesRemoved.has(id) ? "the directory of its files is missing" : null]),
    );
  }

  async thaw(id: SandboxId): Promise<void> {
    await this.faults.thaw?.(id);
    this.frozen.delete(id);
    this.instances.get(id)?.runDueRestarts();
  }

  /** Adds the instance. Its due restarts begin at once, unless the instance is frozen. */
  #settle(id: SandboxId, instance: FakeInstance): void {
    instance.isFrozen = () => this.frozen.has(id);
    this.instances.set(id, instance);
    instance.runDueRestarts();
  }
  /** The usage that the next measurements report. */
  readonly usages = new Map<SandboxId, Partial<Usage>>();
  readonly looks = new Map<SandboxId, () => ProcessSeen[]>();

  async measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>> {
    await this.faults.measure?.(signal);
    const living = ids.filter((id) => this.instances.get(id)?.alive);
    return new Map(living.map((id) => [id, { ...NO_USAGE, at: Date.now(), ...this.usages.get(id) }]));
  }

  async inspect(id: SandboxId, signal: AbortSignal): Promise<ProcessSnapshot> {
    await this.faults.inspect?.(signal);
    return { at: Date.now(), processes: this.looks.get(id)?.() ?? [], truncated: false };
  }

  async remount(id: SandboxId, signal: AbortSignal): Promise<void> {
    await this.faults.remount?.(signal);
    const there = this.instances.get(id);
    if (!there?.alive) throw new Error("there is no instance to remount");
    there.root = true;
  }

  async written(ids: readonly SandboxId[]): Promise<Map<SandboxId, number>> {
    return new Map(ids.map((id) => [id, (this.writes.get(id) ?? 0) * Date.now()]));
  }

  async stop(id: SandboxId): Promise<Observation> {
    await this.faults.stop?.();
    this.instances.get(id)?.die();
    this.frozen.delete(id);
    return this.#see(id);
  }

  async destroy(id: SandboxId): Promise<void> {
    await this.faults.destroy?.();
    this.instances.delete(id);
    this.directories.delete(id);
    this.#removeSaved(id, []);
    if (!this.archivedJournals.has(id)) this.journalFiles.delete(id);
  }

  readonly journals: JournalsAfterDeath = {
    read: async (sandboxId, id, { cursor }) => {
      const exec = this.journalFiles.get(sandboxId)?.get(id);
      return exec ? { ...sliceOf(exec, cursor), more: false } : null;
    },
    end: async (sandboxId, id) => {
      const exec = this.journalFiles.get(sandboxId)?.get(id);
      if (exec === undefined) return null;
      return { exec: exec.known.state === "running" ? null : exec.known, end: endOf(exec) };
    },
    archive: async (sandboxId) => {
      this.archivedJournals.add(sandboxId);
    },
    remove: async (sandboxId, ids) => {
      for (const id of ids) this.journalFiles.get(sandboxId)?.delete(id);
    },
    archived: async () => [...this.archivedJournals],
    drop: async (sandboxId) => {
      this.archivedJournals.delete(sandboxId);
      this.journalFiles.delete(sandboxId);
    },
  };

  /** All capabilities; a test sets those that its driver should lack to null. */
  capabilities: DriverCapabilities = {
    freezer: this,
    standby: this,
    checkpoints: this,
    drives: {
      directories: this.drives,
      mount: (...given) => this.mount(...given),
      unmount: (...given) => this.unmount(...given),
    },
    ports: this,
    journals: this.journals,
    outsideView: this,
    offlineFiles: this,
    images: oneImage,
  };

  async close(): Promise<void> {}
}

const oneImage: ImageStore = {
  list: async () => [host],
  get: async (name) => (name === host.name ? host : null),
  import: async () => host,
  remove: async () => undefined,
};
const host: Image = {
  name: "host",
  kind: "host",
  fingerprint: "f",
  createdAt: new Date(0).toISOString(),
  sizeBytes: 0,
  files: 0,
};

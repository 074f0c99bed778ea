import { type CheckpointId, HoldfastError, type Numbers, type SandboxId } from "@holdfast/contract";
import {
  type Capacity,
  type Checkpoint,
  type CheckpointOrder,
  type Checkpoints,
  type Driver,
  type DriverCapabilities,
  type FileAccess,
  type ForkSource,
  type Found,
  type Freezer,
  type Instance,
  type InstanceIdentity,
  KeeperRefusal,
  type LaunchOrder,
  type Link,
  LinkLost,
  type MemoryStandby,
  type MountOrder,
  type Observation,
  type OfflineFiles,
  type OutsideView,
  type PortDialing,
  type PortStream,
  type ProcessSnapshot,
  type RestoreOrder,
  type SaveOrder,
  type StandbySupport,
  sameIdentity,
  type Usage,
} from "@holdfast/engine";
import type { Armed, Point } from "../schedule/armed-faults.ts";
import { dump, lasts, MEMORY_BYTES, restore } from "./checkpoints.ts";
import { drivesOf } from "./drives.ts";
import { filesOf } from "./files.ts";
import type { Directory, Helper, Host, SimulatedInstance } from "./host.ts";
import { hostImage } from "./host-image.ts";
import { journalsOf } from "./journals.ts";
import { SimulatedLink } from "./link.ts";
import { mount, unmount } from "./mounts.ts";
import { never, type Process } from "./process.ts";
import { layOut, save, usableCopy } from "./saved-checkpoints.ts";

/** Maximum time to wait for the end of an earlier server's helper processes. */
const HELPERS_MS = 3_000;
/** Interval at which the driver checks whether an earlier server's helper processes have ended. */
const HELPERS_LOOK_MS = 500;

/** A launch in progress. */
interface Building {
  directory: Directory;
  fault: Armed | null;
  throwIfKilled(): void;
  signal: AbortSignal;
}

/**
 * The driver of one server on the shared host. It keeps the few promises of a driver: it reports absence only when it
 * observed absence, a stop also ends launches in progress, and a destroy is refused while a process lives. Everything
 * else can fail, hang, or succeed but be reported as failed. Effects in progress continue when the server dies.
 */
export class SimulatedDriver
  implements Driver, Freezer, MemoryStandby, Checkpoints, PortDialing, OutsideView, OfflineFiles
{
  readonly name = "simulated";
  readonly keeperVersion = "simulated";
  readonly capabilities: DriverCapabilities;
  readonly #host: Host;
  readonly #process: Process;
  readonly #numbers: Numbers;

  constructor(host: Host, process: Process, numbers: Numbers) {
    this.#host = host;
    this.#process = process;
    this.#numbers = numbers;
    this.capabilities = {
      freezer: this,
      standby: this,
      checkpoints: this,
      drives: {
        directories: drivesOf(host, process),
        mount: (...given) => this.mount(...given),
        unmount: (...given) => this.unmount(...given),
      },
      ports: this,
      journals: journalsOf(host, process),
      outsideView: this,
      offlineFiles: this,
      images: hostImage,
    };
  }

  isOfThisBoot(identity: InstanceIdentity): boolean {
    return identity.hostBootId === this.#host.bootId;
  }

  describe({ pid }: InstanceIdentity): { pid: number } {
    return { pid: Number(pid) };
  }

  /**
   * Makes one call of the driver: waits for the host's latency, then calls `act`. `act` gets the fault that is armed
   * for this operation, or null. If the server is dead, or dies before the call is answered, the returned promise never
   * settles.
   */
  #verb<Answer>(
    point: Point,
    signal: AbortSignal,
    act: (fault: Armed | null) => Promise<Answer>,
  ): Promise<Answer> {
    if (!this.#process.mayCall()) return never();
    return this.#process.delivers(
      (async () => {
        signal.throwIfAborted();
        const fault = this.#host.faults.take(point);
        await this.#pause(this.#host.latency(), signal);
        return this.#process.alive ? await act(fault) : await never();
      })(),
    );
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (ms > 0) await this.#host.time.pause(ms, signal);
  }

  /** Hangs until the caller aborts. */
  #hang(signal: AbortSignal): Promise<never> {
    return new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }

  capacity(signal: AbortSignal): Promise<Capacity> {
    return this.#verb("capacity", signal, async (fault) => {
      if (fault?.kind === "capacity-unknown") throw new Error("the host can't be measured");
      if (fault?.kind === "capacity-hangs") return this.#hang(signal);
      return this.#host.capacity();
    });
  }

  launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    return this.#verb("launch", signal, async (fault) => {
      if (fault?.kind === "launch-refused") throw new HoldfastError("launch_failed");
      const helper: Helper = { sandboxId: order.sandboxId, killed: false };
      this.#host.helpers.add(helper);
      const abort = () => {
        helper.killed = true;
      };
      signal.addEventListener("abort", abort, { once: true });
      try {
        const isFork = order.fork !== undefined;
        return await this.#build(
          order,
          helper,
          fault ?? (isFork ? this.#host.faults.take("fork") : null),
          signal,
        );
      } finally {
        this.#host.helpers.delete(helper);
        signal.removeEventListener("abort", abort);
      }
    });
  }

  /**
   * Launches an instance. The launch is a process of its own, so it continues when its server dies and ends only when
   * it is killed.
   */
  async #build(
    order: LaunchOrder,
    helper: Helper,
    fault: Armed | null,
    signal: AbortSignal,
  ): Promise<Instance> {
    const host = this.#host;
    const throwIfKilled = () => {
      if (helper.killed) throw signal.reason ?? new Error("the launch was killed");
    };
    if (host.diskIsFull) throw new HoldfastError("disk_full");
    if (!order.restart && host.directories.has(order.sandboxId))
      host.report({ type: "begun-on-files", sandboxId: order.sandboxId });
    const directory = this.#process.effect("makes a directory", () => host.directory(order.sandboxId));
    await host.time.pause(fault?.kind === "launch-slow" ? fault.ms : host.latency());
    throwIfKilled();
    if (fault?.kind === "launch-half") throw new HoldfastError("launch_failed");
    const instance =
      order.fork === undefined
        ? this.#process.effect("starts an instance", () => host.spawn(order))
        : await this.#fork(order, order.fork, { directory, fault, throwIfKilled, signal });
    if (fault?.kind === "launch-stillborn") host.kill(instance, "the keeper ended at once");
    await host.time.pause(host.latency());
    if (fault?.kind === "launch-answer-lost" || fault?.kind === "fork-answer-lost")
      throw new Error("the runtime's answer was lost");
    if (fault?.kind === "launch-hangs" || fault?.kind === "fork-hangs") return this.#hang(signal);
    throwIfKilled();
    return host.reference(instance);
  }

  /** Starts a fork from a copy of a saved checkpoint. The checkpoint may be removed while the fork starts. */
  async #fork(
    order: LaunchOrder,
    source: ForkSource,
    { directory, fault, throwIfKilled, signal }: Building,
  ): Promise<SimulatedInstance> {
    const host = this.#host;
    const stored = usableCopy(host, source);
    await lasts(host, fault?.kind === "fork-slow" ? fault.ms : host.latency(), throwIfKilled);
    if (fault?.kind === "fork-hangs" && fault.flag) return this.#hang(signal);
    if (usableCopy(host, source) !== stored) throw new Error("the checkpoint was exchanged");
    const memory = this.#process.effect("copies a checkpoint", () => layOut(directory, stored));
    if (fault?.kind === "fork-fails") throw new Error("the copy can't be used");
    await lasts(host, host.latency(), throwIfKilled);
    const instance = this.#process.effect("forks", () =>
      memory === null ? host.spawn(order) : host.fork(order, memory, stored),
    );
    if (fault?.kind === "fork-hollow") instance.keeper.lose();
    return instance;
  }

  recover(instance: Instance, signal: AbortSignal): Promise<Instance | null> {
    return this.#verb("recover", signal, async (fault) => {
      if (fault?.kind === "recover-fails") throw new Error("the instance could not be looked at");
      if (fault?.kind === "recover-hangs") return this.#hang(signal);
      await this.#endHelpers(instance.sandboxId, signal);
      return this.#same(instance) === null ? null : instance;
    });
  }

  /** Waits for the end of an earlier server's helper processes, then kills those that are left. */
  async #endHelpers(id: SandboxId, signal: AbortSignal): Promise<void> {
    for (let waited = 0; this.#helpers(id).length > 0 && waited < HELPERS_MS; waited += HELPERS_LOOK_MS)
      await this.#pause(HELPERS_LOOK_MS, signal);
    const helpers = this.#helpers(id);
    if (helpers.length === 0) return;
    this.#process.effect("ends helpers", () => this.#killHelpers(id));
    await this.#pause(HELPERS_LOOK_MS, signal);
  }

  /**
   * Returns the running instance if it is the given one. The pid must match, and the start time and boot id too,
   * because the host may reuse a pid.
   */
  #same({ sandboxId, identity }: Instance): SimulatedInstance | null {
    const there = this.#host.instanceOf(sandboxId);
    return there !== null && sameIdentity(this.#host.reference(there).identity, identity) ? there : null;
  }

  connect(instance: Instance, signal: AbortSignal): Promise<Link> {
    return this.#verb("connect", signal, async (fault) => {
      if (fault?.kind === "connect-refused") throw new Error("connection refused");
      if (fault?.kind === "connect-hangs") return this.#hang(signal);
      const there = this.#host.instanceOf(instance.sandboxId);
      if (there === null) throw new Error("no process listens");
      if (there.keeper.isStopped) return this.#hang(signal);
      if (instance.generation < there.greeted)
        throw new KeeperRefusal("stale_generation", "a later generation was greeted");
      there.greeted = instance.generation;
      // Another program can take the keeper's place only if a caller's command has run in the instance.
      const isImpostor = fault?.kind === "connect-impostor" && there.hasRun;
      const bootId = isImpostor ? "impostor" : there.keeper.bootId;
      return new SimulatedLink(this.#host, there, {
        server: this.#process,
        liveness: this.#numbers,
        bootId,
      });
    });
  }

  /** Refuses every connection to a port, because no simulated command listens on one. */
  async dial(instance: Instance, _port: number, signal: AbortSignal): Promise<PortStream> {
    signal.throwIfAborted();
    if (!this.#process.mayCall()) return never();
    const there = this.#host.instanceOf(instance.sandboxId);
    if (there === null) throw new LinkLost("no process listens", "no");
    if (there.keeper.isStopped) return this.#hang(signal);
    throw new KeeperRefusal("system", "Connection refused", "ECONNREFUSED");
  }

  observe(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Observation>> {
    return this.#verb("observe", signal, async (fault) => {
      if (fault?.kind === "observe-fails") throw new Error("the mount table could not be read");
      if (fault?.kind === "observe-hangs") return this.#hang(signal);
      const seen = new Map(ids.map((id) => [id, this.#host.see(id)] as const));
      if (fault?.kind === "observe-late") await this.#pause(fault.ms, signal);
      if (fault?.kind !== "observe-unknown") return seen;
      const unknown: Observation = { seen: "unknown", at: this.#host.time.now(), why: "EIO" };
      return new Map(ids.map((id) => [id, unknown]));
    });
  }

  list(signal: AbortSignal): Promise<Found[]> {
    return this.#verb("list", signal, async (fault) => {
      if (fault?.kind === "list-fails") throw new Error("the cgroups could not be read");
      const found = new Map<SandboxId, string[]>();
      const note = (id: SandboxId, ...things: string[]) =>
        found.set(id, [...(found.get(id) ?? []), ...things]);
      for (const { sandboxId } of this.#host.helpers) note(sandboxId, "helper process");
      for (const { sandboxId, pid } of this.#host.instances) note(sandboxId, `process ${pid}`);
      for (const [id, { things }] of this.#host.directories) note(id, ...things);
      const living = [...this.#host.helpers, ...this.#host.instances].map(({ sandboxId }) => sandboxId);
      const alive = new Set(living);
      return [...found].map(([sandboxId, things]) => ({ sandboxId, things, alive: alive.has(sandboxId) }));
    });
  }

  measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>> {
    return this.#verb("measure", signal, async (fault) => {
      if (fault?.kind === "measure-hangs") return this.#hang(signal);
      if (fault !== null) throw new Error("the cgroups could not be read");
      const living = ids.flatMap((id) => this.#host.instanceOf(id) ?? []);
      return new Map(living.map((instance) => [instance.sandboxId, this.#host.usageOf(instance)]));
    });
  }

  inspect(id: SandboxId, signal: AbortSignal): Promise<ProcessSnapshot> {
    return this.#verb("measure", signal, async (fault) => {
      if (fault?.kind === "measure-hangs") return this.#hang(signal);
      if (fault !== null || this.#host.instanceOf(id) === null)
        throw new Error("there is nothing to look at");
      return { at: this.#host.time.now(), processes: [], truncated: false };
    });
  }

  remount(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#verb("remount", signal, async (fault) => {
      if (fault?.flag) return this.#hang(signal);
      const instance = this.#host.instanceOf(id);
      if (instance === null || instance.isRootLost || fault !== null)
        throw new Error("the root could not be mounted again");
      this.#process.effect("puts the root back", () => this.#host.mountAgain(instance));
    });
  }

  written(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>> {
    return this.#verb("freeze", signal, async (fault) => {
      if (fault?.kind === "freeze-fails") throw new Error("the cgroup could not be read");
      const all = ids.map((id) => [id, this.#host.instanceOf(id)] as const);
      return new Map(all.map(([id, one]) => [id, one === null ? 0 : this.#host.writtenBy(one)]));
    });
  }

  freeze(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#freezer("freeze", id, signal, (instance) => this.#host.hold(instance, "frozen"));
  }

  thaw(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#freezer("thaw", id, signal, (instance) => {
      this.#host.release(instance, "frozen");
      this.#host.release(instance, "stopped");
    });
  }

  #freezer(
    what: "freeze" | "thaw",
    id: SandboxId,
    signal: AbortSignal,
    act: (instance: SimulatedInstance) => void,
  ): Promise<void> {
    return this.#verb(what, signal, async (fault) => {
      const instance = this.#host.instanceOf(id);
      if (instance !== null && !(fault?.flag ?? false)) this.#process.effect(`${what}s`, () => act(instance));
      if (fault?.kind === "freeze-hangs" || fault?.kind === "thaw-hangs") return this.#hang(signal);
      if (fault !== null) throw new Error("the freezer did not answer");
      if (instance === null) throw new Error("there is nothing to freeze or thaw");
    });
  }

  get support(): StandbySupport {
    return this.#host.standby;
  }

  memoryBytes(id: SandboxId, signal: AbortSignal): Promise<number> {
    return this.#verb("capacity", signal, async (fault) => {
      if (fault?.kind === "capacity-unknown") throw new Error("its memory can't be measured");
      if (fault?.kind === "capacity-hangs") return this.#hang(signal);
      return this.#host.instanceOf(id) === null ? 0 : MEMORY_BYTES;
    });
  }

  checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint> {
    const parts = { host: this.#host, process: this.#process, signal };
    return this.#verb("checkpoint", signal, (fault) => dump(parts, order, fault));
  }

  restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance> {
    const parts = { host: this.#host, process: this.#process, signal };
    return this.#verb("restore", signal, (fault) => restore(parts, order, fault));
  }

  discard(id: SandboxId, keep: CheckpointId | null, signal: AbortSignal): Promise<void> {
    return this.#verb("discard", signal, async (fault) => {
      const checkpoints = this.#host.directories.get(id)?.checkpoints;
      const isDone = fault === null || fault.flag;
      if (isDone && checkpoints !== undefined)
        this.#process.effect("discards", () => {
          for (const other of [...checkpoints.keys()]) if (other !== keep) checkpoints.delete(other);
        });
      if (fault !== null) throw new Error("a checkpoint could not be removed");
    });
  }

  save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }> {
    const parts = { host: this.#host, process: this.#process, signal };
    return this.#verb("save", signal, (fault) => save(parts, order, fault));
  }

  unsave(id: SandboxId, keep: readonly CheckpointId[], signal: AbortSignal): Promise<void> {
    return this.#verb("unsave", signal, async (fault) => {
      const saved = this.#host.directories.get(id)?.saved;
      const isDone = fault === null || fault.flag;
      if (isDone && saved !== undefined)
        this.#process.effect("unsaves", () => {
          for (const other of [...saved.keys()]) if (!keep.includes(other)) saved.delete(other);
        });
      if (fault?.kind === "unsave-hangs") return this.#hang(signal);
      if (fault !== null) throw new Error("a checkpoint could not be removed");
    });
  }

  /**
   * Returns null for every sandbox: no files are missing, because no fault on the simulated host removes the files of a
   * sandbox.
   */
  async missing(ids: readonly SandboxId[]): Promise<Map<SandboxId, string | null>> {
    return new Map(ids.map((id) => [id, null]));
  }

  files(id: SandboxId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }> {
    return this.#verb("files", signal, async (fault) => {
      if (fault !== null) throw new Error("the disk of the sandbox could not be opened");
      const ask: Parameters<typeof filesOf>[0] = async (work, inner) => {
        inner.throwIfAborted();
        return this.#process.mayCall() ? this.#process.delivers((async () => work())()) : never();
      };
      const files = filesOf(ask, this.#host, { sandboxId: id }, null);
      const read: FileAccess["read"] = async (path, range, inner) => {
        if (path.startsWith("/proc/")) throw new KeeperRefusal("not_on_disk", "it is not on the disk");
        return files.read(path, range, inner);
      };
      return { files: { ...files, read }, close: async () => undefined };
    });
  }

  mount(order: MountOrder, signal: AbortSignal): Promise<void> {
    const parts = { host: this.#host, process: this.#process, signal };
    return this.#verb("mount", signal, (fault) => mount(parts, order, fault));
  }

  unmount(
    id: SandboxId,
    path: string,
    { keepClosed }: { keepClosed: boolean },
    signal: AbortSignal,
  ): Promise<void> {
    const parts = { host: this.#host, process: this.#process, signal };
    return this.#verb("unmount", signal, (fault) => unmount(parts, { id, path, keepClosed }, fault));
  }

  stop(id: SandboxId, _options: { graceMs: number }, signal: AbortSignal): Promise<Observation> {
    return this.#verb("stop", signal, async (struck) => {
      const fault = struck ?? this.#sleeperSurvives(id);
      const spares = fault !== null && fault.kind !== "stop-slow" && fault.flag;
      if (fault?.kind === "stop-slow") await this.#pause(fault.ms, signal);
      if (!spares && fault?.kind !== "stop-does-nothing" && fault?.kind !== "stop-asleep-does-nothing")
        this.#kill(id);
      if (fault?.kind === "stop-fails") throw new Error("the porter ended at once");
      if (fault?.kind === "stop-hangs") return this.#hang(signal);
      // A launch in progress may still create processes that an observation does not show, so the result is not
      // certain.
      const isUnclear = fault?.kind === "stop-unknown" || this.#helpers(id).length > 0;
      if (isUnclear) return { seen: "unknown", at: this.#host.time.now(), why: "EIO" };
      return this.#host.see(id);
    });
  }

  /**
   * Returns the armed fault that makes the sandbox's instance survive its stop; null if there is none. The fault
   * strikes only an instance that is still frozen in memory although its memory has been written to disk.
   */
  #sleeperSurvives(id: SandboxId): Armed | null {
    const instance = this.#host.instanceOf(id);
    const isAsleep = instance?.holds.has("frozen") && instance.dumps.length > 0;
    return isAsleep ? this.#host.faults.take("stop.asleep") : null;
  }

  #helpers(id: SandboxId): Helper[] {
    return [...this.#host.helpers].filter(({ sandboxId }) => sandboxId === id);
  }

  #kill(id: SandboxId): void {
    this.#process.effect("kills", () => {
      this.#killHelpers(id);
      for (const instance of [...this.#host.instances])
        if (instance.sandboxId === id) this.#host.kill(instance, "killed by the driver");
    });
  }

  #killHelpers(id: SandboxId): void {
    for (const helper of this.#helpers(id)) {
      helper.killed = true;
      this.#host.helpers.delete(helper);
    }
  }

  destroy(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#verb("destroy", signal, async (fault) => {
      if (fault?.kind === "destroy-fails") throw new Error("a mount is busy");
      if (fault?.kind === "destroy-hangs") return this.#hang(signal);
      const host = this.#host;
      if (host.instanceOf(id) !== null) throw new Error("processes of the sandbox are still running");
      if (fault?.kind === "destroy-half") {
        host.directories.get(id)?.things.delete("mount");
        throw new Error("the tree could not be removed");
      }
      this.#process.effect("removes a directory", () => {
        if (host.directories.delete(id)) host.report({ type: "destroyed", sandboxId: id });
      });
    });
  }

  async close(): Promise<void> {}
}

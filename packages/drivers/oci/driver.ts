import type { CheckpointId, SandboxId } from "@holdfast/contract";
import {
  type Capacity,
  type Checkpoint,
  type CheckpointOrder,
  type Checkpoints,
  type Driver,
  type DriverCapabilities,
  type DriveSupport,
  type FileAccess,
  type Found,
  type Freezer,
  type Instance,
  type InstanceIdentity,
  KeyedSerialQueue,
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
  type Usage,
} from "@holdfast/engine";
import { connectKeeper, dialKeeper } from "@holdfast/keeper";
import { save } from "./checkpoint/copy-checkpoint.ts";
import { checkpoint } from "./checkpoint/dump.ts";
import { openFiles } from "./checkpoint/offline-files.ts";
import { restore } from "./checkpoint/restore.ts";
import { endCriu } from "./checkpoint/run-criu.ts";
import { mountDrive, unmountDrive } from "./drives/drive-mounts.ts";
import { OciDrives } from "./drives/drives.ts";
import { unstageDrives } from "./drives/staged-drives.ts";
import { discard } from "./files/checkpoint-files.ts";
import { missingFiles } from "./files/missing-files.ts";
import { noteWritePaths } from "./files/write-paths.ts";
import { OciJournals } from "./journals/journals.ts";
import { launch } from "./launch/launch.ts";
import { capacity } from "./machine/capacity.ts";
import { instanceOf, readIdentity } from "./machine/instance-identity.ts";
import type { ImagesOnDisk, Machine } from "./machine/machine.ts";
import { BytesWritten } from "./observe/bytes-written.ts";
import { inspect } from "./observe/inspect.ts";
import { listMarked } from "./observe/list-marked.ts";
import { measure } from "./observe/measure.ts";
import { ObservationMemory } from "./observe/observation-memory.ts";
import { observeOne } from "./observe/observe.ts";
import { PortStreams } from "./observe/port-streams.ts";
import { Operations } from "./operations.ts";
import { errnoOf } from "./proc/errno.ts";
import { inBatches } from "./proc/in-batches.ts";
import { readMounts } from "./proc/mount-table.ts";
import { readCgroups, readLiving } from "./proc/proc-files.ts";
import { destroy } from "./stop/destroy.ts";
import { remount } from "./stop/remount.ts";
import { stop } from "./stop/stop.ts";
import { thaw } from "./stop/thaw.ts";

/** Maximum wait after a launch until the keeper listens. It usually listens within milliseconds. */
const LISTEN_MS = 3_000;
const LISTEN_POLL_MS = 2;

/** Maximum wait for the end of a dump that an earlier server began. */
const HELPERS_MS = 15_000;

/**
 * Runs instances on this machine. The container runtime launches an instance and is not used afterwards. From then on
 * the driver relies on the pid with its start time, on the cgroups and on the mount table. So a stale state file of the
 * runtime can't prevent an instance from being ended.
 */
export class OciDriver
  implements Driver, Freezer, MemoryStandby, Checkpoints, PortDialing, OutsideView, OfflineFiles
{
  readonly name = "oci";
  readonly support: StandbySupport;
  readonly capabilities: DriverCapabilities;
  readonly drives: OciDrives;
  readonly journals: OciJournals;
  readonly images: ImagesOnDisk;
  /** Reads the images on disk again, after an import has added one. */
  readonly reloadImages: () => void;
  readonly #machine: Machine;
  readonly #written: BytesWritten;
  readonly #streams = new PortStreams();
  readonly #seen = new ObservationMemory();
  readonly #operations = new Operations();
  readonly #mounting = new KeyedSerialQueue<SandboxId>();

  constructor(machine: Machine, support: StandbySupport) {
    const { layout, porter, idBase } = machine;
    this.#machine = machine;
    this.support = support;
    this.#written = new BytesWritten(machine.cgroups);
    this.drives = new OciDrives(machine);
    this.journals = new OciJournals({ layout, porter, idBase });
    this.images = machine.images;
    this.reloadImages = () => machine.images.reload();
    const { drives: directories, journals, images } = this;
    const mount: DriveSupport["mount"] = (...given) => this.mount(...given);
    const unmount: DriveSupport["unmount"] = (...given) => this.unmount(...given);
    this.capabilities = {
      freezer: this,
      standby: this,
      checkpoints: this,
      drives: { directories, mount, unmount },
      ports: this,
      journals,
      outsideView: this,
      offlineFiles: this,
      images,
    };
  }

  isOfThisBoot(identity: InstanceIdentity): boolean {
    return readIdentity(identity).hostBootId === this.#machine.facts.bootId;
  }

  describe(identity: InstanceIdentity): { pid: number } {
    return { pid: readIdentity(identity).pid };
  }

  get keeperVersion(): string {
    return this.#machine.keeper.version;
  }

  capacity(_signal: AbortSignal): Promise<Capacity> {
    return capacity(this.#machine);
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    return this.#operations.run(order.sandboxId, signal, async (ended, superseded) =>
      instanceOf(await launch(this.#machine, order, AbortSignal.any([ended, superseded]))),
    );
  }

  checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint> {
    return this.#operations.run(order.sandboxId, signal, (ended, superseded) =>
      this.#streams.without(order.sandboxId, () => checkpoint(this.#machine, order, ended, superseded)),
    );
  }

  restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance> {
    return this.#operations.run(order.sandboxId, signal, async (ended, superseded) =>
      instanceOf(await restore(this.#machine, order, AbortSignal.any([ended, superseded]))),
    );
  }

  discard(id: SandboxId, keep: CheckpointId | null, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    return discard(this.#machine, this.#machine.layout.sandbox(id).checkpoints, (name) => name !== keep);
  }

  save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }> {
    return this.#operations.run(order.sandboxId, signal, (ended, superseded) => {
      const saving = () => save(this.#machine, order, ended, superseded);
      return order.kind === "memory" ? this.#streams.without(order.sandboxId, saving) : saving();
    });
  }

  unsave(id: SandboxId, keep: readonly CheckpointId[], signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const kept = new Set<string>(keep);
    return discard(this.#machine, this.#machine.layout.sandbox(id).saved, (name) => !kept.has(name));
  }

  async memoryBytes(id: SandboxId, _signal: AbortSignal): Promise<number> {
    return this.#machine.cgroups.memoryBytes(id);
  }

  files(id: SandboxId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }> {
    return openFiles(this.#machine, id, signal);
  }

  async missing(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, string | null>> {
    const seen = new Map<SandboxId, string | null>();
    const mounts = readMounts();
    for await (const id of inBatches(ids, signal)) {
      try {
        seen.set(id, missingFiles(this.#machine, id, mounts));
      } catch (error) {
        this.#machine.log.warn({ sandboxId: id, errno: errnoOf(error) }, "files could not be looked for");
      }
    }
    return seen;
  }

  async recover(instance: Instance, signal: AbortSignal): Promise<Instance | null> {
    const { cgroups, clock } = this.#machine;
    // If an earlier server began a dump, that dump freezes the instance again at its end. The loop waits until the dump
    // has ended.
    const end = clock.now() + HELPERS_MS;
    while (cgroups.helpers(instance.sandboxId).length > 0 && clock.now() < end) {
      await clock.sleep(LISTEN_POLL_MS, signal);
    }
    await endCriu(this.#machine, instance.sandboxId);
    await unstageDrives(this.#machine, instance.sandboxId);
    if (!this.isOfThisBoot(instance.identity)) return null;
    const { pid, startTime } = readIdentity(instance.identity);
    if (readLiving(pid)?.startTime !== startTime) return null;
    // A process outside its sandbox's cgroups can't be ended safely, so it is not accepted as the instance.
    if (!cgroups.hasMember(instance.sandboxId, readCgroups(pid) ?? ""))
      throw new Error("the instance is not in its cgroups");
    noteWritePaths(this.#machine, instance.sandboxId);
    return instance;
  }

  async connect(instance: Instance, signal: AbortSignal): Promise<Link> {
    const { liveness, clock } = this.#machine;
    const options = { ...this.#keeperOf(instance), ...liveness, now: () => clock.now() };
    return this.#reach(instance, signal, () => connectKeeper(options, signal));
  }

  async dial(instance: Instance, port: number, signal: AbortSignal): Promise<PortStream> {
    const ended = this.#streams.begin(instance.sandboxId, signal);
    const options = { ...this.#keeperOf(instance), port };
    return this.#reach(instance, ended, () => dialKeeper(options, ended));
  }

  #keeperOf({ sandboxId: sandbox, generation }: Instance) {
    const { layout, installation } = this.#machine;
    return { socketPath: layout.sandbox(sandbox).socket, installation, sandbox, generation };
  }

  /**
   * Calls `attempt`, which connects to the keeper. If the connection fails, tries again for at most LISTEN_MS, because
   * a new keeper may not listen yet. Gives up early if the instance's PID 1 has ended.
   */
  async #reach<Reached>(
    { identity }: Instance,
    signal: AbortSignal,
    attempt: () => Promise<Reached>,
  ): Promise<Reached> {
    const { pid, startTime } = readIdentity(identity);
    const { clock } = this.#machine;
    const end = clock.now() + LISTEN_MS;
    for (;;) {
      try {
        return await attempt();
      } catch (error) {
        const isEarly = error instanceof LinkLost && error.dispatched === "no" && clock.now() < end;
        if (!isEarly || readLiving(pid)?.startTime !== startTime) throw error;
        await clock.sleep(LISTEN_POLL_MS, signal);
      }
    }
  }

  async observe(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Observation>> {
    const seen = new Map<SandboxId, Observation>();
    const mounts = readMounts();
    for await (const id of inBatches(ids, signal))
      seen.set(id, observeOne(this.#machine, id, mounts, this.#seen));
    return seen;
  }

  list(signal: AbortSignal): Promise<Found[]> {
    return listMarked(this.#machine, signal);
  }

  measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>> {
    return measure(this.#machine, ids, signal);
  }

  inspect(id: SandboxId, signal: AbortSignal): Promise<ProcessSnapshot> {
    return inspect(this.#machine, id, signal);
  }

  /**
   * Mounts the root again. A stop aborts a remount, as it aborts a launch, so that the remount can't mount anything
   * after the stop.
   */
  remount(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#afterMounts(id, async () => {
      if (this.#operations.has(id)) throw new Error("another operation on the instance is in progress");
      await this.#operations.run(id, signal, (ended, superseded) =>
        remount(this.#machine, id, AbortSignal.any([ended, superseded])),
      );
    });
  }

  written(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>> {
    return this.#written.read(ids, signal);
  }

  freeze(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#machine.cgroups.freeze(id, signal);
  }

  thaw(id: SandboxId, signal: AbortSignal): Promise<void> {
    return thaw(this.#machine, id, signal);
  }

  mount(order: MountOrder, signal: AbortSignal): Promise<void> {
    return this.#afterMounts(order.sandboxId, () => mountDrive(this.#machine, order, signal));
  }

  unmount(id: SandboxId, path: string, options: { keepClosed: boolean }, signal: AbortSignal): Promise<void> {
    return this.#afterMounts(id, () => {
      signal.throwIfAborted();
      return unmountDrive(this.#machine, id, path, options);
    });
  }

  /**
   * Runs the mount operations of one sandbox one after the other. An operation whose caller stopped waiting still runs
   * to its end, so an unmount always finds the result of the mount before it.
   */
  #afterMounts<Result>(id: SandboxId, act: () => Promise<Result>): Promise<Result> {
    return this.#mounting.run(id, act);
  }

  async stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation> {
    await this.#operations.supersede(id, signal);
    this.#streams.cut(id, "the sandbox is being stopped");
    this.#seen.forget(id);
    return stop(this.#machine, id, options.graceMs, signal);
  }

  async destroy(id: SandboxId, signal: AbortSignal): Promise<void> {
    await this.#operations.supersede(id, signal);
    await destroy(this.#machine, id, signal);
    this.#written.forget(id);
    this.#seen.forget(id);
  }

  /** Ends the operations in progress as soon as that is safe. Instances keep running. */
  async close(): Promise<void> {
    await this.#operations.end(new Error("the driver was closed"));
    this.#machine.porter.close();
    this.#machine.cgroups.removeParent();
  }
}

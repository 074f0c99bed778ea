import type { CheckpointId, SandboxId } from "@holdfast/contract";
import {
  type Capacity,
  type Checkpoint,
  type CheckpointOrder,
  type Driver,
  type FileAccess,
  type Found,
  type Instance,
  type LaunchOrder,
  type Link,
  LinkLost,
  type Look,
  type MountOrder,
  type Observation,
  type PortStream,
  type RestoreOrder,
  type SaveOrder,
  type Usage,
} from "@holdfast/engine";
import { connectKeeper, dialKeeper } from "@holdfast/keeper";
import { capacity } from "./capacity.ts";
import { checkpoint } from "./checkpoint.ts";
import { discard } from "./checkpoints.ts";
import { endCriu } from "./criu-run.ts";
import { destroy } from "./destroy.ts";
import { Dials } from "./dials.ts";
import { mountDrive, unmountDrive } from "./drive-mounts.ts";
import { inspect } from "./inspect.ts";
import { launch } from "./launch.ts";
import { list } from "./list.ts";
import type { Machine } from "./machine.ts";
import { measure } from "./measure.ts";
import { readMounts } from "./mounts.ts";
import { observeOne } from "./observe.ts";
import { readCgroups, readLiving } from "./processes.ts";
import { remount } from "./remount.ts";
import { restore } from "./restore.ts";
import { save } from "./save.ts";
import { openFiles } from "./sleeping-files.ts";
import { unstageDrives } from "./staged-drives.ts";
import { stop } from "./stop.ts";
import { thaw } from "./thaw.ts";
import { inTurns } from "./turns.ts";
import { Written } from "./written.ts";

/** A keeper listens within milliseconds of its launch; one that lives and doesn't listen by then has another problem. */
const LISTEN_MS = 3_000;
const LISTEN_POLL_MS = 2;

/** Something that makes or needs processes of one sandbox. */
interface Undertaking {
  /** Ends it at once, for what is about to remove all that it works on. */
  abort: AbortController;
  /** Ends it as soon as that does no harm. */
  ease: AbortController;
  done: Promise<unknown>;
}

/** How long a dump that an earlier server began may go on. */
const HELPERS_MS = 15_000;

/**
 * Runs instances on this machine. The container runtime launches them and is not asked again: from then on a pid with its
 * start time, the cgroups and the mount table are the truth, so no tool's state file can stand between an instance and
 * its end.
 */
export class OciDriver implements Driver {
  readonly name = "oci";
  readonly standby: Driver["standby"];
  readonly #machine: Machine;
  readonly #written: Written;
  readonly #dials = new Dials();
  readonly #underway = new Map<SandboxId, Undertaking>();
  readonly #mounting = new Map<SandboxId, Promise<unknown>>();

  constructor(machine: Machine, standby: Driver["standby"]) {
    this.#machine = machine;
    this.standby = standby;
    this.#written = new Written(machine.cgroups);
  }

  get hostBootId(): string {
    return this.#machine.facts.bootId;
  }

  get keeperVersion(): string {
    return this.#machine.keeper.version;
  }

  capacity(_signal: AbortSignal): Promise<Capacity> {
    return capacity(this.#machine);
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    return this.#undertake(order.sandboxId, signal, (eased, overtaken) =>
      launch(this.#machine, order, AbortSignal.any([eased, overtaken])),
    );
  }

  checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint> {
    return this.#undertake(order.sandboxId, signal, (eased, overtaken) =>
      this.#dials.without(order.sandboxId, () => checkpoint(this.#machine, order, eased, overtaken)),
    );
  }

  restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance> {
    return this.#undertake(order.sandboxId, signal, (eased, overtaken) =>
      restore(this.#machine, order, AbortSignal.any([eased, overtaken])),
    );
  }

  discard(id: SandboxId, keep: CheckpointId | null, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    return discard(this.#machine, this.#machine.layout.sandbox(id).checkpoints, (name) => name !== keep);
  }

  save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }> {
    return this.#undertake(order.sandboxId, signal, (eased, overtaken) => {
      const saving = () => save(this.#machine, order, eased, overtaken);
      return order.kind === "memory" ? this.#dials.without(order.sandboxId, saving) : saving();
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

  async recover(instance: Instance, signal: AbortSignal): Promise<Instance | null> {
    const { facts, cgroups, clock } = this.#machine;
    // A dump that an earlier server began would freeze the instance once more at its end.
    const end = clock.now() + HELPERS_MS;
    while (cgroups.helpers(instance.sandboxId).length > 0 && clock.now() < end) {
      await clock.sleep(LISTEN_POLL_MS, signal);
    }
    await endCriu(this.#machine, instance.sandboxId);
    await unstageDrives(this.#machine, instance.sandboxId);
    if (instance.hostBootId !== facts.bootId) return null;
    if (readLiving(instance.pid)?.startTime !== instance.startTime) return null;
    const path = cgroups.path(instance.sandboxId);
    const isMarked = (readCgroups(instance.pid) ?? "").split("\n").some((line) => line.endsWith(`:${path}`));
    // The very process that was launched, outside its cgroups: alive, and not where it can be ended safely.
    if (!isMarked) throw new Error("the instance is not in its cgroups");
    return instance;
  }

  async connect(instance: Instance, signal: AbortSignal): Promise<Link> {
    const { liveness, clock } = this.#machine;
    const options = { ...this.#keeperOf(instance), ...liveness, now: () => clock.now() };
    return this.#reach(instance, signal, () => connectKeeper(options, signal));
  }

  async dial(instance: Instance, port: number, signal: AbortSignal): Promise<PortStream> {
    const ended = this.#dials.begin(instance.sandboxId, signal);
    const options = { ...this.#keeperOf(instance), port };
    return this.#reach(instance, ended, () => dialKeeper(options, ended));
  }

  #keeperOf({ sandboxId: sandbox, generation }: Instance) {
    const { layout, installation } = this.#machine;
    return { socketPath: layout.sandbox(sandbox).socket, installation, sandbox, generation };
  }

  /** Tries until the keeper listens, or has a place for one more. */
  async #reach<Reached>(
    { pid, startTime }: Instance,
    signal: AbortSignal,
    attempt: () => Promise<Reached>,
  ): Promise<Reached> {
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
    for await (const id of inTurns(ids, signal)) seen.set(id, observeOne(this.#machine, id, mounts));
    return seen;
  }

  list(signal: AbortSignal): Promise<Found[]> {
    return list(this.#machine, signal);
  }

  measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>> {
    return measure(this.#machine, ids, signal);
  }

  inspect(id: SandboxId, signal: AbortSignal): Promise<Look> {
    return inspect(this.#machine, id, signal);
  }

  /** What is about to be removed must not be put back: a stop overtakes it, like a launch. */
  remount(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#inTurn(id, async () => {
      if (this.#underway.has(id)) throw new Error("something else is being done with the instance");
      await this.#undertake(id, signal, (eased, overtaken) =>
        remount(this.#machine, id, AbortSignal.any([eased, overtaken])),
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
    return this.#inTurn(order.sandboxId, () => mountDrive(this.#machine, order, signal));
  }

  unmount(id: SandboxId, path: string, options: { keepClosed: boolean }, signal: AbortSignal): Promise<void> {
    return this.#inTurn(id, () => {
      signal.throwIfAborted();
      return unmountDrive(this.#machine, id, path, options);
    });
  }

  /** Mounts of one sandbox one after the other, whoever has given up waiting for one: an unmount finds what a mount made. */
  #inTurn<Result>(id: SandboxId, act: () => Promise<Result>): Promise<Result> {
    const turn = (this.#mounting.get(id) ?? Promise.resolve()).then(act);
    const over = turn
      .catch(() => undefined)
      .then(() => {
        if (this.#mounting.get(id) === over) this.#mounting.delete(id);
      });
    this.#mounting.set(id, over);
    return turn;
  }

  async stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation> {
    await this.#overtake(id, signal);
    this.#dials.cut(id, "the sandbox is being stopped");
    return stop(this.#machine, id, options.graceMs, signal);
  }

  async destroy(id: SandboxId, signal: AbortSignal): Promise<void> {
    await this.#overtake(id, signal);
    await destroy(this.#machine, id, signal);
    this.#written.forget(id);
  }

  /** Instances run on; what is under way is broken off. */
  async close(): Promise<void> {
    const all = [...this.#underway.values()];
    for (const { ease } of all) ease.abort(new Error("the driver was closed"));
    await Promise.all(all.map(({ done }) => done));
    this.#machine.porter.close();
    this.#machine.cgroups.removeParent();
  }

  /** One at a time for each sandbox: a new one overtakes that before it. */
  async #undertake<Result>(
    id: SandboxId,
    signal: AbortSignal,
    act: (eased: AbortSignal, overtaken: AbortSignal) => Promise<Result>,
  ): Promise<Result> {
    await this.#overtake(id, signal);
    const abort = new AbortController();
    const ease = new AbortController();
    const result = act(AbortSignal.any([signal, ease.signal]), abort.signal);
    const undertaking = { abort, ease, done: result.catch(() => {}) };
    this.#underway.set(id, undertaking);
    try {
      return await result;
    } finally {
      if (this.#underway.get(id) === undertaking) this.#underway.delete(id);
    }
  }

  /** What is under way for this sandbox must not go on making what is about to be removed. */
  async #overtake(id: SandboxId, signal: AbortSignal): Promise<void> {
    const undertaking = this.#underway.get(id);
    if (undertaking === undefined) return;
    undertaking.abort.abort(new Error("it was overtaken"));
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    await Promise.race([undertaking.done, aborted]).finally(() => signal.removeEventListener("abort", abort));
  }
}

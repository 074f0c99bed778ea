import type { SandboxId } from "@holdfast/contract";
import {
  type Capacity,
  type Driver,
  type Found,
  type Instance,
  type LaunchOrder,
  type Link,
  LinkLost,
  type Observation,
} from "@holdfast/engine";
import { connectKeeper } from "@holdfast/keeper";
import { capacity } from "./capacity.ts";
import { destroy } from "./destroy.ts";
import { launch } from "./launch.ts";
import { list } from "./list.ts";
import type { Machine } from "./machine.ts";
import { readMounts } from "./mounts.ts";
import { observeOne } from "./observe.ts";
import { readCgroups, readLiving } from "./processes.ts";
import { stop } from "./stop.ts";
import { inTurns } from "./turns.ts";

/** A keeper listens within milliseconds of its launch; one that lives and doesn't listen by then has another problem. */
const LISTEN_MS = 3_000;
const LISTEN_POLL_MS = 2;

interface Launching {
  abort: AbortController;
  done: Promise<unknown>;
}

/**
 * Runs instances on this machine. The container runtime launches them and is not asked again: from then on a pid with its
 * start time, the cgroups and the mount table are the truth, so no tool's state file can stand between an instance and
 * its end.
 */
export class OciDriver implements Driver {
  readonly name = "oci";
  readonly #machine: Machine;
  readonly #launching = new Map<SandboxId, Launching>();

  constructor(machine: Machine) {
    this.#machine = machine;
  }

  capacity(_signal: AbortSignal): Promise<Capacity> {
    return capacity(this.#machine);
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
    await this.#endLaunch(order.sandboxId, signal);
    const abort = new AbortController();
    const done = launch(this.#machine, order, AbortSignal.any([signal, abort.signal]));
    const launching = { abort, done: done.catch(() => {}) };
    this.#launching.set(order.sandboxId, launching);
    try {
      return await done;
    } finally {
      if (this.#launching.get(order.sandboxId) === launching) this.#launching.delete(order.sandboxId);
    }
  }

  async recover(instance: Instance, _signal: AbortSignal): Promise<Instance | null> {
    const { facts, cgroups } = this.#machine;
    if (instance.hostBootId !== facts.bootId) return null;
    if (readLiving(instance.pid)?.startTime !== instance.startTime) return null;
    const path = cgroups.path(instance.sandboxId);
    const isMarked = (readCgroups(instance.pid) ?? "").split("\n").some((line) => line.endsWith(`:${path}`));
    // The very process that was launched, outside its cgroups: alive, and not where it can be ended safely.
    if (!isMarked) throw new Error("the instance is not in its cgroups");
    return instance;
  }

  async connect(instance: Instance, signal: AbortSignal): Promise<Link> {
    const { layout, installation, clock } = this.#machine;
    const { sandboxId: sandbox, generation, pid, startTime } = instance;
    const options = { socketPath: layout.sandbox(sandbox).socket, installation, sandbox, generation };
    const end = clock.now() + LISTEN_MS;
    for (;;) {
      try {
        return await connectKeeper({ ...options, now: () => clock.now() }, signal);
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

  freeze(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#machine.cgroups.freeze(id, signal);
  }

  thaw(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#machine.cgroups.thaw(id, signal);
  }

  async stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation> {
    await this.#endLaunch(id, signal);
    return stop(this.#machine, id, options.graceMs, signal);
  }

  async destroy(id: SandboxId, signal: AbortSignal): Promise<void> {
    await this.#endLaunch(id, signal);
    await destroy(this.#machine, id, signal);
  }

  /** Instances run on; launches under way are broken off. */
  async close(): Promise<void> {
    const launches = [...this.#launching.values()];
    for (const { abort } of launches) abort.abort(new Error("the driver was closed"));
    await Promise.all(launches.map(({ done }) => done));
    this.#machine.cgroups.removeParent();
  }

  /** A launch of this sandbox that is under way must not go on making what is about to be removed. */
  async #endLaunch(id: SandboxId, signal: AbortSignal): Promise<void> {
    const launching = this.#launching.get(id);
    if (launching === undefined) return;
    launching.abort.abort(new Error("the launch was overtaken"));
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    await Promise.race([launching.done, aborted]).finally(() => signal.removeEventListener("abort", abort));
  }
}

import type { CheckpointId, SandboxId } from "@holdfast/contract";
import {
  type Checkpoint,
  type CheckpointOrder,
  CheckpointUnusable,
  type Instance,
  type RestoreOrder,
} from "@holdfast/engine";
import type { Armed } from "../schedule/armed-faults.ts";
import type { Helper, Host, SimulatedInstance } from "./host.ts";
import type { KeeperMemory } from "./keeper.ts";
import type { Process } from "./process.ts";

/** Size of every instance's memory, in RAM and on disk. */
export const MEMORY_BYTES = 64 * 2 ** 20;
/** Interval at which a helper process checks whether it was killed. */
const LOOK_MS = 250;
/** Parts that an instance may lack after a faulty restore: its running execs, its root or its keeper. */
const HOLLOWS = ["exec", "root", "keeper"] as const;

/** The memory of an instance as files on disk. The files may be incomplete, truncated, or those of another sandbox. */
export interface StoredCheckpoint {
  readonly id: CheckpointId;
  readonly memory: KeeperMemory;
  /** The largest generation with which a server had connected to the instance's keeper before the checkpoint. */
  readonly greeted: number;
  /** Paths at which the saved memory expects drives. */
  readonly paths: readonly string[];
  state: "half" | "whole" | "damaged" | "foreign";
}

export interface Parts {
  host: Host;
  process: Process;
  signal: AbortSignal;
}

/**
 * Writes an instance's memory to disk, in a helper process that keeps running if its server dies. The helper freezes
 * the instance again at its end, even if another server has thawed the instance meanwhile.
 */
export async function dump(parts: Parts, order: CheckpointOrder, fault: Armed | null): Promise<Checkpoint> {
  const { host, process, signal } = parts;
  const { sandboxId, generation, id } = order;
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance whose memory could be written");
  if (!instance.holds.has("frozen")) throw new Error("the instance is not frozen");
  if (instance.links.size > 0) throw new Error("a link to the keeper is open");
  return asHelper(parts, sandboxId, async (throwIfKilled) => {
    try {
      const { keeper, greeted, places } = instance;
      const paths = [...places.keys()];
      const stored: StoredCheckpoint = { id, memory: keeper.remember(), greeted, paths, state: "half" };
      process.effect("begins a checkpoint", () => host.directory(sandboxId).checkpoints.set(id, stored));
      await lasts(host, fault?.kind === "dump-slow" ? fault.ms : host.latency(), throwIfKilled);
      if (fault?.kind === "dump-fails") throw new Error("the memory could not be written");
      if (fault?.kind === "dump-hangs") return await hangs(signal);
      if (host.diskIsFull) throw new Error("no space left on device");
      if (!instance.alive) throw new Error("the instance ended while its memory was written");
      process.effect("writes a checkpoint", () => {
        stored.state = "whole";
        instance.dumps.push(id);
      });
      await lasts(host, host.latency(), throwIfKilled);
      if (fault?.kind === "dump-answer-lost")
        throw new Error("the answer was lost after the memory was written");
      return { id, takenAt: host.time.now(), generation, sizeBytes: MEMORY_BYTES };
    } finally {
      host.hold(instance, "frozen");
    }
  });
}

/** Restores an instance from a checkpoint and leaves it frozen. */
export async function restore(parts: Parts, order: RestoreOrder, fault: Armed | null): Promise<Instance> {
  const { host, process, signal } = parts;
  const { sandboxId, checkpoint } = order;
  const stored = usable(host, sandboxId, checkpoint.id);
  return asHelper(parts, sandboxId, async (throwIfKilled) => {
    await lasts(host, fault?.kind === "restore-slow" ? fault.ms : host.latency(), throwIfKilled);
    if (fault?.kind === "restore-fails") throw new Error("the memory could not be restored");
    if (fault?.kind === "restore-hangs" && fault.flag) return await hangs(signal);
    const isHalf = fault?.kind === "restore-half";
    const instance = process.effect("restores", () => host.revive(order, stored, { isHalf }));
    if (isHalf) throw new Error("some of the processes could not be restored");
    if (fault?.kind === "restore-stillborn") host.kill(instance, "it did not outlive its restore");
    if (fault?.kind === "restore-hollow") hollow(host, instance, fault);
    await lasts(host, host.latency(), throwIfKilled);
    if (fault?.kind === "restore-answer-lost") throw new Error("the answer of the restore was lost");
    if (fault?.kind === "restore-hangs") return await hangs(signal);
    return host.reference(instance);
  });
}

/** Returns the checkpoint. Throws if it is unusable, before any process is started from it. */
function usable(host: Host, sandboxId: SandboxId, id: CheckpointId): StoredCheckpoint {
  const stored = host.directories.get(sandboxId)?.checkpoints.get(id);
  if (stored === undefined) throw new CheckpointUnusable("checkpoint_missing", "there is no such checkpoint");
  if (stored.state === "foreign")
    throw new CheckpointUnusable("checkpoint_foreign", "the checkpoint is of another sandbox");
  if (stored.state !== "whole")
    throw new CheckpointUnusable(
      "checkpoint_damaged",
      "a file of the checkpoint is shorter than it should be",
    );
  return stored;
}

/** Simulates an incomplete restore that is reported as successful: removes a part of the restored instance. */
function hollow(host: Host, instance: SimulatedInstance, { ms }: Armed): void {
  const missing = HOLLOWS[ms % HOLLOWS.length];
  if (missing === "root") host.unmount(instance);
  if (missing === "keeper") host.hold(instance, "stopped");
  if (missing === "exec") instance.keeper.lose();
}

export async function asHelper<Result>(
  { host, signal }: Parts,
  sandboxId: SandboxId,
  work: (throwIfKilled: () => void) => Promise<Result>,
): Promise<Result> {
  const helper: Helper = { sandboxId, killed: false };
  const abort = () => {
    helper.killed = true;
  };
  host.helpers.add(helper);
  signal.addEventListener("abort", abort, { once: true });
  try {
    return await work(() => {
      if (helper.killed) throw signal.reason ?? new Error("the helper was killed");
    });
  } finally {
    host.helpers.delete(helper);
    signal.removeEventListener("abort", abort);
  }
}

/** Lets `ms` of virtual time pass, and checks repeatedly whether the helper process was killed. */
export async function lasts({ time }: Host, ms: number, throwIfKilled: () => void): Promise<void> {
  for (let left = ms; left > 0; left -= LOOK_MS) {
    await time.pause(Math.min(left, LOOK_MS));
    throwIfKilled();
  }
  throwIfKilled();
}

export const hangs = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

/** Returns every standby checkpoint on the host. */
export const checkpointsOn = (host: Host): { sandboxId: SandboxId; stored: StoredCheckpoint }[] =>
  [...host.directories].flatMap(([sandboxId, { checkpoints }]) =>
    [...checkpoints.values()].map((stored) => ({ sandboxId, stored })),
  );

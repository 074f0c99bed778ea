import type { CheckpointId, SandboxId } from "@holdfast/contract";
import {
  type Checkpoint,
  type CheckpointOrder,
  CheckpointUnusable,
  type Instance,
  type RestoreOrder,
} from "@holdfast/engine";
import type { Armed } from "./faults.ts";
import type { Helper, Host, SimulatedInstance } from "./host.ts";
import type { KeeperMemory } from "./keeper.ts";
import type { Process } from "./process.ts";

/** What all memory takes here, on disk and off it. */
export const MEMORY_BYTES = 64 * 2 ** 20;
/** Whoever writes memory looks this often whether it is to go on. */
const LOOK_MS = 250;
/** An exec of a hollow instance, a root of one, the keeper of one: which of them is missing. */
const HOLLOWS = ["exec", "root", "keeper"] as const;

/** The memory of an instance, as files: what is half written, cut short or of another sandbox lies there as well. */
export interface StoredCheckpoint {
  readonly id: CheckpointId;
  readonly memory: KeeperMemory;
  /** The largest generation that its keeper had met. */
  readonly greeted: number;
  /** Where its memory expects drives. */
  readonly paths: readonly string[];
  state: "half" | "whole" | "damaged" | "foreign";
}

export interface Parts {
  host: Host;
  process: Process;
  signal: AbortSignal;
}

/**
 * Writes memory. It is a process of its own, which its server's death does not end, and which leaves the instance frozen
 * when it ends, whatever was done to that meanwhile.
 */
export async function dump(parts: Parts, order: CheckpointOrder, fault: Armed | null): Promise<Checkpoint> {
  const { host, process, signal } = parts;
  const { sandboxId, generation, id } = order;
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance whose memory could be written");
  if (!instance.holds.has("frozen")) throw new Error("the instance is not frozen");
  if (instance.links.size > 0) throw new Error("a link to the keeper is open");
  return asHelper(parts, sandboxId, async (goesOn) => {
    try {
      const { keeper, greeted, places } = instance;
      const paths = [...places.keys()];
      const stored: StoredCheckpoint = { id, memory: keeper.remember(), greeted, paths, state: "half" };
      process.effect("begins a checkpoint", () => host.directory(sandboxId).checkpoints.set(id, stored));
      await lasts(host, fault?.kind === "dump-slow" ? fault.ms : host.latency(), goesOn);
      if (fault?.kind === "dump-fails") throw new Error("the memory could not be written");
      if (fault?.kind === "dump-hangs") return await hangs(signal);
      if (host.diskIsFull) throw new Error("no space left on device");
      if (!instance.alive) throw new Error("the instance ended while its memory was written");
      process.effect("writes a checkpoint", () => {
        stored.state = "whole";
        instance.dumps.push(id);
      });
      await lasts(host, host.latency(), goesOn);
      if (fault?.kind === "dump-answer-lost")
        throw new Error("it could not be told that the memory is written");
      return { id, takenAt: host.time.now(), generation, sizeBytes: MEMORY_BYTES };
    } finally {
      host.hold(instance, "frozen");
    }
  });
}

/** Makes an instance of a checkpoint, and leaves it frozen. */
export async function restore(parts: Parts, order: RestoreOrder, fault: Armed | null): Promise<Instance> {
  const { host, process, signal } = parts;
  const { sandboxId, checkpoint } = order;
  const stored = usable(host, sandboxId, checkpoint.id);
  return asHelper(parts, sandboxId, async (goesOn) => {
    await lasts(host, fault?.kind === "restore-slow" ? fault.ms : host.latency(), goesOn);
    if (fault?.kind === "restore-fails") throw new Error("the memory could not be restored");
    if (fault?.kind === "restore-hangs" && fault.flag) return await hangs(signal);
    const isHalf = fault?.kind === "restore-half";
    const instance = process.effect("restores", () => host.revive(order, stored, { isHalf }));
    if (isHalf) throw new Error("some of the processes could not be restored");
    if (fault?.kind === "restore-stillborn") host.kill(instance, "it did not outlive its restore");
    if (fault?.kind === "restore-hollow") hollow(host, instance, fault);
    await lasts(host, host.latency(), goesOn);
    if (fault?.kind === "restore-answer-lost") throw new Error("the answer of the restore was lost");
    if (fault?.kind === "restore-hangs") return await hangs(signal);
    return host.reference(instance);
  });
}

/** What can't be used is recognised before anything is started from it. */
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

/** It is said to be restored, and something of it is missing. */
function hollow(host: Host, instance: SimulatedInstance, { ms }: Armed): void {
  const missing = HOLLOWS[ms % HOLLOWS.length];
  if (missing === "root") host.unmount(instance);
  if (missing === "keeper") host.hold(instance, "stopped");
  if (missing === "exec") instance.keeper.lose();
}

export async function asHelper<Result>(
  { host, signal }: Parts,
  sandboxId: SandboxId,
  work: (goesOn: () => void) => Promise<Result>,
): Promise<Result> {
  const helper: Helper = { sandboxId, killed: false };
  const abort = () => {
    helper.killed = true;
  };
  host.helpers.add(helper);
  signal.addEventListener("abort", abort, { once: true });
  try {
    return await work(() => {
      if (helper.killed) throw signal.reason ?? new Error("it was broken off");
    });
  } finally {
    host.helpers.delete(helper);
    signal.removeEventListener("abort", abort);
  }
}

/** So long, unless it is ended meanwhile. */
export async function lasts({ time }: Host, ms: number, goesOn: () => void): Promise<void> {
  for (let left = ms; left > 0; left -= LOOK_MS) {
    await time.pause(Math.min(left, LOOK_MS));
    goesOn();
  }
  goesOn();
}

export const hangs = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

/** Every checkpoint that lies on the host. */
export const checkpointsOn = (host: Host): { sandboxId: SandboxId; stored: StoredCheckpoint }[] =>
  [...host.directories].flatMap(([sandboxId, { checkpoints }]) =>
    [...checkpoints.values()].map((stored) => ({ sandboxId, stored })),
  );

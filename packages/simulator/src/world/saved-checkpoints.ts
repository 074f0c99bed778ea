import type { CheckpointId, ExecId, SandboxId, StandbyKind } from "@holdfast/contract";
import { CheckpointUnusable, type ForkSource, type SaveOrder } from "@holdfast/engine";
import type { Armed } from "../schedule/armed-faults.ts";
import { asHelper, hangs, lasts, MEMORY_BYTES, type Parts } from "./checkpoints.ts";
import type { Directory, Host, SimulatedInstance } from "./host.ts";
import type { Journal } from "./journal.ts";
import type { KeeperMemory } from "./keeper.ts";

/** Size on disk of every saved checkpoint. */
const COPY_BYTES = 2 * MEMORY_BYTES;

/** A saved checkpoint on disk: a copy of the sandbox's files and journals and, if requested, its memory. */
export interface StoredCopy {
  readonly id: CheckpointId;
  readonly kind: StandbyKind;
  readonly memory: KeeperMemory | null;
  readonly greeted: number;
  /** Paths at which the saved memory expects drives. */
  readonly paths: readonly string[];
  readonly files: ReadonlyMap<string, Uint8Array>;
  readonly journals: ReadonlyMap<ExecId, Journal>;
  /** Number of the sandbox's actions that are recorded in the copied files. */
  readonly steps: number;
  state: "half" | "whole" | "damaged";
}

/**
 * Copies memory and files in a helper process that keeps running if its server dies. Memory is copied first and the
 * files last. If the instance ran in between, the copied memory does not match the copied files. Every fork of the copy
 * then reveals the mismatch.
 */
export async function save(parts: Parts, order: SaveOrder, fault: Armed | null) {
  const { host, process, signal } = parts;
  const { sandboxId, id, kind, maxBytes } = order;
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance that could be copied");
  if (!instance.holds.has("frozen")) throw new Error("the instance is not frozen");
  if (instance.links.size > 0) throw new Error("a link to the keeper is open");
  return asHelper(parts, sandboxId, async (throwIfKilled) => {
    try {
      const directory = host.directory(sandboxId);
      const memory = kind === "memory" ? instance.keeper.remember() : null;
      const half: StoredCopy = { ...copyOf(directory, order, memory, instance), state: "half" };
      process.effect("begins to save", () => directory.saved.set(id, half));
      await lasts(host, fault?.kind === "save-slow" ? fault.ms : host.latency(), throwIfKilled);
      if (fault?.kind === "save-fails") throw new Error("the files could not be copied");
      if (fault?.kind === "save-hangs") return await hangs(signal);
      if (host.diskIsFull || COPY_BYTES > maxBytes) throw new Error("no space left on device");
      if (!instance.alive) throw new Error("the instance ended while it was copied");
      const whole: StoredCopy = { ...copyOf(directory, order, memory, instance), state: "whole" };
      process.effect("saves", () => directory.saved.set(id, whole));
      await lasts(host, host.latency(), throwIfKilled);
      if (fault?.kind === "save-answer-lost") throw new Error("the answer was lost after the copy");
      return { sizeBytes: COPY_BYTES, memoryBytes: memory === null ? 0 : MEMORY_BYTES };
    } finally {
      host.hold(instance, "frozen");
    }
  });
}

function copyOf(
  { files, journals, steps }: Directory,
  { id, kind, journals: wanted }: SaveOrder,
  memory: KeeperMemory | null,
  { greeted, places }: SimulatedInstance,
): Omit<StoredCopy, "state"> {
  const kept = copies([...journals].filter(([exec]) => wanted.includes(exec)));
  const own = memory === null ? null : withJournals(memory, kept);
  const paths = [...places.keys()];
  return { id, kind, memory: own, greeted, paths, files: new Map(files), journals: kept, steps };
}

const copies = (journals: Iterable<readonly [ExecId, Journal]>): Map<ExecId, Journal> =>
  new Map([...journals].map(([id, journal]) => [id, journal.copy()]));

/**
 * Returns the memory with copied journals. A journal whose file was removed from disk is copied too, because its keeper
 * still writes to it.
 */
const withJournals = (memory: KeeperMemory, journals: ReadonlyMap<ExecId, Journal>): KeeperMemory => ({
  ...memory,
  execs: memory.execs.map((exec) => ({
    ...exec,
    journal: journals.get(exec.order.id) ?? exec.journal.copy(),
  })),
});

/** Returns the saved checkpoint. Throws if it is unusable, before a sandbox is created from it. */
export function usableCopy(host: Host, { sandboxId, id, kind }: ForkSource): StoredCopy {
  const stored = host.directories.get(sandboxId)?.saved.get(id);
  if (stored === undefined) throw new CheckpointUnusable("checkpoint_missing", "there is no such checkpoint");
  if (stored.state !== "whole" || stored.kind !== kind)
    throw new CheckpointUnusable("checkpoint_damaged", "a file of the checkpoint is not what it should be");
  return stored;
}

/** Copies a saved checkpoint's files into the empty directory of a new sandbox, and returns the checkpoint's memory. */
export function layOut(directory: Directory, stored: StoredCopy): KeeperMemory | null {
  for (const [path, data] of stored.files) directory.files.set(path, data);
  for (const [id, journal] of copies(stored.journals)) directory.journals.set(id, journal);
  directory.steps = stored.steps;
  return stored.memory === null ? null : withJournals(stored.memory, directory.journals);
}

/** Returns every saved checkpoint on the host. */
export const copiesOn = (host: Host): { sandboxId: SandboxId; stored: StoredCopy }[] =>
  [...host.directories].flatMap(([sandboxId, { saved }]) =>
    [...saved.values()].map((stored) => ({ sandboxId, stored })),
  );

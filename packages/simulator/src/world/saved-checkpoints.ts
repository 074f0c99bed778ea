import type { CheckpointId, ExecId, SandboxId, StandbyKind } from "@holdfast/contract";
import { CheckpointUnusable, type ForkSource, type SaveOrder } from "@holdfast/engine";
import { asHelper, hangs, lasts, MEMORY_BYTES, type Parts } from "./checkpoints.ts";
import type { Armed } from "./faults.ts";
import type { Directory, Host, SimulatedInstance } from "./host.ts";
import type { Journal } from "./journal.ts";
import type { KeeperMemory } from "./keeper.ts";

/** What every copy takes on disk. */
const COPY_BYTES = 2 * MEMORY_BYTES;

/** A sandbox as it was, among its files: a copy of those, of journals, and of its memory where that was asked for. */
export interface StoredCopy {
  readonly id: CheckpointId;
  readonly kind: StandbyKind;
  readonly memory: KeeperMemory | null;
  readonly greeted: number;
  /** Where its memory expects drives. */
  readonly paths: readonly string[];
  readonly files: ReadonlyMap<string, Uint8Array>;
  readonly journals: ReadonlyMap<ExecId, Journal>;
  /** How much was done in the sandbox, by these files. */
  readonly steps: number;
  state: "half" | "whole" | "damaged";
}

/**
 * Copies files and memory. It is a process of its own, as writing memory to disk is. Memory is copied first and the files
 * last: where the instance ran meanwhile, the two are not of one moment, and whatever is forked from it shows that.
 */
export async function save(parts: Parts, order: SaveOrder, fault: Armed | null) {
  const { host, process, signal } = parts;
  const { sandboxId, id, kind, maxBytes } = order;
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance that could be copied");
  if (!instance.holds.has("frozen")) throw new Error("the instance is not frozen");
  if (instance.links.size > 0) throw new Error("a link to the keeper is open");
  return asHelper(parts, sandboxId, async (goesOn) => {
    try {
      const directory = host.directory(sandboxId);
      const memory = kind === "memory" ? instance.keeper.remember() : null;
      const half: StoredCopy = { ...copyOf(directory, order, memory, instance), state: "half" };
      process.effect("begins to save", () => directory.saved.set(id, half));
      await lasts(host, fault?.kind === "save-slow" ? fault.ms : host.latency(), goesOn);
      if (fault?.kind === "save-fails") throw new Error("the files could not be copied");
      if (fault?.kind === "save-hangs") return await hangs(signal);
      if (host.diskIsFull || COPY_BYTES > maxBytes) throw new Error("no space left on device");
      if (!instance.alive) throw new Error("the instance ended while it was copied");
      const whole: StoredCopy = { ...copyOf(directory, order, memory, instance), state: "whole" };
      process.effect("saves", () => directory.saved.set(id, whole));
      await lasts(host, host.latency(), goesOn);
      if (fault?.kind === "save-answer-lost") throw new Error("it could not be told that it is copied");
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

/** What a keeper writes into is its own, whether or not it has a name on disk. */
const withJournals = (memory: KeeperMemory, journals: ReadonlyMap<ExecId, Journal>): KeeperMemory => ({
  ...memory,
  execs: memory.execs.map((exec) => ({
    ...exec,
    journal: journals.get(exec.order.id) ?? exec.journal.copy(),
  })),
});

/** What can't be used is recognised before anything is made of it. */
export function usableCopy(host: Host, { sandboxId, id, kind }: ForkSource): StoredCopy {
  const stored = host.directories.get(sandboxId)?.saved.get(id);
  if (stored === undefined) throw new CheckpointUnusable("checkpoint_missing", "there is no such checkpoint");
  if (stored.state !== "whole" || stored.kind !== kind)
    throw new CheckpointUnusable("checkpoint_damaged", "a file of the checkpoint is not what it should be");
  return stored;
}

/** Lays a copy of the copy into an empty directory. Says which memory goes with it. */
export function layOut(directory: Directory, stored: StoredCopy): KeeperMemory | null {
  for (const [path, data] of stored.files) directory.files.set(path, data);
  for (const [id, journal] of copies(stored.journals)) directory.journals.set(id, journal);
  directory.steps = stored.steps;
  return stored.memory === null ? null : withJournals(stored.memory, directory.journals);
}

/** Every saved checkpoint that lies on the host. */
export const copiesOn = (host: Host): { sandboxId: SandboxId; stored: StoredCopy }[] =>
  [...host.directories].flatMap(([sandboxId, { saved }]) =>
    [...saved.values()].map((stored) => ({ sandboxId, stored })),
  );

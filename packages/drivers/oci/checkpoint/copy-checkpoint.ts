import { existsSync, mkdirSync, statSync } from "node:fs";
import { lstat } from "node:fs/promises";
import { join } from "node:path";
import type { ExecId } from "@holdfast/contract";
import type { SaveOrder } from "@holdfast/engine";
import { draftOf, dump, makePart, removePart, seal } from "./checkpoint.ts";
import { type CheckpointPlaces, filesIn, imagesIn, namesIn, savedPlaces } from "./checkpoints.ts";
import { isGone } from "./errno.ts";
import { makeOwned } from "./files.ts";
import { inDirectory } from "./journal-file.ts";
import type { SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { StandbyRefusal } from "./standby-refusal.ts";
import { standbySteps } from "./standby-step.ts";

/** What a sandbox wrote to its root: the upper layer, and what the overlay keeps beside it. */
export const WRITTEN = ["upper", "work"] as const;

/** Where upper, work and control really are. */
export const writtenIn = ({ dir, disk }: SandboxPlaces): string => (existsSync(disk) ? disk : dir);

/**
 * Memory first, then the files that it goes with, all of it while nothing runs: what comes out of it again is one moment of
 * the sandbox. Like a checkpoint for standby it has its name only once it is whole and on disk.
 */
export async function save(
  machine: Machine,
  order: SaveOrder,
  signal: AbortSignal,
  overtaken: AbortSignal,
): Promise<{ sizeBytes: number; memoryBytes: number }> {
  const ended = AbortSignal.any([signal, overtaken]);
  const step = standbySteps(machine, order, ended);
  const places = savedPlaces(machine.layout, order.sandboxId, order.id);
  const [memory, files] = ["its memory could not be written", "its files could not be copied"];
  try {
    const draft = await step({ name: "dump", code: "checkpoint_dump", complaint: memory }, async () => {
      await makePart(machine, places);
      if (order.kind === "files") return draftOf(machine, order);
      return dump(machine, order, places, signal, overtaken);
    });
    const fileBytes = await step({ name: "files", code: "checkpoint_files", complaint: files }, () =>
      copyFiles(machine, order, places, ended),
    );
    const manifest = await step({ name: "seal", code: "checkpoint_seal", complaint: files }, () => {
      if (!machine.cgroups.isFrozen(order.sandboxId)) throw new StandbyRefusal("it did not stay frozen");
      return seal(machine, order, places, draft);
    });
    return { sizeBytes: manifest.sizeBytes + fileBytes, memoryBytes: manifest.sizeBytes };
  } catch (error) {
    await removePart(machine, order.sandboxId, places);
    throw error;
  }
}

async function copyFiles(
  machine: Machine,
  order: SaveOrder,
  { part }: CheckpointPlaces,
  signal: AbortSignal,
): Promise<number> {
  const written = writtenIn(machine.layout.sandbox(order.sandboxId));
  const to = filesIn(part);
  mkdirSync(to, { mode: 0o700 });
  const maxBytes = Math.max(0, order.maxBytes - sizeOf(imagesIn(part)));
  const root = { from: written, to, names: WRITTEN, maxBytes };
  const bytes = await copyTree(machine, root, signal);
  const kept = join(to, "journals");
  makeOwned(kept, 0o700, machine.idBase);
  const from = join(written, "control", "journals");
  const names = await existing(from, order.journals);
  if (names.length === 0) return bytes;
  return bytes + (await copyTree(machine, { from, to: kept, names, maxBytes: maxBytes - bytes }, signal));
}

/** Of the images that were just written there. */
const sizeOf = (images: string): number =>
  namesIn(images).reduce((sum, name) => sum + statSync(join(images, name)).size, 0);

/** The bytes that the copy takes on disk. */
export async function copyTree(
  { porter }: Pick<Machine, "porter">,
  copy: Parameters<Machine["porter"]["copy"]>[0],
  signal: AbortSignal,
): Promise<number> {
  const copied = await porter.copy(copy, signal);
  if (copied === "gone") throw new StandbyRefusal("some of its files are missing");
  if (copied === "too_much") throw new StandbyRefusal("the disk has too little room for a copy of them");
  return copied.bytes;
}

/** The directory is the sandbox's to change. */
async function existing(directory: string, ids: readonly ExecId[]): Promise<ExecId[]> {
  const found = await inDirectory(directory, async (at) => {
    const there: ExecId[] = [];
    for (const id of ids) {
      const stat = await lstat(join(at, id)).catch((error: unknown) => {
        if (isGone(error)) return null;
        throw error;
      });
      if (stat?.isFile()) there.push(id);
    }
    return there;
  });
  return found ?? [];
}

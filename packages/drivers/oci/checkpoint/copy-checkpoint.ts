import { mkdirSync, statSync } from "node:fs";
import { lstat } from "node:fs/promises";
import { join } from "node:path";
import type { ExecId } from "@holdfast/contract";
import type { SaveOrder } from "@holdfast/engine";
import { type CheckpointPlaces, filesIn, imagesIn, namesIn, savedPlaces } from "../files/checkpoint-files.ts";
import { copyTree, makeOwned, WRITTEN, writtenIn } from "../files/sandbox-files.ts";
import { inDirectory } from "../journals/journal-file.ts";
import type { Machine } from "../machine/machine.ts";
import { StandbyRefusal, standbySteps } from "../machine/step-errors.ts";
import { isGone } from "../proc/errno.ts";
import { draftOf, dump, makePart, removePart, seal } from "./dump.ts";

/**
 * Saves a named checkpoint of a frozen sandbox: first its memory, then its files. No process runs meanwhile, so memory
 * and files are of the same moment. The checkpoint gets its final name only when it is complete and on disk, as a
 * standby checkpoint does.
 */
export async function save(
  machine: Machine,
  order: SaveOrder,
  signal: AbortSignal,
  superseded: AbortSignal,
): Promise<{ sizeBytes: number; memoryBytes: number }> {
  const ended = AbortSignal.any([signal, superseded]);
  const step = standbySteps(machine, order, ended);
  const places = savedPlaces(machine.layout, order.sandboxId, order.id);
  const [memory, files] = ["its memory could not be written", "its files could not be copied"];
  try {
    const draft = await step({ name: "dump", code: "checkpoint_dump", complaint: memory }, async () => {
      await makePart(machine, places);
      if (order.kind === "files") return draftOf(machine, order);
      return dump(machine, order, places, signal, superseded);
    });
    const fileBytes = await step({ name: "files", code: "checkpoint_files", complaint: files }, () =>
      copyFiles(machine, order, places, ended),
    );
    const manifest = await step({ name: "seal", code: "checkpoint_seal", complaint: files }, () => {
      if (!machine.cgroups.isFrozen(order.sandboxId))
        throw new StandbyRefusal("the sandbox did not stay frozen");
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
  const journals = join(to, "journals");
  makeOwned(journals, 0o700, machine.idBase);
  const from = join(written, "control", "journals");
  const names = await existing(from, order.journals);
  if (names.length === 0) return bytes;
  return bytes + (await copyTree(machine, { from, to: journals, names, maxBytes: maxBytes - bytes }, signal));
}

/** Total size of CRIU's images in the directory. */
const sizeOf = (images: string): number =>
  namesIn(images).reduce((sum, name) => sum + statSync(join(images, name)).size, 0);

/**
 * Returns the ids of the execs that have a journal file in the directory. The sandbox can write to this directory, so
 * entries that are not regular files are skipped.
 */
async function existing(directory: string, ids: readonly ExecId[]): Promise<ExecId[]> {
  const found = await inDirectory(directory, async (at) => {
    const present: ExecId[] = [];
    for (const id of ids) {
      const stat = await lstat(join(at, id)).catch((error: unknown) => {
        if (isGone(error)) return null;
        throw error;
      });
      if (stat?.isFile()) present.push(id);
    }
    return present;
  });
  return found ?? [];
}

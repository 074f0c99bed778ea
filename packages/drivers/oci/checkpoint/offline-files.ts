import type { SandboxId } from "@holdfast/contract";
import type { FileAccess } from "@holdfast/engine";
import { requireWritten } from "./files.ts";
import type { Machine } from "./machine.ts";
import { readOrder } from "./record.ts";
import { mountRoot } from "./root.ts";

/** What is not on the sandbox's disk, whatever lies there. */
const ONLY_RUNNING = ["proc", "dev", "sys", ".holdfast"];

/** The files of a sandbox that has no instance: its root, served from a jail that shows nothing else, for reading. */
export async function openFiles(
  machine: Machine,
  id: SandboxId,
  signal: AbortSignal,
): Promise<{ files: FileAccess; close(): Promise<void> }> {
  const { layout, images, porter, idBase, idCount } = machine;
  const places = layout.sandbox(id);
  const made = readOrder(layout, id);
  if (made === null) throw new Error("the sandbox has no files");
  await requireWritten(machine, id, signal);
  const image = images.resolve(made.image, made.imageVersion);
  await mountRoot(machine, image, places, signal);
  const shown = image.hostDirs.map((dir) => dir.slice(1)).filter((name) => !name.includes("/"));
  const jail = await porter.openJail(places.root, { idBase, idCount }, signal, [...ONLY_RUNNING, ...shown]);
  return { files: jail, close: () => jail.close() };
}

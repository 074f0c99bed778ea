import type { SandboxId } from "@holdfast/contract";
import type { FileAccess } from "@holdfast/engine";
import { mountRoot } from "../files/overlay-root.ts";
import { requireWritten } from "../files/sandbox-files.ts";
import type { Machine } from "../machine/machine.ts";
import { readOrder } from "../machine/sandbox-notes.ts";

/**
 * Directories that have content only while an instance runs. If the sandbox's disk contains files at these paths, the
 * jail hides them.
 */
const ONLY_RUNNING = ["proc", "dev", "sys", ".holdfast"];

/** Opens the files of a sandbox that has no instance, read-only, in a jail that shows only the sandbox's root. */
export async function openFiles(
  machine: Machine,
  id: SandboxId,
  signal: AbortSignal,
): Promise<{ files: FileAccess; close(): Promise<void> }> {
  const { layout, images, jails, idBase, idCount } = machine;
  const places = layout.sandbox(id);
  const order = readOrder(layout, id);
  if (order === null) throw new Error("the sandbox has no files");
  await requireWritten(machine, id, signal);
  const image = images.resolve(order.image, order.imageVersion);
  await mountRoot(machine, image, places, signal);
  const fromHost = image.hostDirs.map((dir) => dir.slice(1)).filter((name) => !name.includes("/"));
  const hidden = [...ONLY_RUNNING, ...fromHost];
  return jails.open({ owner: id, root: places.root, idBase, idCount, hidden }, signal);
}

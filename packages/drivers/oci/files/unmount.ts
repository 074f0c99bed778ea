import { rmSync } from "node:fs";
import type { Machine } from "../machine/machine.ts";
import { loopsIn } from "../proc/loop-devices.ts";
import { mountsOf, readMounts } from "../proc/mount-table.ts";

/**
 * Maximum wait until the loop device of an unmounted disk is released. A reader, or the helper of another launch, may
 * still use the disk for a moment.
 */
const LOOP_GONE_MS = 10_000;
const LOOP_POLL_MS = 5;

/**
 * Unmounts everything of a drive, or of a sandbox without processes. Resolves when the loop device of its disk is
 * released.
 */
export async function unmountAll(
  { porter, clock }: Pick<Machine, "porter" | "clock">,
  { dir, marker }: { dir: string; marker: string },
  signal: AbortSignal,
): Promise<void> {
  for (const { mountPoint } of mountsOf(readMounts(), [dir], marker)) await porter.unmount(mountPoint);
  const end = clock.now() + LOOP_GONE_MS;
  for (;;) {
    const [loop] = loopsIn(dir);
    if (loop === undefined) return;
    if (clock.now() > end) throw new Error(`its disk is still in use, through ${loop.name}`);
    await clock.sleep(LOOP_POLL_MS, signal);
  }
}

/**
 * Removes the runtime's state directory and the bundle of an instance that has ended. Mounts in these two directories
 * are removed first: a starting runtime briefly mounts its own binary over a file in one of the directories, so that
 * processes inside can't write to the binary. A runtime that is killed at that moment leaves the mount behind.
 */
export async function removeRuntimeState(
  { porter }: Pick<Machine, "porter">,
  { runtimeState, bundle }: { runtimeState: string; bundle: string },
): Promise<void> {
  const dirs = [runtimeState, bundle];
  for (const { mountPoint } of mountsOf(readMounts(), dirs)) await porter.unmount(mountPoint);
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
}

import { rmSync } from "node:fs";
import { loopsIn } from "./loops.ts";
import type { Machine } from "./machine.ts";
import { mountsOf, readMounts } from "./mounts.ts";

/** A mount that was just taken off may be held for a moment, by a reader or by the helper of another launch. */
const LOOP_GONE_MS = 10_000;
const LOOP_POLL_MS = 5;

/** Takes off every mount of a sandbox without processes, or of a drive. Resolves when no loop device has its disk any more. */
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
 * Removes what the runtime has of an instance that has ended: its state, and what it was told to start. It mounts itself on a file
 * in one of them for a moment while it starts, so that nobody inside can write to it: one that is killed then leaves the mount.
 */
export async function removeRuntimeState(
  { porter }: Pick<Machine, "porter">,
  { runtimeState, bundle }: { runtimeState: string; bundle: string },
): Promise<void> {
  const dirs = [runtimeState, bundle];
  for (const { mountPoint } of mountsOf(readMounts(), dirs)) await porter.unmount(mountPoint);
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
}

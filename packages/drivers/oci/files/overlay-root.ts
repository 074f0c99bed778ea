import { PorterError } from "@holdfast/keeper";
import type { SandboxPlaces } from "../machine/layout.ts";
import type { ImageOnDisk, Machine } from "../machine/machine.ts";
import { isRootMounted, readMounts } from "../proc/mount-table.ts";

/** Maximum wait for a root that is briefly in use, for example by the mount namespace of another launch's helper. */
const ROOT_BUSY_MS = 5_000;
const ROOT_BUSY_POLL_MS = 10;

/**
 * Mounts the sandbox's root. If the root of an earlier instance is still mounted, it is used again, because it is the
 * same overlay. Any other mount at the path is unmounted first.
 */
export async function mountRoot(
  { porter, clock }: Pick<Machine, "porter" | "clock">,
  image: ImageOnDisk,
  places: SandboxPlaces,
  signal: AbortSignal,
): Promise<void> {
  const { marker, root: target, upper, work } = places;
  if (isRootMounted(readMounts(), places)) return;
  await porter.unmount(target);
  const end = clock.now() + ROOT_BUSY_MS;
  for (;;) {
    try {
      return await porter.mountOverlay({ marker, target, lower: [image.rootfs], upper, work });
    } catch (error) {
      if (!isBusy(error) || clock.now() > end) throw error;
    }
    await clock.sleep(ROOT_BUSY_POLL_MS, signal);
    // A concurrent call that reads the files of a sandbox in standby may have mounted the root meanwhile.
    if (isRootMounted(readMounts(), places)) return;
  }
}

/** Whether a mount failed because some mount namespace still uses the overlay's upper layer. */
const isBusy = (error: unknown): boolean =>
  error instanceof PorterError && error.message.includes("Device or resource busy");

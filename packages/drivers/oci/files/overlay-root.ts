import { PorterError } from "@holdfast/keeper";
import type { ImageOnDisk } from "./images.ts";
import type { SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { isRootMounted, readMounts } from "./mounts.ts";

/** How long a root may be held by what is about to let it go, such as the mount namespace of another launch's helper. */
const ROOT_BUSY_MS = 5_000;
const ROOT_BUSY_POLL_MS = 10;

/** The root of an earlier instance may still be mounted, and is the same one then; anything else there is in the way. */
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
    // Whoever reads the files of a sandbox that sleeps may have mounted it meanwhile.
    if (isRootMounted(readMounts(), places)) return;
  }
}

/** What mounting says of an upper layer that some mount namespace still has in use. */
const isBusy = (error: unknown): boolean =>
  error instanceof PorterError && error.message.includes("Device or resource busy");

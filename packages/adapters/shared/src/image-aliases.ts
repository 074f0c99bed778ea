import { HoldfastError, isImageName } from "@holdfast/contract";
import type { ImageAliases } from "@holdfast/server/adapter";

/**
 * Image names that clients send when their user chooses no image. They stand for Holdfast's `host` image, a Linux with
 * the usual tools.
 */
const DEFAULT_ALIASES: ImageAliases = {
  "blaxel/base-image:latest": "host",
  "blaxel/base-image": "host",
};

/** Returns the local image for a platform's image name. Throws if the name has no alias. */
export function imageFor(name: string, configured: ImageAliases = {}): string {
  const aliases = { ...DEFAULT_ALIASES, ...configured };
  const image = (Object.hasOwn(aliases, name) ? aliases[name] : undefined) ?? name;
  if (isImageName(image)) return image;
  const message = `There is no image ${JSON.stringify(name.slice(0, 200))}. Map image names of other platforms with HOLDFAST_IMAGE_ALIASES.`;
  throw new HoldfastError("image_not_found", { message });
}

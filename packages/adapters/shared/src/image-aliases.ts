import { HoldfastError, isImageName } from "@holdfast/contract";

/** What images are called on other platforms, and which image here they mean. */
export type ImageAliases = Readonly<Record<string, string>>;

/** What clients ask for where their user names no image: a Linux with the usual tools, as this host is one. */
const DEFAULT_ALIASES: ImageAliases = {
  "blaxel/base-image:latest": "host",
  "blaxel/base-image": "host",
};

/** The image that a foreign name means. A name without a meaning here is no image, however well it is formed elsewhere. */
export function imageFor(name: string, configured: ImageAliases = {}): string {
  const aliases = { ...DEFAULT_ALIASES, ...configured };
  const image = (Object.hasOwn(aliases, name) ? aliases[name] : undefined) ?? name;
  if (isImageName(image)) return image;
  const message = `There is no image ${JSON.stringify(name.slice(0, 200))}; HOLDFAST_IMAGE_ALIASES says what the names of other platforms mean here.`;
  throw new HoldfastError("image_not_found", { message });
}

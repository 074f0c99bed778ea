import type { Image } from "@holdfast/contract";
import type { ImageStore } from "@holdfast/engine";

const host: Image = {
  name: "host",
  kind: "host",
  fingerprint: "f",
  createdAt: new Date(0).toISOString(),
  sizeBytes: 0,
  files: 0,
};

/** Image store with the only image of the simulated host. */
export const hostImage: ImageStore = {
  list: async () => [host],
  get: async (name) => (name === host.name ? host : null),
  import: async () => host,
  remove: async () => undefined,
};

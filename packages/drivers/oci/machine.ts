import type { InstallationId } from "@holdfast/contract";
import type { Clock, Log } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import type { BundleOrder } from "./bundle.ts";
import type { Cgroups } from "./cgroup.ts";
import type { HostFacts } from "./host.ts";
import type { OciImages } from "./images.ts";
import type { Layout } from "./layout.ts";

/** Everything that the driver's verbs work with. Made once, by `createOciDriver`. */
export interface Machine {
  readonly installation: InstallationId;
  readonly layout: Layout;
  readonly facts: HostFacts;
  readonly cgroups: Cgroups;
  readonly porter: Porter;
  readonly images: OciImages;
  readonly keeper: { readonly version: string; readonly dir: string };
  readonly idBase: number;
  readonly bundle: (order: BundleOrder) => string;
  /** Where the runtime sees the state directory, when a mapped root can't pass through to where it really is. */
  readonly alias: string | null;
  readonly clock: Clock;
  readonly log: Log;
}

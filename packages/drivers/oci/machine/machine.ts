import type { InstallationId } from "@holdfast/contract";
import type { Clock, Log } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import type { BundleOrder } from "./bundle.ts";
import type { Cgroups } from "./cgroup.ts";
import type { HostFacts } from "./host.ts";
import type { OciImages } from "./images.ts";
import type { Layout } from "./layout.ts";

export interface CriuOnHost {
  readonly path: string;
  readonly version: string;
  /** What it found out about the kernel, to be given to it in /run; undefined where it keeps that there itself. */
  readonly runFile: string | undefined;
}

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
  readonly idCount: number;
  /** What writes memory to disk and brings it back; null where the host has none that works. */
  readonly criu: CriuOnHost | null;
  readonly bundle: (order: BundleOrder) => string;
  /** Where the runtime sees the state directory, when a mapped root can't pass through to where it really is. */
  readonly alias: string | null;
  /** Of links; the keeper package's defaults for what is absent. */
  readonly liveness: { readonly heartbeatMs?: number; readonly deadMs?: number };
  /** Makes the file systems of sandboxes' own disks: a name or a path. */
  readonly mkfs: string;
  readonly clock: Clock;
  readonly log: Log;
}

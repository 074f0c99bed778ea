import type { Image, InstallationId, Resources, SandboxId } from "@holdfast/contract";
import type { Clock, ImageStore, Log } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import type { Cgroups } from "../proc/cgroup.ts";
import type { HostFacts } from "./host-facts.ts";
import type { Jails } from "./jails.ts";
import type { Layout } from "./layout.ts";

/** A version of an image on disk, as a launch uses it. */
export interface ImageOnDisk {
  image: Image;
  version: string;
  rootfs: string;
  hostDirs: readonly string[];
}

export interface ImagesOnDisk extends ImageStore {
  /** Reads the images on disk again. */
  reload(): void;
  /** Finds the current version of an image, or the version that an earlier launch used. */
  resolve(name: string, version?: string): ImageOnDisk;
}

/** The parts of a runtime bundle's configuration that differ between sandboxes. */
export interface BundleOrder {
  sandboxId: SandboxId;
  hostname: string;
  resources: Resources;
  cgroupsPath: string;
  /** Path of the sandbox's root on the host, as the runtime sees it. */
  root: string;
  /** Path of the keeper's directory on the host, as the runtime sees it. */
  keeperDir: string;
  /** Path of the control directory on the host, as the runtime sees it. */
  control: string;
  /** Host directories that the image shows to sandboxes, each followed by the mount points below it. */
  hostDirs: readonly string[];
}

export interface CriuOnHost {
  readonly path: string;
  readonly version: string;
  /**
   * File with CRIU's cached findings about the kernel, which helpers mount in /run. Undefined if CRIU keeps this cache
   * in /run itself.
   */
  readonly runFile: string | undefined;
}

/** Dependencies of all driver operations. `createOciDriver` creates one. */
export interface Machine {
  readonly installation: InstallationId;
  readonly layout: Layout;
  readonly facts: HostFacts;
  readonly cgroups: Cgroups;
  readonly porter: Porter;
  readonly jails: Jails;
  readonly images: ImagesOnDisk;
  readonly keeper: { readonly version: string; readonly dir: string };
  readonly idBase: number;
  readonly idCount: number;
  /** The CRIU that dumps and restores memory; null if the host has none that works. */
  readonly criu: CriuOnHost | null;
  readonly bundle: (order: BundleOrder) => string;
  /** A second path of the state directory, for the runtime; null if the mapped root user can reach the real one. */
  readonly alias: string | null;
  /**
   * How lost links are detected: the interval of heartbeats, and the time of silence after which a link is treated as
   * lost. The keeper package has the defaults.
   */
  readonly liveness: { readonly heartbeatMs?: number; readonly deadMs?: number };
  /** The mkfs program for sandboxes' own disks: a name or a path. */
  readonly mkfs: string;
  readonly clock: Clock;
  readonly log: Log;
}

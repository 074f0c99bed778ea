import { chmodSync, chownSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import type { DriveId, InstallationId, SandboxId } from "@holdfast/contract";

/**
 * Paths of one sandbox on the host. Only upper, work, root, control and journals contain data that the sandbox wrote.
 * If the sandbox has its own disk, upper, work and control are symbolic links into the disk, so the paths are always
 * the same.
 */
export interface SandboxPlaces {
  readonly dir: string;
  /** Image file of the sandbox's own disk, if it has one. */
  readonly diskImage: string;
  /** Mount point of the sandbox's own disk, if it has one. */
  readonly disk: string;
  readonly upper: string;
  readonly work: string;
  readonly root: string;
  readonly control: string;
  readonly socket: string;
  /** Journals of the sandbox's execs, written by its keeper. */
  readonly journals: string;
  /** The archive of the sandbox's journals. It stays when the sandbox is deleted. */
  readonly archivedJournals: string;
  readonly bundle: string;
  /** The creation note: what the sandbox was created from. It is written before any other file. */
  readonly order: string;
  /** Note of pid and start time of PID 1; written after the runtime has started it. */
  readonly instance: string;
  /** Standby checkpoints: one directory for each, named by its id. An incomplete checkpoint has a suffix. */
  readonly checkpoints: string;
  /** Named checkpoints with files and memory: one directory for each, as in `checkpoints`. */
  readonly saved: string;
  /** Note of the drives that are mounted in the sandbox, with their paths. */
  readonly mounts: string;
  /** Directory in which drives are mounted for CRIU while it dumps or restores this sandbox. */
  readonly staged: string;
  /** Working directory of CRIU while it dumps or restores this sandbox. */
  readonly criu: string;
  readonly runtimeState: string;
  readonly marker: string;
}

/**
 * Paths of a drive on the host. Its subdirectory `data`, on the drive's own disk if it has one, is all that sandboxes
 * see.
 */
export interface DrivePlaces {
  readonly dir: string;
  /** Image file of the drive's own disk, if it has one. */
  readonly diskImage: string;
  /** Mount point of the drive's own disk, if it has one. */
  readonly disk: string;
  /** Note that describes the drive; written last, so an incomplete drive has none. */
  readonly note: string;
  readonly marker: string;
}

export interface Layout {
  readonly stateDir: string;
  readonly installation: InstallationId;
  readonly sandboxes: string;
  readonly drives: string;
  /** An empty directory that only the host's root can write to. It is mounted in place of a drive that is missing. */
  readonly nothing: string;
  readonly images: string;
  readonly keepers: string;
  readonly porters: string;
  readonly runtime: string;
  /**
   * Directory for the result of the CRIU trial and for CRIU's cached findings about the kernel. The findings are in a
   * subdirectory that is named by CRIU's version and the boot id of the host.
   */
  readonly criu: string;
  /**
   * Journals of deleted sandboxes, in one directory per sandbox id. Sandboxes wrote them but can no longer reach them.
   */
  readonly journals: string;
  /** Record of the runtime that works on this host, for the next start of the server. */
  readonly facts: string;
  /** Record of the host's user ids that sandboxes are mapped to; chosen at the first start. */
  readonly ids: string;
  /** The driver's own null device, used as stdio of the runtime. */
  readonly nullDevice: string;
  sandbox(id: SandboxId): SandboxPlaces;
  drive(id: DriveId): DrivePlaces;
}

/** The beginning of all markers of an installation. */
export const markersOf = (installation: InstallationId): string => `holdfast-${installation}-`;

export const markerOf = (installation: InstallationId, id: SandboxId | DriveId): string =>
  `${markersOf(installation)}${id}`;

export const factsFile = (stateDir: string): string => join(stateDir, "oci-facts.json");

export const idsFile = (stateDir: string): string => join(stateDir, "ids.json");

export function layoutOf(stateDir: string, installation: InstallationId): Layout {
  const sandboxes = join(stateDir, "sandboxes");
  const runtime = join(stateDir, "runtime");
  const journals = join(stateDir, "journals");
  const drives = join(stateDir, "drives");
  return {
    stateDir,
    installation,
    sandboxes,
    drives,
    nothing: join(stateDir, "nothing"),
    images: join(stateDir, "images"),
    keepers: join(stateDir, "keepers"),
    porters: join(stateDir, "porters"),
    runtime,
    criu: join(stateDir, "criu"),
    journals,
    facts: factsFile(stateDir),
    ids: idsFile(stateDir),
    nullDevice: join(stateDir, "null"),
    // Every pass over all sandboxes calls `sandbox` many times. So `sandbox` concatenates paths, which is cheaper than
    // `join`.
    sandbox: (id) => {
      const dir = `${sandboxes}/${id}`;
      return {
        dir,
        diskImage: `${dir}/disk.img`,
        disk: `${dir}/disk`,
        upper: `${dir}/upper`,
        work: `${dir}/work`,
        root: `${dir}/root`,
        control: `${dir}/control`,
        socket: `${dir}/control/keeper.sock`,
        journals: `${dir}/control/journals`,
        archivedJournals: `${journals}/${id}`,
        bundle: `${dir}/bundle`,
        order: `${dir}/order.json`,
        instance: `${dir}/instance.json`,
        checkpoints: `${dir}/checkpoints`,
        saved: `${dir}/saved`,
        mounts: `${dir}/mounts.json`,
        staged: `${dir}/staged`,
        criu: `${dir}/criu`,
        runtimeState: `${runtime}/${id}`,
        marker: markerOf(installation, id),
      };
    },
    drive: (id) => {
      const dir = join(drives, id);
      return {
        dir,
        diskImage: join(dir, "disk.img"),
        disk: join(dir, "disk"),
        note: join(dir, "drive.json"),
        marker: markerOf(installation, id),
      };
    },
  };
}

/**
 * Mode of directories that the mapped root user can traverse through its group, but not list. Other users of the host
 * have no access.
 */
export const PASSABLE_BY_GROUP = 0o710;
const PRIVATE = 0o700;
/** Mode of a directory that every user can read and no user except root can write to. */
const CLOSED = 0o555;

/**
 * Creates the directories of the layout. `group` is the group of the mapped root user. The runtime reaches roots,
 * control directories and keepers with the rights of this group.
 */
export function makeLayout(layout: Layout, group: number): void {
  for (const dir of [layout.stateDir, layout.sandboxes, layout.keepers]) {
    mkdirSync(dir, { recursive: true, mode: PRIVATE });
    chownSync(dir, 0, group);
    chmodSync(dir, PASSABLE_BY_GROUP);
  }
  const { images, runtime, porters, journals, criu, drives } = layout;
  for (const dir of [images, runtime, porters, journals, criu, drives]) {
    mkdirSync(dir, { recursive: true, mode: PRIVATE });
    chmodSync(dir, PRIVATE);
  }
  mkdirSync(layout.nothing, { recursive: true });
  chmodSync(layout.nothing, CLOSED);
}

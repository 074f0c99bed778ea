import { chmodSync, chownSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import type { DriveId, InstallationId, SandboxId } from "@holdfast/contract";

/**
 * Where everything of one sandbox lies on the host. Only upper, work, root, control and journals hold what it wrote. Of a
 * sandbox with a disk of its own, upper, work and control are links into that disk: their names are the same either way.
 */
export interface SandboxPlaces {
  readonly dir: string;
  /** The sandbox's own file system: the file that it is in, and where that is mounted. */
  readonly diskImage: string;
  readonly disk: string;
  readonly upper: string;
  readonly work: string;
  readonly root: string;
  readonly control: string;
  readonly socket: string;
  /** Of its execs: where the keeper writes them, and where they lie once the sandbox is gone. */
  readonly journals: string;
  readonly keptJournals: string;
  readonly bundle: string;
  /** What was ordered; written before anything else is made. */
  readonly order: string;
  /** Pid and start time of PID 1; written once the runtime has answered. */
  readonly instance: string;
  /** Its memory on disk: a directory for each checkpoint, by id; one that is being made has a suffix. */
  readonly checkpoints: string;
  /** Copies of its files and memory that were kept by order, likewise. */
  readonly saved: string;
  /** Which drives are mounted in it, and where. */
  readonly mounts: string;
  /** Where drives are mounted for CRIU while it works for this sandbox. */
  readonly staged: string;
  /** Where CRIU keeps its papers while it works for this sandbox. */
  readonly criu: string;
  readonly runtimeState: string;
  readonly marker: string;
}

/** Where a drive lies on the host. Only what is in `data` was written by sandboxes. */
export interface DrivePlaces {
  readonly dir: string;
  /** The drive's own file system, where it has one: the file that it is in, and where that is mounted. */
  readonly diskImage: string;
  readonly disk: string;
  /** What the drive is made of; written last. */
  readonly note: string;
  readonly marker: string;
}

export interface Layout {
  readonly stateDir: string;
  readonly installation: InstallationId;
  readonly sandboxes: string;
  readonly drives: string;
  /** A directory that nobody but root can write to, and nobody does: what is in the place of a drive that is gone. */
  readonly nothing: string;
  readonly images: string;
  readonly keepers: string;
  readonly porters: string;
  readonly runtime: string;
  /** What CRIU found out about the kernel, by its version and the host's boot. */
  readonly criu: string;
  /** Of sandboxes that are gone, in directories by their ids: what sandboxes wrote, and none of them reaches any more. */
  readonly journals: string;
  /** What was found out about the host, for the next start. */
  readonly facts: string;
  /** Which ids of the host sandboxes have; chosen at the first start. */
  readonly ids: string;
  /** A null device of our own, to be the runtime's stdio. */
  readonly nullDevice: string;
  sandbox(id: SandboxId): SandboxPlaces;
  drive(id: DriveId): DrivePlaces;
}

export const markerOf = (installation: InstallationId, id: SandboxId | DriveId): string =>
  `holdfast-${installation}-${id}`;

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
    // Asked for many times in every pass over all sandboxes: paths that are clean already are only put together.
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
        keptJournals: `${journals}/${id}`,
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

/** To be passed through by the mapped root, by its group, and not to be listed. No other user of the host gets in. */
export const PASSABLE_BY_GROUP = 0o710;
const PRIVATE = 0o700;
/** To be looked at by everyone, and written to by nobody that has no rights over root's files. */
const CLOSED = 0o555;

/** `group` is the mapped root's: the runtime reaches roots, control directories and keepers with its rights. */
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

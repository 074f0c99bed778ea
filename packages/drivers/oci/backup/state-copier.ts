import { mkdirSync, readdirSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { type DriveId, type InstallationId, isSandboxId, type SandboxId } from "@holdfast/contract";
import { type Clock, systemClock } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { readMountNotes } from "../drives/mount-notes.ts";
import { namesIn } from "../files/checkpoint-files.ts";
import { MKFS } from "../files/disk.ts";
import { makeOwned } from "../files/sandbox-files.ts";
import { rememberedRange } from "../machine/id-range.ts";
import { type Layout, layoutOf, makeLayout } from "../machine/layout.ts";
import { readManifest } from "../machine/manifest.ts";
import { readOrder, readRecord, writeRecord } from "../machine/sandbox-notes.ts";
import { copyDrive } from "./copy-drive.ts";
import { type Copier, copySandbox, type SandboxCopy, type Sides } from "./copy-sandbox.ts";
import { copyImage, copyShared } from "./copy-shared.ts";

/** Time limit for the copy of one tree. It is long, because no caller with a deadline waits for a backup. */
const COPY_MS = 12 * 3_600_000;
/** Minimum disk space that a copy leaves free on the target's file system. */
const LEFT_FREE_BYTES = 256 * 1_048_576;

export interface CopierOptions {
  from: { stateDir: string; installation: InstallationId };
  to: { stateDir: string; installation: InstallationId };
  isSourceIdle: boolean;
  /** What the target becomes: a backup, or a state directory that a server starts in. */
  target: "backup" | "state";
  clock?: Clock;
}

/** Copies parts of one state directory to another, or to a backup. */
export class StateCopier {
  readonly #machine: Copier & { porter: Porter };
  readonly #sides: Sides;

  constructor({ from, to, isSourceIdle, target, clock = systemClock }: CopierOptions) {
    const source = layoutOf(from.stateDir, from.installation);
    const { stateDir } = to;
    const range = rememberedRange(source.ids);
    if (range === null) throw new Error(`${source.ids} is missing: this is not a state directory`);
    const porter = new Porter({ slowDeadlineMs: COPY_MS });
    this.#machine = { installation: to.installation, porter, idBase: range.base, mkfs: MKFS, clock };
    this.#sides = {
      from: source,
      to: layoutOf(stateDir, to.installation),
      isSourceIdle,
      withDisks: target === "state",
      maxBytes: () => Math.max(0, freeBytes(stateDir) - LEFT_FREE_BYTES),
    };
    if (target === "state") makeLayout(this.#sides.to, range.base);
    else makeBackupLayout(this.#sides.to);
  }

  shared(signal: AbortSignal): Promise<number> {
    return copyShared(this.#machine, this.#sides, signal);
  }

  /**
   * Copies the given version of an image, or all versions if none is given. Skips versions that the target already has.
   */
  image(name: string, signal: AbortSignal, version?: string): Promise<number> {
    return copyImage(this.#machine, this.#sides, name, signal, version);
  }

  /** The image of a copied sandbox. */
  imageOf(id: SandboxId): { name: string; version: string } {
    const order = readOrder(this.#sides.to, id);
    if (order === null) throw new Error("the copy of the sandbox does not name its image");
    return { name: order.image, version: order.imageVersion };
  }

  /** Unseals the mount points of drives in a copied sandbox, because an imported sandbox gets no drives. */
  async unseal(id: SandboxId): Promise<void> {
    const { to } = this.#sides;
    for (const { path, before } of readMountNotes(to, id))
      await this.#machine.porter.unseal({ root: to.sandbox(id).upper, path, before });
  }

  /** Creates the empty control directory in a sandbox's directory. */
  makeControl(dir: string): void {
    makeOwned(join(dir, "control"), 0o700, this.#machine.idBase);
  }

  removeTree(path: string): Promise<void> {
    return this.#machine.porter.removeTree(path);
  }

  sandbox(order: SandboxCopy, signal: AbortSignal): Promise<number> {
    return copySandbox(this.#machine, this.#sides, order, signal);
  }

  drive(id: DriveId, signal: AbortSignal): Promise<number> {
    return copyDrive(this.#machine, this.#sides, id, signal);
  }

  /** Removes the partial copy of a sandbox or drive. */
  async discard(id: SandboxCopy["id"] | DriveId): Promise<void> {
    const { to } = this.#sides;
    const { dir } = isSandboxId(id) ? to.sandbox(id) : to.drive(id as DriveId);
    await this.#machine.porter.removeTree(dir);
  }

  /** Changes the manifests of the copied checkpoints so that the checkpoints belong to the target's installation. */
  adoptCheckpoints(): void {
    const { to } = this.#sides;
    for (const id of readdirSync(to.sandboxes).filter(isSandboxId)) {
      const { checkpoints, saved } = to.sandbox(id);
      for (const among of [checkpoints, saved])
        for (const name of namesIn(among)) adopt(join(among, name, "manifest.json"), to);
    }
  }

  /** Resolves when everything that was copied is on disk. */
  sync(): Promise<void> {
    return this.#machine.porter.sync([this.#sides.to.stateDir]);
  }

  close(): void {
    this.#machine.porter.close();
  }
}

function adopt(path: string, { installation }: Layout): void {
  const manifest = readManifest(readRecord(path));
  if (manifest === null || manifest.installation === installation) return;
  writeRecord(path, { ...manifest, installation, takenIn: manifest.takenIn ?? manifest.installation });
}

function makeBackupLayout({ stateDir, sandboxes, drives, images, keepers, journals }: Layout): void {
  for (const dir of [stateDir, sandboxes, drives, images, keepers, journals])
    mkdirSync(dir, { recursive: true, mode: 0o700 });
}

function freeBytes(path: string): number {
  const { bavail, bsize } = statfsSync(path);
  return bavail * bsize;
}

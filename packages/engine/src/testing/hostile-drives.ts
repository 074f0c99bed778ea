import type { DriveId } from "@holdfast/contract";
import type { DriveDirectories, DriveObservation, Identity } from "../ports/index.ts";
import { type FakeDisk, fakeFiles } from "./hostile-files.ts";

/** Faults to inject. Each function is called right before the step that it affects. */
interface DriveFaults {
  /** Called before the drive is created. */
  make?: (id: DriveId, signal: AbortSignal) => Promise<void>;
  /** Called after the drive was created, before the call returns. */
  makeAnswer?: () => Promise<void>;
  open?: (id: DriveId) => Promise<void>;
  observe?: (id: DriveId) => DriveObservation | null;
  usage?: (signal: AbortSignal) => Promise<void>;
  /** Called before anything is removed. */
  destroy?: (id: DriveId, signal: AbortSignal) => Promise<void>;
  list?: () => Promise<void>;
}

interface FakeDrive extends FakeDisk {
  readonly ino: string;
  readonly sizeMb: number | null;
}

/** The directories of drives, in memory. They outlive servers, and tests can remove them. */
export class HostileDrives implements DriveDirectories {
  readonly directories = new Map<DriveId, FakeDrive>();
  readonly #taken = new Map<DriveId, FakeDrive>();
  faults: DriveFaults = {};
  /** Number of directories created. */
  made = 0;
  /** Number of calls to remove a directory. */
  destroys = 0;

  async make({ id, sizeMb }: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void> {
    await this.faults.make?.(id, signal);
    if (!this.directories.has(id)) this.put(id, sizeMb);
    await this.faults.makeAnswer?.();
  }

  /** Creates a directory. */
  put(id: DriveId, sizeMb: number | null = null): FakeDrive {
    this.made += 1;
    const drive = { ino: `drive ${this.made}`, sizeMb, full: null, files: new Map<string, Uint8Array>() };
    this.directories.set(id, drive);
    return drive;
  }

  async open(id: DriveId): Promise<void> {
    await this.faults.open?.(id);
  }

  async observe(ids: readonly DriveId[]): Promise<Map<DriveId, DriveObservation>> {
    return new Map(ids.map((id) => [id, this.faults.observe?.(id) ?? this.#see(id)]));
  }

  #see(id: DriveId): DriveObservation {
    const at = Date.now();
    if (this.directories.has(id)) return { seen: "present", at, problem: null };
    return { seen: "absent", at, leftovers: [] };
  }

  async usage(_id: DriveId, signal: AbortSignal) {
    await this.faults.usage?.(signal);
    return { usedBytes: 1, freeBytes: 2 };
  }

  async files(id: DriveId) {
    const drive = this.directories.get(id);
    if (drive === undefined) throw new Error("it is not there");
    return { files: fakeFiles(() => drive), close: async () => undefined };
  }

  async destroy(id: DriveId, signal: AbortSignal): Promise<void> {
    this.destroys += 1;
    await this.faults.destroy?.(id, signal);
    this.directories.delete(id);
  }

  async list(): Promise<DriveId[]> {
    await this.faults.list?.();
    return [...this.directories.keys()];
  }

  /** Hides the drive until `giveBack` is called. */
  take(id: DriveId): void {
    const drive = this.directories.get(id);
    if (drive === undefined) throw new Error("there is nothing to take");
    this.directories.delete(id);
    this.#taken.set(id, drive);
  }

  giveBack(id: DriveId): void {
    const drive = this.#taken.get(id);
    if (drive === undefined) throw new Error("it was not taken");
    this.#taken.delete(id);
    this.directories.set(id, drive);
  }

  /** Returns the identity of one of the drive's directories, as the host sees it; null if the drive is missing. */
  identity(id: DriveId, subpath: string): Identity | null {
    const drive = this.directories.get(id);
    return drive === undefined ? null : { dev: "1", ino: `${drive.ino}${subpath}` };
  }
}

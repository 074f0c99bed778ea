import type { DriveId } from "@holdfast/contract";
import type { DriveObservation, Drives, Identity } from "../ports.ts";
import { type FakeDisk, fakeFiles } from "./hostile-files.ts";

/** What can be made to go wrong. Each is consulted at the moment it would matter. */
export interface DriveFaults {
  /** Before anything is made, and when it is, before the caller hears of it. */
  make?: (id: DriveId, signal: AbortSignal) => Promise<void>;
  makeAnswer?: () => Promise<void>;
  open?: (id: DriveId) => Promise<void>;
  observe?: (id: DriveId) => DriveObservation | null;
  usage?: (signal: AbortSignal) => Promise<void>;
  /** Before anything is removed. */
  destroy?: (id: DriveId, signal: AbortSignal) => Promise<void>;
  list?: () => Promise<void>;
}

export interface FakeDrive extends FakeDisk {
  readonly ino: string;
  readonly sizeMb: number | null;
}

/** The directories of drives, in memory. They outlive servers, and can be taken away behind everybody's back. */
export class HostileDrives implements Drives {
  readonly directories = new Map<DriveId, FakeDrive>();
  readonly #taken = new Map<DriveId, FakeDrive>();
  faults: DriveFaults = {};
  /** How often directories came into being, and calls were made to remove one. */
  made = 0;
  destroys = 0;

  async make({ id, sizeMb }: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void> {
    await this.faults.make?.(id, signal);
    if (!this.directories.has(id)) this.put(id, sizeMb);
    await this.faults.makeAnswer?.();
  }

  /** A directory comes into being, whoever wants it. */
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

  /** It is not where it belongs, until it is given back. */
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

  /** Of one of its directories, as the host sees it; null where the drive is not there. */
  identity(id: DriveId, subpath: string): Identity | null {
    const drive = this.directories.get(id);
    return drive === undefined ? null : { dev: "1", ino: `${drive.ino}${subpath}` };
  }
}

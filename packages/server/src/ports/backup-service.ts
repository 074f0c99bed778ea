import type { Backup } from "@holdfast/contract";

/** Takes backups in the background. */
export interface BackupService {
  /** Begins a backup. Throws if one is being taken or if the directory can't be used. */
  begin(directory: string): Backup;
  /** The last backup that was begun; null if there was none. */
  last(): Backup | null;
}

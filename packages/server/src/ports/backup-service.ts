import type { Backup } from "@holdfast/contract";

/** Takes backups in the background. */
export interface BackupService {
  /** Starts a backup. Throws if one is in progress or if the directory can't be used. */
  begin(directory: string): Backup;
  /** The last backup that was started; null if there was none. */
  last(): Backup | null;
}

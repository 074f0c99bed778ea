import { type Backup, HoldfastError } from "@holdfast/contract";
import type { BackupService } from "@holdfast/server";
import { type BackupParts, type BackupProgress, requireBackupDirectory, takeBackup } from "./take-backup.ts";

/** Takes backups in the background, one at a time, and remembers the state of the last one. */
export class BackupJob implements BackupService {
  readonly #parts: BackupParts;
  readonly #stopping = new AbortController();
  #state: (() => Backup) | null = null;
  #running: Promise<void> | null = null;

  constructor(parts: BackupParts) {
    this.#parts = parts;
  }

  begin(directory: string): Backup {
    if (this.#running !== null) throw new HoldfastError("backup_running");
    const path = requireBackupDirectory(directory, this.#parts.stateDir);
    const { clock, log } = this.#parts;
    const progress: BackupProgress = { sandboxes: [], drives: [], skipped: [], sizeBytes: 0 };
    const startedAt = iso(clock.now());
    const end: { state: Backup["state"]; endedAt: string | null; error: string | null } = {
      state: "running",
      endedAt: null,
      error: null,
    };
    this.#state = () => ({
      ...{ ...end, directory: path, startedAt, sizeBytes: progress.sizeBytes },
      ...{ sandboxes: progress.sandboxes.length, drives: progress.drives.length },
      skipped: [...progress.skipped],
    });
    this.#running = takeBackup(this.#parts, path, progress, this.#stopping.signal)
      .then(
        () => {
          end.state = progress.skipped.length === 0 ? "done" : "incomplete";
        },
        (error: unknown) => {
          end.state = "failed";
          end.error = error instanceof Error ? error.message : String(error);
          log.error({ err: error, directory: path }, "a backup failed");
        },
      )
      .finally(() => {
        end.endedAt = iso(clock.now());
        this.#running = null;
      });
    return this.#state();
  }

  last(): Backup | null {
    return this.#state?.() ?? null;
  }

  /** Resolves when no backup is in progress. */
  async settled(): Promise<void> {
    await this.#running;
  }

  /** Aborts a backup in progress. The backup's directory then has no manifest, so a restore refuses it. */
  async stop(): Promise<void> {
    this.#stopping.abort(new HoldfastError("shutting_down"));
    await this.#running;
  }
}

const iso = (at: number): string => new Date(at).toISOString();

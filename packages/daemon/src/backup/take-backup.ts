import { existsSync, mkdirSync, readdirSync, realpathSync } from "node:fs";
import { basename, dirname, isAbsolute, join, resolve } from "node:path";
import { type DriveId, HoldfastError, type SandboxId } from "@holdfast/contract";
import { checkStateDir, StateCopier } from "@holdfast/drivers/oci";
import type { Clock, EngineApi, Log, SandboxRecord } from "@holdfast/engine";
import type { OpenedStore, Snapshot } from "@holdfast/store";
import { type DriveInBackup, type SandboxInBackup, writeManifest } from "./backup-manifest.ts";
import { type Group, groupsOf } from "./groups.ts";

export interface BackupParts {
  engine: Pick<EngineApi, "copyWhileFrozen">;
  store: OpenedStore;
  stateDir: string;
  version: string;
  clock: Clock;
  log: Log;
}

/** What a backup has copied and skipped so far. */
export interface BackupProgress {
  sandboxes: SandboxInBackup[];
  drives: DriveInBackup[];
  skipped: { kind: "sandbox" | "drive"; id: string; name: string; reason: string }[];
  sizeBytes: number;
}

/**
 * Maximum number of attempts to copy a group of sandboxes that share drives. A sandbox is copied again if its copy failed
 * or if its state changed during the copy.
 */
const ATTEMPTS = 5;
/** Maximum wait, in each attempt, until a sandbox is in a state in which it can be copied. */
const SETTLE_MS = 60_000;
const SETTLE_POLL_MS = 200;

/** Checks that a backup can be written to the directory. Returns its absolute path. */
export function requireBackupDirectory(directory: string, stateDir: string): string {
  const refusal = (message: string) => new HoldfastError("invalid_request", { message });
  if (!isAbsolute(directory)) throw refusal("The directory of a backup must be an absolute path.");
  const path = resolve(directory);
  if (existsSync(path) && readdirSync(path).length > 0)
    throw refusal("The directory of a backup must be empty or not exist yet.");
  const state = realpathSync(stateDir);
  if (`${realPathOf(path)}/`.startsWith(`${state}/`))
    throw refusal("The directory of a backup must be outside the server's state directory.");
  checkStateDir(path);
  return path;
}

/** Resolves the symbolic links in a path. Directories at the end of the path need not exist yet. */
function realPathOf(path: string): string {
  const above = dirname(path);
  if (existsSync(path) || above === path) return realpathSync(path);
  return join(realPathOf(above), basename(path));
}

/**
 * Takes a backup of the whole installation while the server runs.
 *
 * Each running sandbox is frozen while it is copied. All drives that it mounts, and all other running sandboxes that
 * mount these drives, are copied during the same freeze. A sandbox in standby is copied with its memory. The database
 * records of a sandbox are copied together with its files. The manifest is written last: a directory without a manifest
 * is not a backup.
 */
export async function takeBackup(
  parts: BackupParts,
  directory: string,
  progress: BackupProgress,
  signal: AbortSignal,
): Promise<void> {
  const { store, stateDir, clock, version } = parts;
  const { installation } = store;
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const takenAt = clock.now();
  const copier = new StateCopier({
    from: { stateDir, installation },
    to: { stateDir: directory, installation },
    isSourceIdle: false,
    target: "backup",
  });
  try {
    const snapshot = await store.snapshot(join(directory, "holdfast.db"));
    try {
      const records = await store.liveSandboxes();
      const drives = (await store.drives()).filter(({ phase }) => phase === "ready");
      const copy = new GroupCopy(parts, { copier, snapshot, progress });
      for (const group of groupsOf(records, drives)) await copy.run(group, signal);
      // Images are copied last. They still exist then, because an image is not removed while a sandbox needs it.
      progress.sizeBytes += await copier.shared(signal);
    } finally {
      snapshot.close();
    }
    await copier.sync();
    const { sandboxes, drives, skipped } = progress;
    await writeManifest(directory, { version, installation, takenAt, sandboxes, drives, skipped });
  } finally {
    copier.close();
  }
}

/**
 * Copies one sandbox without its checkpoints, or one drive. While a drive is copied, the running sandboxes that can
 * write to it are frozen.
 */
export async function copyAlone(
  parts: BackupParts,
  copier: StateCopier,
  { sandboxes, drives }: Group,
  signal: AbortSignal,
): Promise<void> {
  const progress: BackupProgress = { sandboxes: [], drives: [], skipped: [], sizeBytes: 0 };
  const snapshot: Snapshot = { refresh: () => undefined, close: () => undefined };
  const copy = new GroupCopy(parts, { copier, snapshot, progress, filesOnly: true });
  const writers = (await parts.store.liveSandboxes()).filter(
    ({ phase, mounts }) =>
      phase.name === "running" &&
      mounts.some(({ driveId, readOnly }) => !readOnly && drives.includes(driveId)),
  );
  await parts.engine.copyWhileFrozen(
    writers.map(({ id }) => id),
    (inner) => copy.run({ sandboxes, drives }, inner),
    signal,
  );
  const [failed] = progress.skipped;
  if (failed === undefined) return;
  const message = `${failed.name} could not be copied: ${failed.reason}`;
  throw new HoldfastError("internal", { message });
}

interface CopyParts {
  /** Whether checkpoints are left out. */
  filesOnly?: boolean;
  copier: StateCopier;
  snapshot: Snapshot;
  progress: BackupProgress;
}

/** Copies groups of sandboxes and drives into a backup. */
class GroupCopy {
  readonly #parts: BackupParts;
  readonly #copy: CopyParts;
  /** Ids of sandboxes that could not be copied. They are not copied again. */
  readonly #skipped = new Set<string>();
  #lastFailure = "it kept changing its state";

  constructor(parts: BackupParts, copy: CopyParts) {
    this.#parts = parts;
    this.#copy = copy;
  }

  /** Copies a group. A sandbox or drive that can't be copied is recorded as skipped, with the reason. */
  async run(group: Group, signal: AbortSignal): Promise<void> {
    let rest: Group = group;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      try {
        rest = await this.#attempt(rest, signal);
        if (rest.sandboxes.length + rest.drives.length === 0) return;
      } catch (error) {
        signal.throwIfAborted();
        this.#noteFailure(error);
        await this.#discard(rest);
      }
      await this.#parts.clock.sleep(SETTLE_POLL_MS, signal);
    }
    await this.#skip(rest, this.#lastFailure);
  }

  /** Tries once to copy a group. Returns the part of the group that must be copied again. */
  async #attempt(group: Group, signal: AbortSignal): Promise<Group> {
    const records = await this.#settled(group.sandboxes, signal);
    const running = records.filter(({ phase }) => phase.name === "running");
    const others = records.filter(({ phase }) => phase.name !== "running");
    const drives: DriveInBackup[] = [];
    const sandboxes: SandboxInBackup[] = [];
    await this.#parts.engine.copyWhileFrozen(
      running.map(({ id }) => id),
      async (inner) => {
        drives.length = 0;
        for (const record of running) sandboxes.push(await this.#copySandbox(record, inner));
        for (const id of group.drives) drives.push(await this.#copyDrive(id, inner));
      },
      signal,
    );
    this.#done(sandboxes, drives);
    const rest: SandboxId[] = [];
    for (const record of others) if (!(await this.#copySettled(record, signal))) rest.push(record.id);
    return { sandboxes: rest, drives: [] };
  }

  #noteFailure(error: unknown): void {
    this.#lastFailure = error instanceof Error ? error.message : String(error);
    this.#parts.log.warn(
      { reason: this.#lastFailure },
      "copying a sandbox or drive for a backup failed, retrying",
    );
  }

  #done(sandboxes: readonly SandboxInBackup[], drives: readonly DriveInBackup[]): void {
    const { progress } = this.#copy;
    progress.sandboxes.push(...sandboxes);
    progress.drives.push(...drives);
    for (const { sizeBytes } of [...sandboxes, ...drives]) progress.sizeBytes += sizeBytes;
  }

  /**
   * Waits until the sandboxes are in a state in which they can be copied, and returns their records. Leaves out
   * sandboxes that were deleted or have no files yet. Skips a sandbox, with a reason, if it can't be copied before the
   * time limit.
   */
  async #settled(ids: readonly SandboxId[], signal: AbortSignal): Promise<SandboxRecord[]> {
    const { clock, store } = this.#parts;
    const { snapshot } = this.#copy;
    const records: SandboxRecord[] = [];
    const end = clock.now() + SETTLE_MS;
    for (const id of ids.filter((each) => !this.#skipped.has(each))) {
      for (;;) {
        const record = await store.sandbox(id);
        if (record === null || record.phase.name === "gone" || isUnlaunched(record)) {
          snapshot.refresh(id);
          break;
        }
        if (isSettled(record)) {
          records.push(record);
          break;
        }
        if (clock.now() > end) {
          const reason = `it stayed ${record.phase.name}, a state in which it cannot be copied`;
          await this.#skip({ sandboxes: [id], drives: [] }, reason);
          break;
        }
        await clock.sleep(SETTLE_POLL_MS, signal);
      }
    }
    return records;
  }

  async #copySandbox(record: SandboxRecord, signal: AbortSignal): Promise<SandboxInBackup> {
    const { copier, snapshot, filesOnly = false } = this.#copy;
    const { id, name, phase, spec } = record;
    await copier.discard(id);
    const memory = phase.name === "standby" && !filesOnly ? (phase.checkpoint?.id ?? null) : null;
    const saved = filesOnly
      ? []
      : (await this.#parts.store.checkpoints(id)).map((checkpoint) => checkpoint.id);
    const { diskMb } = spec.resources;
    const sizeBytes = await copier.sandbox({ id, diskMb, checkpoint: memory, saved }, signal);
    snapshot.refresh(id);
    return { id, name, phase: phase.name, diskMb: diskMb ?? null, memory: memory !== null, sizeBytes };
  }

  async #copyDrive(id: DriveId, signal: AbortSignal): Promise<DriveInBackup> {
    const { copier } = this.#copy;
    await copier.discard(id);
    const sizeBytes = await copier.drive(id, signal);
    return { id, name: await this.#driveName(id), sizeBytes };
  }

  async #driveName(id: DriveId): Promise<string> {
    return (await this.#parts.store.drives()).find((drive) => drive.id === id)?.name ?? id;
  }

  /**
   * Copies a sandbox that has no running processes. Returns false if the copy failed, or if the sandbox's state changed
   * meanwhile.
   */
  async #copySettled(record: SandboxRecord, signal: AbortSignal): Promise<boolean> {
    let copied: SandboxInBackup | null = null;
    try {
      copied = await this.#copySandbox(record, signal);
    } catch (error) {
      signal.throwIfAborted();
      this.#noteFailure(error);
    }
    const now = await this.#parts.store.sandbox(record.id);
    if (copied !== null && now !== null && isSameState(record, now)) {
      this.#done([copied], []);
      return true;
    }
    await this.#copy.copier.discard(record.id);
    return false;
  }

  async #discard({ sandboxes, drives }: Group): Promise<void> {
    for (const id of [...sandboxes, ...drives]) await this.#copy.copier.discard(id);
  }

  async #skip({ sandboxes, drives }: Group, reason: string): Promise<void> {
    const { progress, snapshot } = this.#copy;
    for (const id of sandboxes.filter((each) => !this.#skipped.has(each))) {
      this.#skipped.add(id);
      const record = await this.#parts.store.sandbox(id).catch(() => null);
      snapshot.refresh(id);
      progress.skipped.push({ kind: "sandbox", id, name: record?.name ?? id, reason });
    }
    for (const id of drives)
      progress.skipped.push({ kind: "drive", id, name: await this.#driveName(id), reason });
  }
}

/** Whether the sandbox has no files yet: it was created, and has not run. */
const isUnlaunched = ({ phase, restarts }: SandboxRecord): boolean =>
  (phase.name === "queued" || phase.name === "launching") && restarts === null;

/** Whether the sandbox is in a state in which it can be copied: running or paused, or at rest without a lease. */
function isSettled({ phase, lease }: SandboxRecord): boolean {
  if (phase.name === "running" || phase.name === "paused") return true;
  const isAtRest = phase.name === "standby" || phase.name === "failed";
  return isAtRest && lease.state === "none";
}

const isSameState = (before: SandboxRecord, after: SandboxRecord): boolean =>
  before.phase.name === after.phase.name &&
  before.transitionedAt === after.transitionedAt &&
  before.generation === after.generation &&
  before.lease.state === after.lease.state;

import { copyFileSync, existsSync, mkdirSync, readdirSync, realpathSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { type CheckpointId, type InstallationId, newInstallationId } from "@holdfast/contract";
import { checkStateDir, clearDirectory, NoRoomForBackup, StateCopier } from "@holdfast/drivers/oci";
import type { Clock, SandboxRecord } from "@holdfast/engine";
import {
  holdStateDirectory,
  type OpenedStore,
  openStore,
  readInstallation,
  renameInstallation,
} from "@holdfast/store";
import { StartFailure } from "../start-failure.ts";
import { MANIFEST_FILE, readManifest, writeDurably } from "./backup-manifest.ts";
import { copiedFrom, hasCopiedParts, isUnplaced, RESTORING_FILE, recordPlace } from "./copied-state-dir.ts";
import { restoredRecord } from "./restored-record.ts";

type RestoredState = "with memory" | "cold" | "failed" | "not restored";

/** What a restore has made. */
interface Restored {
  installation: InstallationId;
  sandboxes: { id: string; name: string; state: RestoredState; reason: string | null }[];
  drives: { id: string; name: string; reason: string | null }[];
}

/** The source of a restore: a backup, or a state directory that was copied while no server used it. */
interface Source {
  directory: string;
  installation: InstallationId;
  takenAt: number;
}

const DATABASE = "holdfast.db";
const LOGS = ["-wal", "-shm"];

/**
 * Restores a backup, or a copied state directory, into a new state directory. The restored installation gets a new
 * identity, so that its server never touches anything of the original. The source is not changed. Until the last step
 * the target contains a file that makes a server refuse to start there. To repeat a restore that was interrupted, call
 * this function again with the same directories.
 */
export async function restoreBackup(
  { from, to, clock }: { from: string; to: string; clock: Clock },
  print: (line: string) => void,
  signal: AbortSignal,
): Promise<Restored> {
  if (!existsSync(from)) throw new StartFailure(`${from} does not exist.`, "Name the directory of a backup.");
  if (!existsSync(join(from, MANIFEST_FILE)) && !existsSync(join(from, DATABASE))) throw notBackup(from);
  const target = resolve(to);
  requireTarget(target, from);
  // A copied state directory has a lock, which is taken here because a server might use the directory. A backup has no
  // lock.
  const sourceHold = existsSync(join(from, MANIFEST_FILE)) ? null : holdStateDirectory(from);
  try {
    const source = await openSource(from, clock);
    // The target is created only after the source was opened. If the source is not a backup, no empty directory is
    // left.
    mkdirSync(target, { recursive: true, mode: 0o700 });
    const hold = holdStateDirectory(target);
    try {
      requireTarget(target, from);
      return await fillTarget({ source, target, clock }, print, signal);
    } finally {
      hold.release();
    }
  } finally {
    sourceHold?.release();
  }
}

async function fillTarget(
  { source, target, clock }: Pick<Filling, "source" | "target" | "clock">,
  print: (line: string) => void,
  signal: AbortSignal,
): Promise<Restored> {
  const installation = newInstallationId();
  await clearTarget(target);
  writeDurably(join(target, RESTORING_FILE), `${JSON.stringify({ from: source.directory })}\n`);
  const copier = new StateCopier({
    from: { stateDir: source.directory, installation: source.installation },
    to: { stateDir: target, installation },
    isSourceIdle: true,
    target: "state",
  });
  try {
    return await fill({ source, target, installation, copier, clock }, print, signal);
  } finally {
    copier.close();
  }
}

interface Filling {
  source: Source;
  target: string;
  installation: InstallationId;
  copier: StateCopier;
  clock: Clock;
}

async function fill(
  { source, target, installation, copier, clock }: Filling,
  print: (line: string) => void,
  signal: AbortSignal,
): Promise<Restored> {
  const path = join(target, DATABASE);
  for (const suffix of ["", ...LOGS]) {
    const file = join(source.directory, `${DATABASE}${suffix}`);
    if (existsSync(file)) copyFileSync(file, `${path}${suffix}`);
  }
  const store = await openStore({ path, onUnreadable: (error) => print(`Not restored: ${error.message}`) });
  let restored: Restored;
  try {
    await copier.shared(signal);
    const drives = await restoreDrives(source, store, copier, signal);
    const sandboxes = await restoreSandboxes({ source, copier, clock }, store, print, signal);
    await silenceDeliveries(store, clock.now());
    copier.adoptCheckpoints();
    restored = { installation, sandboxes, drives };
  } finally {
    await store.close();
  }
  renameInstallation(path, installation);
  await copier.sync();
  recordPlace(target, installation);
  rmSync(join(target, RESTORING_FILE));
  return restored;
}

async function restoreDrives(
  { directory }: Source,
  store: OpenedStore,
  copier: StateCopier,
  signal: AbortSignal,
): Promise<Restored["drives"]> {
  const restored: Restored["drives"] = [];
  for (const { id, name } of await store.drives()) {
    const isThere = existsSync(join(directory, "drives", id, "drive.json"));
    const reason = isThere
      ? await failureOf(copier, id, () => copier.drive(id, signal), signal)
      : "it is not in the backup";
    if (reason !== null) await store.commit({ changes: [{ kind: "drive.remove", id }] });
    restored.push({ id, name, reason });
  }
  return restored;
}

/**
 * Runs `copy`. Returns null if `copy` succeeds. If the disk is full, rethrows the error, which ends the restore,
 * because nothing else would fit on the disk either. If `copy` fails for another reason, returns that reason.
 */
async function failureOf(
  copier: StateCopier,
  id: Parameters<StateCopier["discard"]>[0],
  copy: () => Promise<unknown>,
  signal: AbortSignal,
): Promise<string | null> {
  try {
    await copy();
    return null;
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof NoRoomForBackup) throw error;
    await copier.discard(id);
    return error instanceof Error ? error.message : String(error);
  }
}

async function restoreSandboxes(
  { source, copier, clock }: Pick<Filling, "source" | "copier" | "clock">,
  store: OpenedStore,
  print: (line: string) => void,
  signal: AbortSignal,
): Promise<Restored["sandboxes"]> {
  const restored: Restored["sandboxes"] = [];
  for (const record of await store.liveSandboxes()) {
    const { id, name } = record;
    const files = join(source.directory, "sandboxes", id);
    const isThere = existsSync(join(files, "order.json")) && isLaunched(record);
    const checkpoint = keptCheckpoint(record, files);
    const saved = await keptCheckpoints(store, record, files);
    const { diskMb } = record.spec.resources;
    if (isThere) print(`Restoring sandbox ${name}`);
    const reason = isThere
      ? await failureOf(copier, id, () => copier.sandbox({ id, diskMb, checkpoint, saved }, signal), signal)
      : null;
    const hasFiles = isThere && reason === null;
    const facts = { now: clock.now(), takenAt: source.takenAt, hasFiles, hasMemory: checkpoint !== null };
    const next = restoredRecord(record, facts);
    await store.commit({
      changes: [{ kind: "sandbox.update", record: next.record, expectedRevision: record.revision }],
      events: next.events,
    });
    const state = stateOf(next.record);
    restored.push({ id, name, state, reason: state === "not restored" ? (reason ?? ABSENT) : null });
  }
  return restored;
}

const ABSENT = "it is not in the backup";

/** Returns the id of the standby checkpoint in a record, if the source contains that checkpoint. */
function keptCheckpoint({ phase }: SandboxRecord, files: string): CheckpointId | null {
  const id = phase.name === "standby" ? (phase.checkpoint?.id ?? null) : null;
  return id !== null && existsSync(join(files, "checkpoints", id, "manifest.json")) ? id : null;
}

/**
 * Returns the ids of the named checkpoints that the source contains. Removes the records of all other named checkpoints
 * of the sandbox.
 */
async function keptCheckpoints(
  store: OpenedStore,
  { id }: SandboxRecord,
  files: string,
): Promise<CheckpointId[]> {
  const kept: CheckpointId[] = [];
  for (const { id: each } of await store.checkpoints(id)) {
    if (existsSync(join(files, "saved", each, "manifest.json"))) kept.push(each);
    else await store.commit({ changes: [{ kind: "checkpoint.remove", id: each }] });
  }
  return kept;
}

/**
 * Whether the sandbox's first launch is complete. If it is not complete, the sandbox's files are not restored, because
 * the next launch creates them again.
 */
const isLaunched = ({ phase, restarts }: SandboxRecord): boolean =>
  restarts !== null || (phase.name !== "queued" && phase.name !== "launching");

function stateOf({ phase }: SandboxRecord): Restored["sandboxes"][number]["state"] {
  if (phase.name === "failed") return "failed";
  if (phase.name === "standby" && phase.checkpoint !== null) return "with memory";
  return phase.name === "gone" ? "not restored" : "cold";
}

/**
 * Sets all pending webhook deliveries to the state `dead`, so that this installation does not send them: the original
 * installation sends them.
 */
async function silenceDeliveries(store: OpenedStore, now: number): Promise<void> {
  for (;;) {
    const pending = await store.deliveries({ state: "pending", limit: 100 });
    if (pending.length === 0) return;
    const lastError = `The installation was restored from a backup at ${new Date(now).toISOString()}; its original delivers this message.`;
    await store.commit({
      changes: pending.map((record) => ({
        kind: "delivery.update",
        record: { ...record, state: "dead", nextAttemptAt: null, lastError },
      })),
    });
  }
}

async function openSource(from: string, clock: Clock): Promise<Source> {
  const directory = realpathSync(from);
  const manifest = await readManifest(directory);
  if (manifest !== null) return { directory, installation: manifest.installation, takenAt: manifest.takenAt };
  if (!existsSync(join(directory, DATABASE))) throw notBackup(from);
  if (existsSync(join(directory, RESTORING_FILE)))
    throw new StartFailure(
      `${from} is the target of a restore that did not finish.`,
      "Restore from the backup itself.",
    );
  if (!isUnplaced(directory) && copiedFrom(directory) === null && !hasCopiedParts(directory))
    throw new StartFailure(
      `${from} is an installation, and not a backup or a copy of one.`,
      `Take a backup of it: 'HOLDFAST_DIR=${from} holdfast backup DIR', and restore that.`,
    );
  if (!existsSync(join(directory, "ids.json")))
    throw new StartFailure(
      `${from} is an incomplete backup: it has no ${MANIFEST_FILE}.`,
      "Remove the directory and take the backup again.",
    );
  const installation = readInstallation(join(directory, DATABASE));
  if (installation === null)
    throw new StartFailure(`The database in ${from} can't be read.`, "Restore another backup.");
  return { directory, installation, takenAt: clock.now() };
}

const notBackup = (from: string): StartFailure =>
  new StartFailure(
    `${from} is not a backup.`,
    `A complete backup contains ${MANIFEST_FILE}. If a backup was interrupted, remove the directory and take it again.`,
  );

/** Checks that the restore may write to the target. Changes nothing. */
function requireTarget(target: string, from: string): void {
  checkStateDir(target);
  if (`${target}/`.startsWith(`${resolve(from)}/`))
    throw new StartFailure(
      "The target of a restore must be outside its source.",
      "Choose another directory.",
    );
  const names = existsSync(target) ? readdirSync(target) : [];
  if (names.length === 0 || names.includes(RESTORING_FILE) || names.every(isLock)) return;
  throw new StartFailure(
    `${target} is not empty: a restore never overwrites anything.`,
    "Choose a directory that does not exist. To replace an installation, stop its server and move its directory aside first.",
  );
}

const isLock = (name: string): boolean => /^lock\.(db(-journal)?|pid)$/.test(name);

/** Removes what an interrupted restore left in the target. */
async function clearTarget(target: string): Promise<void> {
  if (!existsSync(join(target, RESTORING_FILE))) return;
  await clearDirectory(target, (name) => isLock(name) || name === RESTORING_FILE);
}

import { createHash } from "node:crypto";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { Checkpoint, CheckpointOrder } from "@holdfast/engine";
import { boundMounts, externalsOf } from "../drives/bound-mounts.ts";
import { holdsLock } from "../drives/drive-locks.ts";
import { type MountNote, readMountNotes } from "../drives/mount-notes.ts";
import {
  type CheckpointPlaces,
  checkpointPlaces,
  discard,
  imagesIn,
  verifyWhole,
} from "../files/checkpoint-files.ts";
import { readMapped } from "../files/mapped-files.ts";
import { lostWritePaths, readWritePaths } from "../files/write-paths.ts";
import { findInit } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { MANIFEST_VERSION, type Manifest } from "../machine/manifest.ts";
import { seenPath } from "../machine/runtime.ts";
import { readInstance, readOrder } from "../machine/sandbox-notes.ts";
import { StandbyRefusal, standbySteps } from "../machine/step-errors.ts";
import { isPropagating, parseMounts } from "../proc/mount-table.ts";
import { countSockets, readCgroups, readExecutable } from "../proc/proc-files.ts";
import { dumpArgv } from "./criu-argv.ts";
import { removeComparedFields } from "./criu-images.ts";
import { makeWorkDir, removeWorkDir, requireCriu, runCriu } from "./run-criu.ts";
import { sourcePaths } from "./source-paths.ts";
import { waitForVforks } from "./vforks.ts";

const DUMP_MS = 110_000;
/** CRIU's image of the files that processes have open. */
const FILES_IMAGE = "files.img";
/**
 * Time that an aborted dump gets to finish before CRIU is killed. A killed CRIU may leave code that it injected in one
 * of the dumped processes.
 */
const GRACE_MS = 10_000;
const REFREEZE_MS = 5_000;
/** Number of sockets that a keeper without links has open: only its listening socket. */
const KEEPER_SOCKETS = 1;
const LINKS_CLOSE_MS = 3_000;
const LINKS_POLL_MS = 1;

/**
 * Writes a standby checkpoint: images, checksums, manifest, and at last the final name. Each is on disk before the next
 * is written, so a directory with a checkpoint's name is complete, and the sandbox's files are on disk as well. The
 * caller has frozen the process tree, and it stays frozen.
 */
export async function checkpoint(
  machine: Machine,
  order: CheckpointOrder,
  signal: AbortSignal,
  superseded: AbortSignal,
): Promise<Checkpoint> {
  const step = standbySteps(machine, order, AbortSignal.any([signal, superseded]));
  const places = checkpointPlaces(machine.layout, order.sandboxId, order.id);
  const complaint = "its memory could not be written";
  try {
    const draft = await step({ name: "dump", code: "checkpoint_dump", complaint }, async () => {
      await makePart(machine, places);
      return dump(machine, order, places, signal, superseded);
    });
    const { takenAt, sizeBytes } = await step({ name: "seal", code: "checkpoint_seal", complaint }, () =>
      seal(machine, order, places, draft),
    );
    return { id: order.id, generation: order.generation, takenAt, sizeBytes };
  } catch (error) {
    await removePart(machine, order.sandboxId, places);
    throw error;
  }
}

/**
 * Creates the directory of an unfinished checkpoint. At any time a sandbox has at most one unfinished standby
 * checkpoint and one unfinished named checkpoint. So any other directory of the same kind with the suffix `.part` is
 * left from an aborted checkpoint, and is removed.
 */
export async function makePart(machine: Machine, { among, whole, part }: CheckpointPlaces): Promise<void> {
  if (existsSync(whole)) throw new StandbyRefusal("a checkpoint with this id exists already");
  await discard(machine, among, (name) => name.endsWith(".part"));
  mkdirSync(among, { recursive: true, mode: 0o700 });
  mkdirSync(part, { mode: 0o700 });
  mkdirSync(imagesIn(part), { mode: 0o700 });
}

export async function removePart(
  { porter, log }: Machine,
  sandboxId: SandboxId,
  { part }: CheckpointPlaces,
): Promise<void> {
  await porter.removeTree(part).catch((failure: unknown) => {
    log.warn({ sandboxId, error: String(failure) }, "an aborted checkpoint could not be removed");
  });
}

/** The manifest without the fields that are known only when the images are complete. */
type Draft = Omit<Manifest, "images" | "sizeBytes" | "takenAt">;

/**
 * Number of processes that CRIU itself needs in the sandbox's own cgroup during a restore. A sandbox is dumped only if
 * its limit on processes has room for that many.
 */
const RESTORE_PIDS = 3;

function pidsLeft({ cgroups }: Machine, id: CheckpointOrder["sandboxId"]): number {
  const { pids } = cgroups.limits(id);
  return pids === null ? Number.POSITIVE_INFINITY : pids - (cgroups.counters(id)?.processes ?? 0);
}

/**
 * Finds the requested instance and its notes. Throws if the instance does not run, has another generation, or is not
 * frozen.
 */
function requireFrozen(machine: Machine, { sandboxId, generation }: CheckpointOrder) {
  const { cgroups, layout } = machine;
  const note = readInstance(layout, sandboxId);
  const made = readOrder(layout, sandboxId);
  const init = findInit(machine, sandboxId);
  if (note === null || init === null || made === null || note.pid !== init.pid) {
    throw new StandbyRefusal("there is no instance");
  }
  if (note.generation !== generation) throw new StandbyRefusal("another instance of the sandbox is running");
  if (!cgroups.isFrozen(sandboxId)) throw new StandbyRefusal("the instance is not frozen");
  return { note, made, init };
}

/** The part of the manifest that is known before anything is written. */
export function draftOf(machine: Machine, order: CheckpointOrder): Draft {
  const { note, made } = requireFrozen(machine, order);
  return {
    version: MANIFEST_VERSION,
    id: order.id,
    installation: machine.installation,
    sandboxId: order.sandboxId,
    generation: order.generation,
    arch: process.arch,
    criuVersion: machine.criu?.version ?? "none",
    keeperVersion: note.keeperVersion,
    image: made.image,
    imageVersion: made.imageVersion,
    config: digestOf(join(machine.layout.sandbox(order.sandboxId).bundle, "config.json")),
    mounts: [],
    closed: readMountNotes(machine.layout, order.sandboxId).map(({ path, before }) => ({ path, before })),
    mapped: [],
  };
}

/** Writes the sandbox's memory into the `images` directory of an unfinished checkpoint. */
export async function dump(
  machine: Machine,
  order: CheckpointOrder,
  { part }: CheckpointPlaces,
  signal: AbortSignal,
  superseded: AbortSignal,
): Promise<Draft> {
  const { cgroups, layout } = machine;
  const { sandboxId } = order;
  const criu = requireCriu(machine);
  const places = layout.sandbox(sandboxId);
  const images = imagesIn(part);
  const { note, made, init } = requireFrozen(machine, order);
  const drives = readMountNotes(layout, sandboxId);
  if (holdsLock(layout, drives, cgroups.members(sandboxId)))
    throw new StandbyRefusal("a program holds a lock on a file in a drive");
  if (!existsSync(join(layout.keepers, note.keeperVersion, "keeper")))
    throw new StandbyRefusal("its keeper's program is missing on the host, and a wake needs it");
  const known = note.writePaths ?? readWritePaths(places);
  if (lostWritePaths(places, known, { isDiskUsable: true, keeperPid: init.pid }).length > 0)
    throw new StandbyRefusal("some of its files are missing on the host, and a wake needs them");
  if (pidsLeft(machine, sandboxId) < RESTORE_PIDS)
    throw new StandbyRefusal("it has nearly reached its limit on processes, and a wake needs a few more");
  await waitForLinksToClose(machine, sandboxId, init.pid, signal);
  await waitForVforks(machine, sandboxId, signal);
  // A restore reads some of CRIU's images with the rights of the sandbox's root, through a file descriptor of the
  // directory `images`. So the sandbox's root gets read access. Processes in the sandbox still can't open the
  // directory's path, because only the host's root can access its parent directories.
  chownSync(images, 0, machine.idBase);
  chmodSync(images, 0o750);
  const image = machine.images.resolve(made.image, made.imageVersion);
  const inside = parseMounts(readFileSync(`/proc/${init.pid}/mountinfo`, "utf8"));
  if (isPropagating(inside))
    throw new StandbyRefusal(
      "its mounts still receive mounts of the host; this ends when the sandbox is restarted",
    );
  const mounts = boundMounts(inside, { hostDirs: image.hostDirs, drives });
  const mapped = readMapped(cgroups.members(sandboxId), image.hostDirs);
  const argv = dumpArgv({
    binary: criu.path,
    pid: init.pid,
    images,
    work: makeWorkDir(machine, sandboxId),
    root: seenPath(machine, places.root),
    freezer: cgroups.freezer(sandboxId),
    controllers: cgroups.controllersOf(sandboxId, readCgroups(init.pid) ?? ""),
    externals: externalsOf(mounts, sourcePaths(machine, sandboxId, note.keeperVersion)),
  });
  const late = delayed(signal, GRACE_MS);
  try {
    const ended = AbortSignal.any([late.signal, superseded]);
    await runCriu(machine, { sandboxId, argv, deadlineMs: DUMP_MS }, ended);
    if (drives.length > 0) removeSharedFileChecks(images, drives);
  } finally {
    late.clear();
    // CRIU freezes the process tree again at the end of a dump. A killed CRIU has not done that, so the tree is frozen
    // here. The exception is a dump that a stop superseded, because the stop must not wait for a freeze.
    if (!superseded.aborted) await cgroups.freeze(sandboxId, AbortSignal.timeout(REFREEZE_MS));
    removeWorkDir(machine, sandboxId);
  }
  return { ...draftOf(machine, order), mounts, mapped };
}

/**
 * Waits until the keeper has closed its end of every link. A keeper that was frozen right after the server closed a
 * link may still have the link's socket open. This socket belongs to the host's network, so CRIU can't dump it. A child
 * that the keeper has just forked has the socket open too, until it executes its command. In both cases the sandbox is
 * thawed for a short time, so that the socket is closed.
 */
async function waitForLinksToClose(
  { cgroups, clock }: Machine,
  id: SandboxId,
  pid: number,
  signal: AbortSignal,
): Promise<void> {
  const program = readExecutable(pid);
  const isLinked = () => countSockets(pid) > KEEPER_SOCKETS;
  const isForking = () =>
    cgroups.members(id).some((each) => each !== pid && readExecutable(each) === program);
  if (!isLinked() && !isForking()) return;
  const end = clock.now() + LINKS_CLOSE_MS;
  try {
    await cgroups.thaw(id, signal);
    while ((isLinked() || isForking()) && clock.now() <= end) await clock.sleep(LINKS_POLL_MS, signal);
    if (isLinked()) throw new StandbyRefusal("its keeper still has an open link");
  } finally {
    await cgroups.freeze(id, AbortSignal.timeout(REFREEZE_MS));
  }
}

/**
 * Removes the sizes and modes of files in drives from CRIU's images, because other sandboxes may change these files
 * before the restore.
 */
function removeSharedFileChecks(images: string, drives: readonly MountNote[]): void {
  const isShared = (name: string) => drives.some(({ path }) => name === path || name.startsWith(`${path}/`));
  const path = join(images, FILES_IMAGE);
  if (existsSync(path)) writeFileSync(path, removeComparedFields(readFileSync(path), isShared));
}

/** Writes the checksums and the manifest, syncs everything to disk, and then gives the checkpoint its final name. */
export async function seal(
  machine: Machine,
  order: CheckpointOrder,
  { among, whole, part }: CheckpointPlaces,
  draft: Draft,
): Promise<Manifest> {
  const { layout, porter, clock } = machine;
  const { disk } = layout.sandbox(order.sandboxId);
  const written = existsSync(disk) ? [among, disk] : [among];
  const [sums] = await Promise.all([porter.sums(imagesIn(part)), porter.sync(written)]);
  if (sums === null || (sums.size === 0 && draft.mounts.length > 0)) throw new Error("CRIU left no images");
  const files = [...sums].map(([name, { size, sum }]) => ({ name, size, sum }));
  const sizeBytes = files.reduce((total, { size }) => total + size, 0);
  const manifest: Manifest = { ...draft, takenAt: clock.now(), sizeBytes, images: files };
  await writeDurably(join(part, "manifest.json"), JSON.stringify(manifest));
  await syncDirectory(part);
  renameSync(part, whole);
  await syncDirectory(among);
  return verifyWhole(layout, whole, order);
}

async function writeDurably(path: string, text: string): Promise<void> {
  const file = await open(path, "wx", 0o600);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  await directory.sync().finally(() => directory.close());
}

export const digestOf = (path: string): string =>
  createHash("sha256").update(readFileSync(path)).digest("hex");

/** Returns a signal that aborts `ms` milliseconds after the given signal has aborted. */
function delayed(signal: AbortSignal, ms: number): { signal: AbortSignal; clear(): void } {
  const controller = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const begin = () => {
    timer = setTimeout(() => controller.abort(signal.reason), ms);
  };
  if (signal.aborted) begin();
  else signal.addEventListener("abort", begin, { once: true });
  return {
    signal: controller.signal,
    clear: () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", begin);
    },
  };
}

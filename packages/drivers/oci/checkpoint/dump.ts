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
import { boundMounts, externalsOf } from "./bound-mounts.ts";
import { controllersOf } from "./cgroup.ts";
import { type CheckpointPlaces, checkpointPlaces, discard, imagesIn, verifyWhole } from "./checkpoints.ts";
import { dumpArgv } from "./criu.ts";
import { forgetCompared } from "./criu-images.ts";
import { makeWorkDir, removeWorkDir, requireCriu, runCriu } from "./criu-run.ts";
import { holdsLock } from "./drive-locks.ts";
import type { Machine } from "./machine.ts";
import { MANIFEST_VERSION, type Manifest } from "./manifest.ts";
import { readMapped } from "./mapped-files.ts";
import { type MountNote, readMountNotes } from "./mount-notes.ts";
import { parseMounts } from "./mounts.ts";
import { findInit } from "./observe.ts";
import { countSockets, readCgroups, readExecutable } from "./processes.ts";
import { readInstance, readOrder } from "./record.ts";
import { seenPath } from "./runtime.ts";
import { sourcePaths } from "./source-paths.ts";
import { StandbyRefusal } from "./standby-refusal.ts";
import { standbySteps } from "./standby-step.ts";

const DUMP_MS = 110_000;
/** Of the files that processes have open. */
const FILES_IMAGE = "files.img";
/** A dump that is no longer wanted may finish for so long: one that is killed can leave a process with its foot in the door. */
const GRACE_MS = 10_000;
const REFREEZE_MS = 5_000;
/** The one that it listens on. */
const KEEPER_SOCKETS = 1;
const LINKS_GO_MS = 3_000;
const LINKS_POLL_MS = 1;

/**
 * Images, sums, manifest, name: in that order, each on disk before the next, so that what has a checkpoint's name is whole,
 * and the files that it goes with are on their disk as well. The tree stays frozen from before the first to after the last.
 */
export async function checkpoint(
  machine: Machine,
  order: CheckpointOrder,
  signal: AbortSignal,
  overtaken: AbortSignal,
): Promise<Checkpoint> {
  const step = standbySteps(machine, order, AbortSignal.any([signal, overtaken]));
  const places = checkpointPlaces(machine.layout, order.sandboxId, order.id);
  const complaint = "its memory could not be written";
  try {
    const draft = await step({ name: "dump", code: "checkpoint_dump", complaint }, async () => {
      await makePart(machine, places);
      return dump(machine, order, places, signal, overtaken);
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

/** Only one checkpoint of a kind is made at a time: what has the suffix was broken off. */
export async function makePart(machine: Machine, { among, whole, part }: CheckpointPlaces): Promise<void> {
  if (existsSync(whole)) throw new StandbyRefusal("there is a checkpoint of that id");
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
    log.warn({ sandboxId, error: String(failure) }, "a broken-off checkpoint stays");
  });
}

/** All of the manifest but what is known only of the finished images. */
export type Draft = Omit<Manifest, "images" | "sizeBytes" | "takenAt">;

/** The frozen instance that is meant, and what the driver knows of it. */
/** Helpers that CRIU starts in the sandbox's own cgroup while it restores. */
const RESTORE_PIDS = 3;

function pidsLeft({ cgroups }: Machine, id: CheckpointOrder["sandboxId"]): number {
  const { pids } = cgroups.limits(id);
  return pids === null ? Number.POSITIVE_INFINITY : pids - (cgroups.counters(id)?.processes ?? 0);
}

function requireFrozen(machine: Machine, { sandboxId, generation }: CheckpointOrder) {
  const { cgroups, layout } = machine;
  const note = readInstance(layout, sandboxId);
  const made = readOrder(layout, sandboxId);
  const init = findInit(machine, sandboxId);
  if (note === null || init === null || made === null || note.pid !== init.pid) {
    throw new StandbyRefusal("there is no instance");
  }
  if (note.generation !== generation) throw new StandbyRefusal("the instance is another");
  if (!cgroups.isFrozen(sandboxId)) throw new StandbyRefusal("the instance is not frozen");
  return { note, made, init };
}

/** What is known of a checkpoint before anything of it is written. */
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

/** Writes the memory into the images of a part that was made for it. */
export async function dump(
  machine: Machine,
  order: CheckpointOrder,
  { part }: CheckpointPlaces,
  signal: AbortSignal,
  overtaken: AbortSignal,
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
  if (pidsLeft(machine, sandboxId) < RESTORE_PIDS)
    throw new StandbyRefusal("it has nearly as many processes as it may have, and a wake needs a few more");
  await letLinksGo(machine, sandboxId, init.pid, signal);
  // A restore reads some of them with the rights of the sandbox's root, through a descriptor of this directory. Nothing in
  // a sandbox comes by the path, which leads through directories that are root's alone.
  chownSync(images, 0, machine.idBase);
  chmodSync(images, 0o750);
  const image = machine.images.resolve(made.image, made.imageVersion);
  const mounts = boundMounts(parseMounts(readFileSync(`/proc/${init.pid}/mountinfo`, "utf8")), {
    hostDirs: image.hostDirs,
    drives,
  });
  const mapped = readMapped(cgroups.members(sandboxId), image.hostDirs);
  const argv = dumpArgv({
    binary: criu.path,
    pid: init.pid,
    images,
    work: makeWorkDir(machine, sandboxId),
    root: seenPath(machine, places.root),
    freezer: cgroups.freezer(sandboxId),
    controllers: controllersOf(readCgroups(init.pid) ?? "", cgroups.path(sandboxId)),
    externals: externalsOf(mounts, sourcePaths(machine, sandboxId, note.keeperVersion)),
  });
  const late = delayed(signal, GRACE_MS);
  try {
    const ended = AbortSignal.any([late.signal, overtaken]);
    await runCriu(machine, { sandboxId, argv, deadlineMs: DUMP_MS }, ended);
    if (drives.length > 0) forgetShared(images, drives);
  } finally {
    late.clear();
    // CRIU does that itself, unless it was killed. What is being ended must not be waited for.
    if (!overtaken.aborted) await cgroups.freeze(sandboxId, AbortSignal.timeout(REFREEZE_MS));
    removeWorkDir(machine, sandboxId);
  }
  return { ...draftOf(machine, order), mounts, mapped };
}

/**
 * A keeper that was frozen right after its link was closed has not heard of it, and still has its end: a socket of the host's
 * network, which no checkpoint can hold. A child that it has just forked has it too, until that runs its command. They are
 * given the moment that takes them.
 */
async function letLinksGo(
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
  const end = clock.now() + LINKS_GO_MS;
  try {
    await cgroups.thaw(id, signal);
    while ((isLinked() || isForking()) && clock.now() <= end) await clock.sleep(LINKS_POLL_MS, signal);
    if (isLinked()) throw new StandbyRefusal("its keeper is still linked");
  } finally {
    await cgroups.freeze(id, AbortSignal.timeout(REFREEZE_MS));
  }
}

/** What lies in drives is anybody's to change while this sandbox sleeps. */
function forgetShared(images: string, drives: readonly MountNote[]): void {
  const isShared = (name: string) => drives.some(({ path }) => name === path || name.startsWith(`${path}/`));
  const path = join(images, FILES_IMAGE);
  if (existsSync(path)) writeFileSync(path, forgetCompared(readFileSync(path), isShared));
}

/** All of it is on disk before it has its name. */
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

/** Aborts so long after another signal has. */
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

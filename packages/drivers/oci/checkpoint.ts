import { createHash } from "node:crypto";
import { chmodSync, chownSync, existsSync, mkdirSync, readFileSync, renameSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { Checkpoint, CheckpointOrder } from "@holdfast/engine";
import { boundMounts, externalsOf } from "./bound-mounts.ts";
import { controllersOf } from "./cgroup.ts";
import { checkpointPlaces, discard, verifyWhole } from "./checkpoints.ts";
import { dumpArgv } from "./criu.ts";
import { makeWorkDir, removeWorkDir, requireCriu, runCriu } from "./criu-run.ts";
import type { Machine } from "./machine.ts";
import { MANIFEST_VERSION, type Manifest } from "./manifest.ts";
import { readMapped } from "./mapped-files.ts";
import { parseMounts } from "./mounts.ts";
import { findInit } from "./observe.ts";
import { countSockets, readCgroups, readExecutable } from "./processes.ts";
import { readInstance, readOrder } from "./record.ts";
import { seenPath } from "./runtime.ts";
import { sourcePaths } from "./source-paths.ts";
import { StandbyRefusal, standbySteps } from "./standby-step.ts";

const DUMP_MS = 110_000;
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
    const draft = await step({ name: "dump", code: "checkpoint_dump", complaint }, () =>
      dump(machine, order, signal, overtaken),
    );
    return await step({ name: "seal", code: "checkpoint_seal", complaint }, () =>
      seal(machine, order, draft),
    );
  } catch (error) {
    await machine.porter.removeTree(places.part).catch((failure: unknown) => {
      machine.log.warn(
        { sandboxId: order.sandboxId, error: String(failure) },
        "a broken-off checkpoint stays",
      );
    });
    throw error;
  }
}

/** All of the manifest but what is known only of the finished images. */
type Draft = Omit<Manifest, "images" | "sizeBytes" | "takenAt">;

async function dump(
  machine: Machine,
  order: CheckpointOrder,
  signal: AbortSignal,
  overtaken: AbortSignal,
): Promise<Draft> {
  const { cgroups, layout, installation } = machine;
  const { sandboxId, generation, id } = order;
  const criu = requireCriu(machine);
  const places = layout.sandbox(sandboxId);
  const { part, images } = checkpointPlaces(layout, sandboxId, id);
  const note = readInstance(layout, sandboxId);
  const made = readOrder(layout, sandboxId);
  const init = findInit(machine, sandboxId);
  if (note === null || init === null || made === null || note.pid !== init.pid) {
    throw new StandbyRefusal("there is no instance");
  }
  if (note.generation !== generation) throw new StandbyRefusal("the instance is another");
  if (!cgroups.isFrozen(sandboxId)) throw new StandbyRefusal("the instance is not frozen");
  await letLinksGo(machine, sandboxId, init.pid, signal);
  await discardDrafts(machine, order);
  mkdirSync(places.checkpoints, { recursive: true, mode: 0o700 });
  mkdirSync(part, { mode: 0o700 });
  mkdirSync(images, { mode: 0o700 });
  // A restore reads some of them with the rights of the sandbox's root, through a descriptor of this directory. Nothing in
  // a sandbox comes by the path, which leads through directories that are root's alone.
  chownSync(images, 0, machine.idBase);
  chmodSync(images, 0o750);
  const image = machine.images.resolve(made.image, made.imageVersion);
  const mounts = boundMounts(
    parseMounts(readFileSync(`/proc/${init.pid}/mountinfo`, "utf8")),
    image.hostDirs,
  );
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
  } finally {
    late.clear();
    // CRIU does that itself, unless it was killed. What is being ended must not be waited for.
    if (!overtaken.aborted) await cgroups.freeze(sandboxId, AbortSignal.timeout(REFREEZE_MS));
    removeWorkDir(machine, sandboxId);
  }
  return {
    version: MANIFEST_VERSION,
    id,
    installation,
    sandboxId,
    generation,
    arch: process.arch,
    criuVersion: criu.version,
    keeperVersion: note.keeperVersion,
    image: made.image,
    imageVersion: made.imageVersion,
    config: digestOf(join(places.bundle, "config.json")),
    mounts,
    mapped,
  };
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

/** Only one checkpoint is made at a time: what has the suffix was broken off. */
async function discardDrafts(machine: Machine, { sandboxId, id }: CheckpointOrder): Promise<void> {
  const { whole } = checkpointPlaces(machine.layout, sandboxId, id);
  if (existsSync(whole)) throw new StandbyRefusal("there is a checkpoint of that id");
  await discard(machine, sandboxId, (name) => name.endsWith(".part"));
}

async function seal(machine: Machine, order: CheckpointOrder, draft: Draft): Promise<Checkpoint> {
  const { layout, porter, clock } = machine;
  const { part, images, whole } = checkpointPlaces(layout, order.sandboxId, order.id);
  const { disk, checkpoints } = layout.sandbox(order.sandboxId);
  const written = existsSync(disk) ? [checkpoints, disk] : [checkpoints];
  const [sums] = await Promise.all([porter.sums(images), porter.sync(written)]);
  if (sums === null || sums.size === 0) throw new Error("CRIU left no images");
  const files = [...sums].map(([name, { size, sum }]) => ({ name, size, sum }));
  const sizeBytes = files.reduce((total, { size }) => total + size, 0);
  const manifest: Manifest = { ...draft, takenAt: clock.now(), sizeBytes, images: files };
  await writeDurably(join(part, "manifest.json"), JSON.stringify(manifest));
  await syncDirectory(part);
  renameSync(part, whole);
  await syncDirectory(checkpoints);
  const { id, takenAt, generation } = verifyWhole(machine.layout, order);
  return { id, takenAt, generation, sizeBytes };
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

import {
  type Cause,
  type DriveId,
  isDriveId,
  type Numbers,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import type { DriveRecord, MountRecord, SandboxRecord } from "@holdfast/engine";
import { driveOn } from "../world/drives.ts";
import type { Host } from "../world/host.ts";
import type { Invariant, Scene } from "./invariant.ts";

/** Facts about drives and mounts in the past, which can't be derived from the present state. */
export class DriveHistory {
  /** Drives that a fault created without a record. */
  readonly strays = new Set<DriveId>();
  /** Drives that were once usable. */
  readonly served = new Set<DriveId>();
  /** Drives that a caller asked to delete. */
  readonly unwanted = new Set<DriveId>();
  /** Drives that a caller asked to delete with `force`. */
  readonly forced = new Set<DriveId>();
  /**
   * Requests to delete a drive whose record does not exist yet, by the id or name in the request. The value says
   * whether `force` was given.
   */
  readonly #wishes = new Map<string, boolean>();
  /**
   * Paths at which a caller got confirmation that a drive is mounted. After the confirmation, nothing may be written to
   * the directory under the mount.
   */
  readonly #promised = new Map<SandboxId, Set<string>>();
  /** Drives and mounts that are not in their expected state, by key. The value is the time since which that is so. */
  readonly #wrongSince = new Map<string, number>();
  /** Mounts that were in their expected state at least once since they were requested. */
  readonly #rightOnce = new Set<string>();
  /** Time at which drives last could not be observed. */
  unseenAt = Number.NEGATIVE_INFINITY;

  wish(ref: string, force: boolean, records: Iterable<DriveRecord>): void {
    const meant = [...records].filter(({ id, name }) => id === ref || name === ref);
    if (meant.length === 0) this.#wishes.set(ref, force);
    for (const { id } of meant) this.#wished(id, force);
    if (isDriveId(ref)) this.#wished(ref, force);
  }

  #wished(id: DriveId, force: boolean): void {
    this.unwanted.add(id);
    if (force) this.forced.add(id);
  }

  recorded({ id, name, phase }: DriveRecord): void {
    const force = this.#wishes.get(name);
    if (force !== undefined) this.#wished(id, force);
    this.#wishes.delete(name);
    if (phase === "ready") this.served.add(id);
  }

  promise(id: SandboxId, path: string): void {
    this.#promised.set(id, new Set([...(this.#promised.get(id) ?? []), path]));
  }

  isPromised(id: SandboxId, path: string): boolean {
    return this.#promised.get(id)?.has(path) ?? false;
  }

  /**
   * Forgets what is known about mounts that the sandbox's record no longer requests. A later mount at the same path is
   * a new mount.
   */
  given({ id, mounts }: SandboxRecord): void {
    const wanted = new Set(mounts.filter(({ state }) => state === "wanted").map(({ path }) => path));
    const paths = this.#promised.get(id);
    for (const path of paths ?? []) if (!wanted.has(path)) paths?.delete(path);
    for (const key of [...this.#wrongSince.keys(), ...this.#rightOnce]) {
      const [of, path = ""] = key.split(" ");
      if (of !== id || wanted.has(path)) continue;
      this.#wrongSince.delete(key);
      this.#rightOnce.delete(key);
    }
  }

  note(key: string, isWrong: boolean, now: number): void {
    if (!isWrong) this.#wrongSince.delete(key);
    else if (!this.#wrongSince.has(key)) this.#wrongSince.set(key, now);
    if (!isWrong) this.#rightOnce.add(key);
  }

  rest(key: string): void {
    this.#wrongSince.delete(key);
  }

  wasRight(key: string): boolean {
    return this.#rightOnce.has(key);
  }

  /** Returns the time since which a drive or mount has not been in its expected state; null if it is in that state. */
  wrongSince(key: string): number | null {
    return this.#wrongSince.get(key) ?? null;
  }
}

const short = (id: string): string => id.slice(-3);
const keyOf = (id: string, path: string): string => `${id} ${path}`;
const isWithin = (path: string, { path: at }: MountRecord): boolean =>
  path === at || path.startsWith(`${at}/`);

/** Returns whether a mount exists, of the right drive and with the right options. */
export function isThere(host: Host, id: SandboxId, mount: MountRecord): boolean {
  const place = host.instanceOf(id)?.places.get(mount.path);
  const drive = driveOn(host, mount.driveId);
  if (place?.point == null || drive === null || place.directory !== drive || place.isAstray) return false;
  return place.point.subpath === mount.subpath && place.point.readOnly === mount.readOnly;
}

const drivesOwned: Invariant = {
  name: "drives-owned",
  promise:
    "Every drive on disk is owned by a record, which is removed only when nothing of the drive is left.",
  standing({ host, mirror, history }) {
    for (const { id, isAway } of host.drives.values())
      if (!isAway && !mirror.drives.has(id) && !history.drives.strays.has(id))
        return `drive ${short(id)} is there, and no record owns it`;
    return null;
  },
};

const drivesMadeOnce: Invariant = {
  name: "drives-made-once",
  promise: "A drive that was usable is never created again: an empty drive must not take its place.",
  witnessed({ mirror, history }, fact) {
    if (
      fact.type === "stored" &&
      (fact.change.kind === "drive.insert" || fact.change.kind === "drive.update")
    )
      history.drives.recorded(fact.change.record);
    if (fact.type !== "drive-made" || history.drives.strays.has(fact.id)) return null;
    const record = mirror.drives.get(fact.id);
    if (record?.phase !== "making")
      return `drive ${short(fact.id)} is created, and is ${record?.phase} on record`;
    return history.drives.served.has(fact.id) ? `drive ${short(fact.id)} is created again` : null;
  },
};

/** Phases of sandboxes that use their drives, or may use them again later. */
const LIVES: ReadonlySet<string> = new Set([
  "queued",
  "launching",
  "running",
  "paused",
  "suspending",
  "standby",
  "waking",
]);

const drivesKept: Invariant = {
  name: "drives-kept",
  promise:
    "A drive is removed only on request, and a drive that a sandbox has, asleep or not, only by force.",
  witnessed({ mirror, history }, fact) {
    const { strays, served, unwanted, forced } = history.drives;
    if (fact.type === "unwanted" && fact.force !== undefined)
      history.drives.wish(fact.id, fact.force, mirror.drives.values());
    if (fact.type !== "drive-removed" || (!served.has(fact.id) && !strays.has(fact.id))) return null;
    const { id } = fact;
    if (!unwanted.has(id)) return `drive ${short(id)} is removed without a request`;
    if (forced.has(id)) return null;
    const holder = mirror
      .readable()
      .find(({ phase, mounts }) => LIVES.has(phase.name) && mounts.some((mount) => mount.driveId === id));
    return holder === undefined ? null : `drive ${short(id)} is removed, and ${short(holder.id)} has it`;
  },
};

const mountsRecorded: Invariant = {
  name: "mounts-recorded",
  promise: "Every mount of an instance is on its sandbox's record, until it is observed to be gone.",
  standing({ host, mirror }) {
    for (const { sandboxId, places } of host.instances) {
      const mounts = mirror.sandboxes.get(sandboxId)?.mounts;
      for (const [path, { directory }] of places) {
        if (directory === null || mounts === undefined) continue;
        if (!mounts.some((mount) => mount.path === path && mount.driveId === directory.id))
          return `${short(sandboxId)} has drive ${short(directory.id)} at ${path}, and its record does not say so`;
      }
    }
    return null;
  },
};

/**
 * Maximum time until the engine notices a change: one pass over all sandboxes, two observations with their deadlines,
 * and some extra time.
 */
const noticedWithin = ({ observeEveryMs }: Numbers): number => observeEveryMs * 5 + 2_000;

/** Maximum duration of a mount. If the mount fails, this includes the unmount that follows. */
const mountedWithin = (numbers: Numbers): number =>
  noticedWithin(numbers) + 2 * numbers.driveCallMs + numbers.proofDeadlineMs;

function unservedMount({ host, mirror, history, time, numbers }: Scene, sandbox: Sandbox): string | null {
  const id = sandbox.id as SandboxId;
  for (const mount of mirror.sandboxes.get(id)?.mounts ?? []) {
    const { path, state } = mount;
    const reported = sandbox.mounts.find((each) => each.path === path);
    if (state !== "wanted" || reported === undefined) continue;
    if (reported.state === "proven") history.drives.promise(id, path);
    if (reported.state !== "proven" && sandbox.status !== "ready") continue;
    const since = isThere(host, id, mount) ? null : history.drives.wrongSince(keyOf(id, path));
    const ms = since === null ? 0 : time.elapsed - since;
    if (reported.state === "proven" && since !== null && !history.drives.wasRight(keyOf(id, path)))
      return `${path} of ${short(id)} is reported as proven, but never was`;
    const isNew = reported.state !== "proven" && !history.drives.isPromised(id, path);
    if (ms <= (isNew ? mountedWithin(numbers) : noticedWithin(numbers))) continue;
    return `${short(id)} is ${sandbox.status}, ${path} is reported as ${reported.state}, but has been missing for ${ms} ms`;
  }
  return null;
}

const readyMeansMounted: Invariant = {
  name: "ready-means-mounted",
  promise: "A sandbox reported as ready has all its drives; a mount reported as proven is there.",
  standing({ mirror, host, history, time }) {
    for (const { id, phase, mounts } of mirror.readable())
      for (const mount of mounts) {
        if (mount.state !== "wanted") continue;
        const isWrong = !isThere(host, id, mount);
        // A missing mount is wrong only in a running sandbox. In any other phase the engine need not mount anything.
        if (phase.name === "running" || !isWrong)
          history.drives.note(keyOf(id, mount.path), isWrong, time.elapsed);
        else history.drives.rest(keyOf(id, mount.path));
      }
    return null;
  },
  witnessed(scene, fact) {
    if (fact.type === "reported-sandbox") return unservedMount(scene, fact.sandbox);
    if (fact.type !== "mounted" || fact.mount.state !== "proven") return null;
    scene.history.drives.promise(fact.sandboxId, fact.mount.path);
    return null;
  },
};

const nothingUnderMounts: Invariant = {
  name: "nothing-under-mounts",
  promise:
    "At a path at which a mounted drive was confirmed to a caller, nothing is ever written to the sandbox's own disk.",
  standing({ host, mirror, history }) {
    for (const { sandboxId, places, holds, hasRun } of host.instances) {
      if (holds.size > 0 || !hasRun) continue;
      const record = mirror.sandboxes.get(sandboxId);
      for (const { path, state } of record?.mounts ?? [])
        if (state === "wanted" && history.drives.isPromised(sandboxId, path) && !places.has(path))
          return `${short(sandboxId)} runs, and its own disk is open at ${path}`;
    }
    return null;
  },
  witnessed({ mirror, history }, fact) {
    if (fact.type === "stored" && fact.change.kind === "sandbox.update")
      history.drives.given(fact.change.record);
    if (fact.type !== "wrote") return null;
    const { sandboxId, path, driveId } = fact;
    const mount = mirror.sandboxes.get(sandboxId)?.mounts.find((each) => isWithin(path, each));
    const isPromised = mount?.state === "wanted" && history.drives.isPromised(sandboxId, mount.path);
    if (driveId === null) return isPromised ? `${short(sandboxId)} wrote ${path} onto its own disk` : null;
    if (mount?.driveId === driveId) return null;
    return `${short(sandboxId)} wrote ${path} into drive ${short(driveId)}, which its record does not name`;
  },
};

const drivesReportedTruly: Invariant = {
  name: "drives-told-truly",
  promise: "A drive is not reported as ready for more than seconds after it is missing.",
  standing({ host, mirror, history, time }) {
    for (const { id, phase } of mirror.drives.values())
      history.drives.note(id, phase === "ready" && driveOn(host, id) === null, time.elapsed);
    return null;
  },
  witnessed({ history, time, numbers }, fact) {
    if (fact.type === "drives-unseen") history.drives.unseenAt = time.elapsed;
    if (fact.type !== "reported-drive" || fact.drive.status !== "ready") return null;
    const since = history.drives.wrongSince(fact.drive.id);
    if (since === null) return null;
    const ms = time.elapsed - Math.max(since, history.drives.unseenAt);
    if (ms <= noticedWithin(numbers)) return null;
    return `drive ${short(fact.drive.id)} is reported as ready, but has been missing for ${ms} ms`;
  },
};

const ABOUT_DRIVES: ReadonlySet<string> = new Set([
  "mount_refused",
  "mount_conflict",
  "mount_failed",
  "mount_broken",
  "drive_degraded",
  "drive_gone",
]);

const isAboutDrives = ({ code, message, cause }: Cause): boolean =>
  ABOUT_DRIVES.has(code) ||
  (code === "proof_failed" && /^mounts: [^;]*$/.test(message)) ||
  (cause !== undefined && isAboutDrives(cause));

const outlivesDrives: Invariant = {
  name: "outlives-drives",
  promise: "A sandbox that has served does not end or lose its memory because it lacks a drive.",
  witnessed({ history }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { id, phase } = fact.change.record;
    if (!history.provenOnce.has(id)) return null;
    const cause = phase.name === "failed" ? phase.cause : phase.name === "queued" ? phase.restart : undefined;
    return cause !== undefined && isAboutDrives(cause) ? `${short(id)} ends: ${cause.message}` : null;
  },
};

/** Invariants about drives and mounts. */
export const DRIVE_INVARIANTS: readonly Invariant[] = [
  drivesOwned,
  drivesMadeOnce,
  drivesKept,
  mountsRecorded,
  readyMeansMounted,
  nothingUnderMounts,
  drivesReportedTruly,
  outlivesDrives,
];

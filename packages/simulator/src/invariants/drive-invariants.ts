import {
  type Cause,
  type DriveId,
  isDriveId,
  type Numbers,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import type { DriveRecord, MountRecord, SandboxRecord } from "@holdfast/engine";
import { driveOn } from "./drives.ts";
import type { Host } from "./host.ts";
import type { Invariant, Scene } from "./invariants.ts";

/** What has become of drives and mounts, which the present no longer shows. */
export class DriveHistory {
  /** What appeared by itself, and is nobody's. */
  readonly strays = new Set<DriveId>();
  /** Those that could be used once. */
  readonly served = new Set<DriveId>();
  /** Those that somebody wants to be deleted, and those of them that may be in use. */
  readonly unwanted = new Set<DriveId>();
  readonly forced = new Set<DriveId>();
  /** Of drives that are not on record yet. */
  readonly #wishes = new Map<string, boolean>();
  /** Paths at which callers were told that a drive is: from then on nothing is written under it. */
  readonly #promised = new Map<SandboxId, Set<string>>();
  /** Since when a drive, or a mount, is not what it should be. */
  readonly #wrongSince = new Map<string, number>();
  /** What was once what it should be, since it was asked for. */
  readonly #rightOnce = new Set<string>();
  /** When somebody looked at drives and could see nothing. */
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

  /** What is given up is promised no longer, and what comes in its place is another. */
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

  /** Null where it is what it should be. */
  wrongSince(key: string): number | null {
    return this.#wrongSince.get(key) ?? null;
  }
}

const short = (id: string): string => id.slice(-3);
const keyOf = (id: string, path: string): string => `${id} ${path}`;
const isWithin = (path: string, { path: at }: MountRecord): boolean =>
  path === at || path.startsWith(`${at}/`);

/** Whether a mount is there, of the drive that it should be, as it should be. */
export function isThere(host: Host, id: SandboxId, mount: MountRecord): boolean {
  const place = host.instanceOf(id)?.places.get(mount.path);
  const drive = driveOn(host, mount.driveId);
  if (place?.point == null || drive === null || place.directory !== drive || place.isAstray) return false;
  return place.point.subpath === mount.subpath && place.point.readOnly === mount.readOnly;
}

const drivesOwned: Invariant = {
  name: "drives-owned",
  promise: "Every drive on disk is owned by a record, which goes when nothing of the drive is left.",
  standing({ host, mirror, history }) {
    for (const { id, isAway } of host.drives.values())
      if (!isAway && !mirror.drives.has(id) && !history.drives.strays.has(id))
        return `drive ${short(id)} is there, and no record owns it`;
    return null;
  },
};

const drivesMadeOnce: Invariant = {
  name: "drives-made-once",
  promise: "A drive that could be used is never made anew: an empty one in its place would be a lie.",
  witnessed({ mirror, history }, fact) {
    if (
      fact.type === "stored" &&
      (fact.change.kind === "drive.insert" || fact.change.kind === "drive.update")
    )
      history.drives.recorded(fact.change.record);
    if (fact.type !== "drive-made" || history.drives.strays.has(fact.id)) return null;
    const record = mirror.drives.get(fact.id);
    if (record?.phase !== "making")
      return `drive ${short(fact.id)} is made, and is ${record?.phase} on record`;
    return history.drives.served.has(fact.id) ? `drive ${short(fact.id)} is made anew` : null;
  },
};

/** Phases of what will use its drives again, or does. */
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
    "A drive is removed only at somebody's wish, and where a sandbox has it, asleep or not, only by force.",
  witnessed({ mirror, history }, fact) {
    const { strays, served, unwanted, forced } = history.drives;
    if (fact.type === "unwanted" && fact.force !== undefined)
      history.drives.wish(fact.id, fact.force, mirror.drives.values());
    if (fact.type !== "drive-removed" || (!served.has(fact.id) && !strays.has(fact.id))) return null;
    const { id } = fact;
    if (!unwanted.has(id)) return `drive ${short(id)} is removed, and nobody wanted that`;
    if (forced.has(id)) return null;
    const holder = mirror
      .readable()
      .find(({ phase, mounts }) => LIVES.has(phase.name) && mounts.some((mount) => mount.driveId === id));
    return holder === undefined ? null : `drive ${short(id)} is removed, and ${short(holder.id)} has it`;
  },
};

const mountsRecorded: Invariant = {
  name: "mounts-recorded",
  promise: "Every mount of an instance is on its sandbox's record, until it is seen to be gone.",
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

/** A pass, two looks with their deadlines, and a little. */
const noticedWithin = ({ observeEveryMs }: Numbers): number => observeEveryMs * 5 + 2_000;

/** A mount that is on its way may take this long, or be given up and taken off. */
const mountedWithin = (numbers: Numbers): number =>
  noticedWithin(numbers) + 2 * numbers.driveCallMs + numbers.proofDeadlineMs;

function unservedMount({ host, mirror, history, time, numbers }: Scene, sandbox: Sandbox): string | null {
  const id = sandbox.id as SandboxId;
  for (const mount of mirror.sandboxes.get(id)?.mounts ?? []) {
    const { path, state } = mount;
    const told = sandbox.mounts.find((each) => each.path === path);
    if (state !== "wanted" || told === undefined) continue;
    if (told.state === "proven") history.drives.promise(id, path);
    if (told.state !== "proven" && sandbox.status !== "ready") continue;
    const since = isThere(host, id, mount) ? null : history.drives.wrongSince(keyOf(id, path));
    const ms = since === null ? 0 : time.elapsed - since;
    if (told.state === "proven" && since !== null && !history.drives.wasRight(keyOf(id, path)))
      return `${path} of ${short(id)} is called proven, and never was`;
    const isNew = told.state !== "proven" && !history.drives.isPromised(id, path);
    if (ms <= (isNew ? mountedWithin(numbers) : noticedWithin(numbers))) continue;
    return `${short(id)} is ${sandbox.status}, ${path} is called ${told.state}, and is not there for ${ms} ms`;
  }
  return null;
}

const readyMeansMounted: Invariant = {
  name: "ready-means-mounted",
  promise: "A sandbox that is called ready has all its drives; a mount that is called proven is there.",
  standing({ mirror, host, history, time }) {
    for (const { id, phase, mounts } of mirror.readable())
      for (const mount of mounts) {
        if (mount.state !== "wanted") continue;
        const isWrong = !isThere(host, id, mount);
        // What does not run is not missed.
        if (phase.name === "running" || !isWrong)
          history.drives.note(keyOf(id, mount.path), isWrong, time.elapsed);
        else history.drives.rest(keyOf(id, mount.path));
      }
    return null;
  },
  witnessed(scene, fact) {
    if (fact.type === "told-sandbox") return unservedMount(scene, fact.sandbox);
    if (fact.type !== "mounted" || fact.mount.state !== "proven") return null;
    scene.history.drives.promise(fact.sandboxId, fact.mount.path);
    return null;
  },
};

const nothingUnderMounts: Invariant = {
  name: "nothing-under-mounts",
  promise: "Where a caller was told that a drive is, nothing is ever written onto the sandbox's own disk.",
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

const drivesToldTruly: Invariant = {
  name: "drives-told-truly",
  promise: "A drive is called ready no longer than seconds after it is not where it belongs.",
  standing({ host, mirror, history, time }) {
    for (const { id, phase } of mirror.drives.values())
      history.drives.note(id, phase === "ready" && driveOn(host, id) === null, time.elapsed);
    return null;
  },
  witnessed({ history, time, numbers }, fact) {
    if (fact.type === "drives-unseen") history.drives.unseenAt = time.elapsed;
    if (fact.type !== "told-drive" || fact.drive.status !== "ready") return null;
    const since = history.drives.wrongSince(fact.drive.id);
    if (since === null) return null;
    const ms = time.elapsed - Math.max(since, history.drives.unseenAt);
    if (ms <= noticedWithin(numbers)) return null;
    return `drive ${short(fact.drive.id)} is called ready, and is not where it belongs for ${ms} ms`;
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
  promise: "A sandbox that has served does not end, and does not lose its memory, because it lacks a drive.",
  witnessed({ history }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { id, phase } = fact.change.record;
    if (!history.provenOnce.has(id)) return null;
    const cause = phase.name === "failed" ? phase.cause : phase.name === "queued" ? phase.restart : undefined;
    return cause !== undefined && isAboutDrives(cause) ? `${short(id)} ends: ${cause.message}` : null;
  },
};

/** Promises about drives, and about what sandboxes have of them. */
export const DRIVE_INVARIANTS: readonly Invariant[] = [
  drivesOwned,
  drivesMadeOnce,
  drivesKept,
  mountsRecorded,
  readyMeansMounted,
  nothingUnderMounts,
  drivesToldTruly,
  outlivesDrives,
];

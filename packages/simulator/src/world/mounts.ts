import type { SandboxId } from "@holdfast/contract";
import { type MountOrder, type MountPoint, MountRefused, type MountSeen } from "@holdfast/engine";
import { asHelper, hangs, lasts, type Parts } from "./checkpoints.ts";
import { type DriveDirectory, driveOn, identityOf } from "./drives.ts";
import type { Armed } from "./faults.ts";
import type { Host, SimulatedInstance } from "./host.ts";

/** What lies at a path at which a sandbox has a drive, or expects one: under it all is an empty directory that nobody can write to. */
export interface Place {
  /** The mount that was ordered there and not taken back; null where memory expects something, and nobody else does. */
  readonly point: MountPoint | null;
  /** What is seen there; null where it is the empty directory. */
  directory: DriveDirectory | null;
  /** Another directory is seen there, and the driver does not know. */
  isAstray: boolean;
  /** Whether it ever was mounted: before that the driver does not speak of it. */
  wasMounted: boolean;
}

export type Places = Map<string, Place>;

/** What memory finds at the paths where it had drives: those that are named, where they are there, or nothing. */
export function placesFor(host: Host, had: readonly string[], named: readonly MountPoint[] = []): Places {
  return new Map(
    had.map((path) => {
      const point = named.find((each) => each.path === path) ?? null;
      const directory = point && driveOn(host, point.driveId);
      return [path, { point, directory, isAstray: false, wasMounted: point !== null }];
    }),
  );
}

/** Of those that another sandbox had, the ones that this is to have. The rest is its own disk again. */
export const ownPaths = (had: readonly string[], named: readonly MountPoint[] = []): string[] =>
  had.filter((path) => named.some((each) => each.path === path));

/** The place that a path lies in; null where that is the sandbox's own disk. */
export function placeOf({ places }: SimulatedInstance, path: string): Place | null {
  for (const [at, place] of places) if (path === at || path.startsWith(`${at}/`)) return place;
  return null;
}

export const seenMounts = (host: Host, { places }: SimulatedInstance): MountSeen[] =>
  [...places.values()].flatMap(({ point, directory, wasMounted }) => {
    if (point === null || !wasMounted) return [];
    const { driveId, subpath, path, readOnly } = point;
    const drive = driveOn(host, driveId);
    const outside = drive === null ? null : identityOf(drive, subpath);
    const gone = { code: "drive_gone", message: "its drive is not there" };
    const off = { code: "mount_gone", message: "nothing is mounted there" };
    const problem = drive === null ? gone : directory === drive ? null : off;
    return [{ driveId, subpath, path, readOnly, outside, problem }];
  });

const isSame = (one: MountPoint, other: MountPoint): boolean =>
  one.driveId === other.driveId && one.subpath === other.subpath && one.readOnly === other.readOnly;

/** First the place is closed, then the drive is mounted over it. It is a process of its own, as a launch is. */
export async function mount(parts: Parts, order: MountOrder, fault: Armed | null): Promise<void> {
  const { host, process, signal } = parts;
  const { sandboxId, ...point } = order;
  if (fault?.kind === "mount-refused") throw new MountRefused("mount_refused", "a link is in the way");
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance to mount into");
  return asHelper(parts, sandboxId, async (goesOn) => {
    const before = instance.places.get(point.path);
    if (before?.point && !isSame(before.point, point))
      throw new MountRefused("mount_conflict", "another drive is mounted there");
    const { directory: seen, wasMounted } = before?.point ? before : { directory: null, wasMounted: false };
    const place: Place = { point, directory: seen, isAstray: false, wasMounted };
    process.effect("closes a place", () => instance.places.set(point.path, place));
    await lasts(host, fault?.kind === "mount-slow" ? fault.ms : host.latency(), goesOn);
    if (fault?.kind === "mount-half") throw new Error("the drive could not be mounted over it");
    if (fault?.kind === "mount-hangs" && fault.flag) return hangs(signal);
    const directory = driveOn(host, point.driveId);
    if (directory === null) throw new MountRefused("drive_gone", "the drive is not there");
    if (!instance.alive) throw new Error("the instance ended meanwhile");
    process.effect("mounts", () => {
      place.directory = directory;
      place.isAstray = fault?.kind === "mount-astray";
      place.wasMounted = true;
    });
    await lasts(host, host.latency(), goesOn);
    if (fault?.kind === "mount-answer-lost") throw new Error("it could not be told that it is mounted");
    if (fault?.kind === "mount-hangs") return hangs(signal);
  });
}

/** The place is given back, or stays closed to whoever expects the drive there. */
export async function unmount(
  { host, process, signal }: Parts,
  { id, path, keepClosed }: { id: SandboxId; path: string; keepClosed: boolean },
  fault: Armed | null,
): Promise<void> {
  if (fault?.kind === "unmount-does-nothing") throw new Error("it is still mounted");
  if (fault?.kind === "unmount-hangs" && fault.flag) return hangs(signal);
  const places = host.instanceOf(id)?.places;
  const place = places?.get(path);
  if (place !== undefined)
    process.effect("unmounts", () => {
      place.directory = null;
      if (!keepClosed) places?.delete(path);
    });
  if (fault?.kind === "unmount-hangs") return hangs(signal);
  if (fault?.kind === "unmount-fails") throw new Error("it could not be told that it is off");
}

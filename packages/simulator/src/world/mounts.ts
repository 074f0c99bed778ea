import type { SandboxId } from "@holdfast/contract";
import { type MountOrder, type MountPoint, MountRefused, type MountSeen } from "@holdfast/engine";
import type { Armed } from "../schedule/armed-faults.ts";
import { asHelper, hangs, lasts, type Parts } from "./checkpoints.ts";
import { type DriveDirectory, driveOn, identityOf } from "./drives.ts";
import type { Host, SimulatedInstance } from "./host.ts";

/**
 * A path at which a sandbox has or expects a drive. Under the mount is an empty directory that no process can write to.
 */
interface Place {
  /** The requested mount; null if no mount is requested and only restored memory expects a drive at this path. */
  readonly point: MountPoint | null;
  /** The drive directory that is visible at the path; null if the empty directory under the mount is visible. */
  directory: DriveDirectory | null;
  /** Whether the path shows a directory other than the drive's, without the driver's knowledge. */
  isAstray: boolean;
  /** Whether the drive was ever mounted at the path. The driver does not report the mount before that. */
  wasMounted: boolean;
}

export type Places = Map<string, Place>;

/**
 * Returns the places of an instance that starts from memory: one `Place` for each path in `had`, the paths at which the
 * memory had a drive. `named` lists the drives of the new instance. The `directory` of a place is null if `named` has
 * no drive for its path, or if that drive does not exist.
 */
export function placesFor(host: Host, had: readonly string[], named: readonly MountPoint[] = []): Places {
  return new Map(
    had.map((path) => {
      const point = named.find((each) => each.path === path) ?? null;
      const directory = point && driveOn(host, point.driveId);
      return [path, { point, directory, isAstray: false, wasMounted: point !== null }];
    }),
  );
}

/**
 * Returns the mount paths of the source sandbox at which the fork has a drive too. At the other mount paths of the
 * source sandbox, the fork has its own disk.
 */
export const ownPaths = (had: readonly string[], named: readonly MountPoint[] = []): string[] =>
  had.filter((path) => named.some((each) => each.path === path));

/**
 * Returns the `Place` whose path is this path or one of its parent directories. Returns null if there is none: the path
 * is then on the sandbox's own disk.
 */
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
    const gone = { code: "drive_gone", message: "its drive is missing" };
    const off = { code: "mount_gone", message: "nothing is mounted there" };
    const problem = drive === null ? gone : directory === drive ? null : off;
    return [{ driveId, subpath, path, readOnly, outside, problem }];
  });

const isSame = (one: MountPoint, other: MountPoint): boolean =>
  one.driveId === other.driveId && one.subpath === other.subpath && one.readOnly === other.readOnly;

/**
 * Mounts a drive in a helper process, as a launch does: first covers the path with an empty read-only directory, then
 * mounts the drive over that.
 */
export async function mount(parts: Parts, order: MountOrder, fault: Armed | null): Promise<void> {
  const { host, process, signal } = parts;
  const { sandboxId, ...point } = order;
  if (fault?.kind === "mount-refused") throw new MountRefused("mount_refused", "a link is in the way");
  const instance = host.instanceOf(sandboxId);
  if (instance === null) throw new Error("there is no instance to mount into");
  return asHelper(parts, sandboxId, async (throwIfKilled) => {
    const before = instance.places.get(point.path);
    if (before?.point && !isSame(before.point, point))
      throw new MountRefused("mount_conflict", "another drive is mounted there");
    const { directory: seen, wasMounted } = before?.point ? before : { directory: null, wasMounted: false };
    const place: Place = { point, directory: seen, isAstray: false, wasMounted };
    process.effect("closes a place", () => instance.places.set(point.path, place));
    await lasts(host, fault?.kind === "mount-slow" ? fault.ms : host.latency(), throwIfKilled);
    if (fault?.kind === "mount-half") throw new Error("the drive could not be mounted over it");
    if (fault?.kind === "mount-hangs" && fault.flag) return hangs(signal);
    const directory = driveOn(host, point.driveId);
    if (directory === null) throw new MountRefused("drive_gone", "the drive is missing");
    if (!instance.alive) throw new Error("the instance ended meanwhile");
    process.effect("mounts", () => {
      place.directory = directory;
      place.isAstray = fault?.kind === "mount-astray";
      place.wasMounted = true;
    });
    await lasts(host, host.latency(), throwIfKilled);
    if (fault?.kind === "mount-answer-lost") throw new Error("the answer was lost after the mount");
    if (fault?.kind === "mount-hangs") return hangs(signal);
  });
}

/**
 * Unmounts a drive. With `keepClosed`, the empty directory that no process can write to stays visible at the path.
 * Without it, the path belongs to the sandbox's own disk afterwards.
 */
export async function unmount(
  { host, process, signal }: Parts,
  { id, path, keepClosed }: { id: SandboxId; path: string; keepClosed: boolean },
  fault: Armed | null,
): Promise<void> {
  if (fault?.kind === "unmount-does-nothing") throw new Error("the drive is still mounted");
  if (fault?.kind === "unmount-hangs" && fault.flag) return hangs(signal);
  const places = host.instanceOf(id)?.places;
  const place = places?.get(path);
  if (place !== undefined)
    process.effect("unmounts", () => {
      place.directory = null;
      if (!keepClosed) places?.delete(path);
    });
  if (fault?.kind === "unmount-hangs") return hangs(signal);
  if (fault?.kind === "unmount-fails") throw new Error("the answer was lost after the unmount");
}

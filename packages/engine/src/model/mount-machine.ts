import { type Cause, type DriveId, isReservedPath, normalisePath, unreachable } from "@holdfast/contract";
import type { MountPoint, NewEvent } from "../ports/index.ts";
import type { MountRecord, SandboxRecord } from "../ports/records.ts";
import type { Decision } from "./transition.ts";

/** Everything that can happen to the mounts of a sandbox, independent of its phase. */
export type MountInput =
  /** A caller requests a mount. The request is stored before anything is mounted. */
  | { type: "mount"; mount: MountPoint & { drive: string } }
  /** The mount was observed from inside and outside the sandbox. */
  | { type: "mounted"; path: string }
  /** The mount failed and is no longer wanted; no part of it exists. */
  | { type: "mount_failed"; path: string; cause: Cause }
  /** A caller requests an unmount. The request is stored before anything is unmounted. */
  | { type: "unmount"; path: string }
  /** The mount was observed to be absent. */
  | { type: "unmounted"; path: string };

/**
 * Phases in which no mount can be added or removed: the sandbox has ended or is ending, and its end removes all mounts.
 */
const ENDED = new Set<SandboxRecord["phase"]["name"]>(["deleting", "gone", "failed"]);

/** Returns the decision for the input or, like all transitions, null if the input no longer applies. */
export function mountStep(record: SandboxRecord, input: MountInput, now: number): Decision | null {
  if (ENDED.has(record.phase.name)) return null;
  const known = record.mounts.find(({ path }) => path === pathOf(input));
  switch (input.type) {
    case "mount":
      if (conflictOf(record.mounts, input.mount) !== null || known !== undefined) return null;
      return changed(record, [...record.mounts, { ...input.mount, state: "wanted" }], now, null);
    case "mounted":
      if (known?.state !== "wanted") return null;
      return changed(record, record.mounts, now, eventOf(known, "mount.added", "is mounted at"));
    case "mount_failed":
      if (known === undefined) return null;
      return changed(record, without(record, known), now, {
        ...eventOf(known, "mount.failed", "could not be mounted at"),
        data: { ...mountData(known), cause: input.cause },
      });
    case "unmount":
      if (known?.state !== "wanted") return null;
      return changed(record, [...without(record, known), { ...known, state: "removing" }], now, null);
    case "unmounted":
      if (known?.state !== "removing") return null;
      return changed(
        record,
        without(record, known),
        now,
        eventOf(known, "mount.removed", "was unmounted from"),
      );
    default:
      return unreachable(input);
  }
}

const pathOf = (input: MountInput): string => (input.type === "mount" ? input.mount.path : input.path);

const without = ({ mounts }: SandboxRecord, gone: MountRecord): MountRecord[] =>
  mounts.filter((mount) => mount !== gone);

const mountData = ({ drive, path, subpath, readOnly }: MountRecord) => ({ drive, path, subpath, readOnly });

type News = Pick<NewEvent, "type" | "message" | "driveId" | "data">;

const eventOf = (mount: MountRecord, type: NewEvent["type"], what: string): News => ({
  type,
  driveId: mount.driveId,
  message: `Drive ${mount.drive} ${what} ${mount.path}.`,
  data: mountData(mount),
});

function changed(
  record: SandboxRecord,
  mounts: readonly MountRecord[],
  now: number,
  news: News | null,
): Decision {
  const { id: sandboxId, generation } = record;
  const events = news === null ? [] : [{ at: now, sandboxId, generation, ...news }];
  return { record: { ...record, mounts }, events, counters: {} };
}

/** Whether the mount is wanted and identical to the requested one. */
export const isSameMount = (mount: MountRecord, asked: MountPoint): boolean =>
  mount.state === "wanted" &&
  mount.path === asked.path &&
  mount.driveId === asked.driveId &&
  mount.subpath === asked.subpath &&
  mount.readOnly === asked.readOnly;

/**
 * Returns a mount that conflicts with the requested one, because its path is the same, above or below. Null if there is
 * none.
 */
export const conflictOf = (mounts: readonly MountRecord[], asked: MountPoint): MountRecord | null =>
  mounts.find(
    (mount) =>
      !isSameMount(mount, asked) && (isWithin(mount.path, asked.path) || isWithin(asked.path, mount.path)),
  ) ?? null;

/** Whether a path is the directory itself or lies below it. */
const isWithin = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(`${directory}/`);

/** Directories at and below which nothing may be mounted, because they are not on the sandbox's disk. */
const NEVER_MOUNTED = ["/proc", "/sys", "/dev"];
/** Directories at which nothing may be mounted, because the mount would hide files that every program needs. */
const NEVER_COVERED = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/tmp"];

/** Returns why no drive may be mounted at the path; null if one may. Does not check what exists at the path. */
export function refusedTarget(path: string): string | null {
  if (path === "/") return "The root itself can't be covered by a drive.";
  if (isReservedPath(path)) return "Paths under /.holdfast belong to the keeper.";
  const within = NEVER_MOUNTED.find((directory) => isWithin(path, directory));
  if (within !== undefined) return `${within} is not on the sandbox's disk.`;
  const covered = NEVER_COVERED.find((directory) => path === directory);
  return covered === undefined ? null : `A drive would hide ${covered}, which programs in the sandbox need.`;
}

/** Normalises the path of a directory in a drive; null if the path is invalid. */
export const normaliseSubpath = (text: string | undefined): string | null =>
  normalisePath(text === undefined || text === "" ? "/" : text.startsWith("/") ? text : `/${text}`);

/** Returns the mounts that are wanted. */
export const wantedMounts = ({ mounts }: Pick<SandboxRecord, "mounts">): readonly MountRecord[] =>
  mounts.filter(({ state }) => state === "wanted");

export const mountsOf = (record: SandboxRecord, drive: DriveId): readonly MountRecord[] =>
  record.mounts.filter(({ driveId }) => driveId === drive);

import { type Cause, type DriveId, isReservedPath, normalisePath, unreachable } from "@holdfast/contract";
import type { Decision } from "./machine.ts";
import type { MountPoint, NewEvent } from "./ports.ts";
import type { MountRecord, SandboxRecord } from "./records.ts";

/** What can happen to the mounts of a sandbox, beside whatever happens to its phase. */
export type MountInput =
  /** It is to have this drive; stored before anything is mounted. */
  | { type: "mount"; mount: MountPoint & { drive: string } }
  /** Seen from inside and outside. */
  | { type: "mounted"; path: string }
  /** Nothing of it is there, and it is not wanted any more. */
  | { type: "mount_failed"; path: string; cause: Cause }
  /** It is given up; stored before anything is taken off. */
  | { type: "unmount"; path: string }
  /** Seen to be gone. */
  | { type: "unmounted"; path: string };

/** Mounts are asked for and given up by what lives; what has ended takes its own along. */
const ENDED = new Set<SandboxRecord["phase"]["name"]>(["deleting", "gone", "failed"]);

/** Null means, as everywhere in the machine, that the input does not apply any more. */
export function mountStep(record: SandboxRecord, input: MountInput, now: number): Decision | null {
  if (ENDED.has(record.phase.name)) return null;
  const known = record.mounts.find(({ path }) => path === pathOf(input));
  switch (input.type) {
    case "mount":
      if (conflictOf(record.mounts, input.mount) !== null || known !== undefined) return null;
      return changed(record, [...record.mounts, { ...input.mount, state: "wanted" }], now, null);
    case "mounted":
      if (known?.state !== "wanted") return null;
      return changed(record, record.mounts, now, said(known, "mount.added", "is mounted at"));
    case "mount_failed":
      if (known === undefined) return null;
      return changed(record, without(record, known), now, {
        ...said(known, "mount.failed", "could not be mounted at"),
        data: { ...mountData(known), cause: input.cause },
      });
    case "unmount":
      if (known?.state !== "wanted") return null;
      return changed(record, [...without(record, known), { ...known, state: "removing" }], now, null);
    case "unmounted":
      if (known?.state !== "removing") return null;
      return changed(record, without(record, known), now, said(known, "mount.removed", "was taken off"));
    default:
      return unreachable(input);
  }
}

const pathOf = (input: MountInput): string => (input.type === "mount" ? input.mount.path : input.path);

const without = ({ mounts }: SandboxRecord, gone: MountRecord): MountRecord[] =>
  mounts.filter((mount) => mount !== gone);

const mountData = ({ drive, path, subpath, readOnly }: MountRecord) => ({ drive, path, subpath, readOnly });

type News = Pick<NewEvent, "type" | "message" | "driveId" | "data">;

const said = (mount: MountRecord, type: NewEvent["type"], what: string): News => ({
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

/** Whether it is this very mount that is there, and is to stay. */
export const isSameMount = (mount: MountRecord, asked: MountPoint): boolean =>
  mount.state === "wanted" &&
  mount.path === asked.path &&
  mount.driveId === asked.driveId &&
  mount.subpath === asked.subpath &&
  mount.readOnly === asked.readOnly;

/** What is in the way of a mount: another at the path, or one above or below it. Null where nothing is. */
export const conflictOf = (mounts: readonly MountRecord[], asked: MountPoint): MountRecord | null =>
  mounts.find(
    (mount) =>
      !isSameMount(mount, asked) && (isWithin(mount.path, asked.path) || isWithin(asked.path, mount.path)),
  ) ?? null;

/** Whether a path is a directory or lies below it. */
export const isWithin = (path: string, directory: string): boolean =>
  path === directory || path.startsWith(`${directory}/`);

/** What is not the sandbox's disk, or without which nothing in it runs. */
const NEVER_MOUNTED = ["/proc", "/sys", "/dev"];
const NEVER_COVERED = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/tmp"];

/** Why nothing may be mounted at a path, whatever lies there; null where something may. */
export function refusedTarget(path: string): string | null {
  if (path === "/") return "The root itself can't be covered by a drive.";
  if (isReservedPath(path)) return "Everything under /.holdfast is the keeper's.";
  const within = NEVER_MOUNTED.find((directory) => isWithin(path, directory));
  if (within !== undefined) return `${within} is not on the sandbox's disk.`;
  const covered = NEVER_COVERED.find((directory) => path === directory);
  return covered === undefined ? null : `Without what is in ${covered} nothing in the sandbox would work.`;
}

/** A directory within a drive; null where the text is not one. */
export const normaliseSubpath = (text: string | undefined): string | null =>
  normalisePath(text === undefined || text === "" ? "/" : text.startsWith("/") ? text : `/${text}`);

/** Those that are to be there. */
export const wantedMounts = ({ mounts }: Pick<SandboxRecord, "mounts">): readonly MountRecord[] =>
  mounts.filter(({ state }) => state === "wanted");

export const mountsOf = (record: SandboxRecord, drive: DriveId): readonly MountRecord[] =>
  record.mounts.filter(({ driveId }) => driveId === drive);

/** Points in the life of a drive and its mounts at which a server can be made to kill itself. */
export const MAKING = [
  "before the drive is stored",
  "when the drive is stored",
  "when the drive is created",
  "when the drive's creation is stored",
] as const;

export const MOUNTING = [
  "before the mount is stored",
  "when the mount is stored",
  "when it is mounted",
  "before the completed mount is stored",
  "when the completed mount is stored",
] as const;

export const UNMOUNTING = [
  "before the unmount is stored",
  "when the unmount is stored",
  "when it is unmounted",
  "when the completed unmount is stored",
] as const;

export const REMOVING = [
  "before the removal is stored",
  "when the removal is stored",
  "when the drive is removed",
  "when the drive's absence is stored",
] as const;

export type DrivePoint =
  | (typeof MAKING)[number]
  | (typeof MOUNTING)[number]
  | (typeof UNMOUNTING)[number]
  | (typeof REMOVING)[number];

export const dieAt = (point: DrivePoint): NodeJS.ProcessEnv => ({ HOLDFAST_CRASH_AT: point });

/** The moments in the life of a drive and its mounts at which a server can be told to die. */
export const MAKING = [
  "before the drive is stored",
  "when the drive is stored",
  "when the drive is made",
  "when it is stored that the drive is made",
] as const;

export const MOUNTING = [
  "before the mount is stored",
  "when the mount is stored",
  "when it is mounted",
  "before it is told of",
  "when it is told of",
] as const;

export const UNMOUNTING = [
  "before the unmount is stored",
  "when the unmount is stored",
  "when it is taken off",
  "when it is stored that it is taken off",
] as const;

export const REMOVING = [
  "before the removal is stored",
  "when the removal is stored",
  "when the drive is removed",
  "when it is stored that nothing is left",
] as const;

export type DrivePoint =
  | (typeof MAKING)[number]
  | (typeof MOUNTING)[number]
  | (typeof UNMOUNTING)[number]
  | (typeof REMOVING)[number];

export const dieAt = (point: DrivePoint): NodeJS.ProcessEnv => ({ HOLDFAST_CRASH_AT: point });

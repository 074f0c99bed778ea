/** Kinds of requests on a link. A fault can be limited to one of these kinds. */
export const REQUESTS = [
  "ping",
  "start",
  "read",
  "stdin",
  "cancel",
  "list",
  "forget",
  "probe",
  "file",
] as const;
export type RequestKind = (typeof REQUESTS)[number];

/**
 * Kinds of writes to the store while a sandbox enters or leaves standby. A fault can be limited to one of these kinds.
 */
export const SLEEP_STAGES = ["suspending", "standby", "waking", "spent", "awake"] as const;
export type SleepStage = (typeof SLEEP_STAGES)[number];

/**
 * Kinds of writes to the store while a checkpoint is saved, removed or forked. A fault can be limited to one of these
 * kinds.
 */
export const FORK_STAGES = [
  "saving",
  "saved",
  "removed",
  "forked",
  "launching",
  "launched",
  "serving",
] as const;
export type ForkStage = (typeof FORK_STAGES)[number];

/**
 * Effects on the host while a checkpoint is saved, removed or forked. A fault can kill the server right after one of
 * these effects.
 */
export const FORK_EFFECTS = ["begins to save", "saves", "unsaves", "copies a checkpoint", "forks"] as const;

/** Kinds of writes to the store about drives and mounts. A fault can be limited to one of these kinds. */
export const DRIVE_STAGES = [
  "making",
  "ready",
  "deleting",
  "removed",
  "wanted",
  "mounted",
  "failed",
  "removing",
  "unmounted",
] as const;
export type DriveStage = (typeof DRIVE_STAGES)[number];

/**
 * Effects on the host while drives are created, removed, mounted or unmounted. A fault can kill the server right after
 * one of these effects.
 */
export const DRIVE_EFFECTS = [
  "begins a drive",
  "makes a drive",
  "removes a drive",
  "closes a place",
  "mounts",
  "unmounts",
] as const;

/**
 * Effects on the host while a sandbox enters or leaves standby. A fault can kill the server right after one of these
 * effects.
 */
export const SLEEP_EFFECTS = [
  "freezes",
  "thaws",
  "begins a checkpoint",
  "writes a checkpoint",
  "restores",
  "discards",
] as const;

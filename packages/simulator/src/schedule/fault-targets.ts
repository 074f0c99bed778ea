/** The kinds of requests on a link, as far as faults tell them apart. */
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

/** Writes on the way into standby and out of it, as far as faults tell them apart. */
export const SLEEP_STAGES = ["suspending", "standby", "waking", "spent", "awake"] as const;
export type SleepStage = (typeof SLEEP_STAGES)[number];

/** Writes on the way to a checkpoint that is kept, to its end, and to a fork of it. */
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

/** Physical acts on those ways. */
export const FORK_EFFECTS = ["begins to save", "saves", "unsaves", "copies a checkpoint", "forks"] as const;

/** Writes about drives, and about what sandboxes have of them. */
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

/** Physical acts on drives, and in sandboxes. */
export const DRIVE_EFFECTS = [
  "begins a drive",
  "makes a drive",
  "removes a drive",
  "closes a place",
  "mounts",
  "unmounts",
] as const;

/** Physical acts on the way into standby and out of it. */
export const SLEEP_EFFECTS = [
  "freezes",
  "thaws",
  "begins a checkpoint",
  "writes a checkpoint",
  "restores",
  "discards",
] as const;

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

/** Physical acts on that way. */
export const SLEEP_EFFECTS = [
  "freezes",
  "thaws",
  "begins a checkpoint",
  "writes a checkpoint",
  "restores",
  "discards",
] as const;

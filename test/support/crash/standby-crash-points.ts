/** Points of a suspension and of a wake at which a server can be made to kill itself. */
export const INTO_STANDBY = [
  "before the suspension is stored",
  "when the suspension is stored",
  "before the freeze",
  "when it is frozen",
  "while its memory is written",
  "when its memory is written",
  "before the standby is stored",
  "when the standby is stored",
  "before its processes are ended",
  "when its processes are ended",
  "when their absence is stored",
] as const;

export const OUT_OF_STANDBY = [
  "before the wake is stored",
  "when the wake is stored",
  "while its memory is restored",
  "when its memory is restored",
  "before the checkpoint is stored as spent",
  "when the checkpoint is stored as spent",
  "before the thaw",
  "when it is thawed",
  "when its keeper is asked",
  "before the completed wake is stored",
  "when the completed wake is stored",
  "before its checkpoint is discarded",
] as const;

/** Points of creating a named checkpoint of a sandbox that keeps running. */
export const INTO_CHECKPOINT = [
  "before the suspension is stored",
  "when the suspension is stored",
  "before the freeze",
  "when it is frozen",
  "while it is copied",
  "when it is copied",
  "before the thaw",
  "when it is thawed",
  "before the checkpoint is stored",
  "when the checkpoint is stored",
] as const;

/** Points of creating a sandbox from a checkpoint. */
export const INTO_FORK = [
  "before the fork is stored",
  "when the fork is stored",
  "when its lease is stored",
  "while it is launched",
  "when it is launched",
  "when its launch is stored",
  "before its proof is stored",
  "when its proof is stored",
] as const;

export type SleepPoint =
  | (typeof INTO_STANDBY)[number]
  | (typeof OUT_OF_STANDBY)[number]
  | (typeof INTO_CHECKPOINT)[number]
  | (typeof INTO_FORK)[number];

export const dieAt = (point: SleepPoint): NodeJS.ProcessEnv => ({ HOLDFAST_CRASH_AT: point });

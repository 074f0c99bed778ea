/** The moments of an exec's life at which a server can be told to die. */
export type CrashPoint =
  | "before the exec is stored"
  | "when the exec is stored"
  | "when the start was sent"
  | "when the start was answered"
  | "when the end was heard"
  | "before the end is stored"
  | "when the end is stored"
  | "when output was asked for"
  | "when output was read"
  | "in the middle of the answer"
  | "in the middle of the stream"
  | "before the cancel is sent"
  | "when the cancel was sent"
  | "when the cancel was answered"
  | "when stdin was sent"
  | "when stdin was taken"
  | "when the forgetting was sent"
  | "when the forgetting was answered"
  | "before the forgetting is stored"
  | "when the forgetting is stored";

export const crashAt = (point: CrashPoint, execId: string): NodeJS.ProcessEnv => ({
  HOLDFAST_CRASH_AT: point,
  HOLDFAST_CRASH_EXEC: execId,
});

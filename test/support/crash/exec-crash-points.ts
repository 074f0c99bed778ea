/** Points in the life of an exec at which a server can be made to kill itself. */
export type CrashPoint =
  | "before the exec is stored"
  | "when the exec is stored"
  | "when the start was sent"
  | "when the start was answered"
  | "when the end was received"
  | "before the end is stored"
  | "when the end is stored"
  | "when output was requested"
  | "when output was read"
  | "in the middle of the response"
  | "in the middle of the stream"
  | "before the cancel is sent"
  | "when the cancel was sent"
  | "when the cancel was answered"
  | "when stdin was sent"
  | "when stdin was accepted"
  | "when the forget request was sent"
  | "when the forget request was answered"
  | "before the exec's deletion is stored"
  | "when the exec's deletion is stored";

export const crashAt = (point: CrashPoint, execId: string): NodeJS.ProcessEnv => ({
  HOLDFAST_CRASH_AT: point,
  HOLDFAST_CRASH_EXEC: execId,
});

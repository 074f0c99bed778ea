import type { SandboxRecord } from "../ports/records.ts";

/** The facts that decide whether a sandbox is idle. */
export interface IdleFacts {
  record: Pick<SandboxRecord, "lastActivityAt" | "spec">;
  /** Number of calls in progress, including callers that wait for the end of an exec. */
  callsInProgress: number;
  /** Whether an open exec or a process that has not ended has `keepAwake`. */
  isKeptAwake: boolean;
  now: number;
}

/** Whether the sandbox has not been used for `ms`, and no call is in progress. */
export const isUnusedFor = (
  { record, callsInProgress, now }: Omit<IdleFacts, "isKeptAwake">,
  ms: number,
): boolean => callsInProgress === 0 && now - record.lastActivityAt >= ms;

/**
 * Whether the sandbox has been idle for as long as its `idleStandbyMs` says, so that it may be suspended. A sandbox
 * without that setting is never idle. A sandbox with an exec or process that has `keepAwake` is not idle either, even
 * while the exec or process does nothing.
 */
export function isIdle(facts: IdleFacts): boolean {
  const { idleStandbyMs } = facts.record.spec.lifecycle;
  return idleStandbyMs !== undefined && isUnusedFor(facts, idleStandbyMs) && !facts.isKeptAwake;
}

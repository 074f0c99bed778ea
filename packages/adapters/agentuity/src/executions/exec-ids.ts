/**
 * Prefixes of the ids of executions, jobs and stdin streams. The ids that one request creates have the same suffix.
 */
const EXECUTION = "exe_";
const JOB = "job_";
const STDIN = "sin_";

export const executionIdOf = (order: string): string => `${EXECUTION}${order}`;
export const jobIdOf = (order: string): string => `${JOB}${order}`;
export const stdinIdOf = (order: string): string => `${STDIN}${order}`;

/** A job is an ordinary exec. Only the prefix of its id distinguishes it from other execs. */
export const isJob = (execId: string): boolean => execId.startsWith(JOB);

/**
 * Returns the suffix of a stdin stream's id; the id of the execution that reads the stream has the same suffix. Returns
 * null if the id is not that of a stdin stream.
 */
export function orderOfStdin(streamId: string): string | null {
  const [, order] = /^sin_([a-z0-9]{20})$/.exec(streamId) ?? [];
  return order ?? null;
}

/** What an execution, a job and a stream of stdin are called. One order makes one of each, under ids that end alike. */
const EXECUTION = "exe_";
const JOB = "job_";
const STDIN = "sin_";

export const executionIdOf = (order: string): string => `${EXECUTION}${order}`;
export const jobIdOf = (order: string): string => `${JOB}${order}`;
export const stdinIdOf = (order: string): string => `${STDIN}${order}`;

/** Jobs are execs like any other; only their ids tell them apart. */
export const isJob = (execId: string): boolean => execId.startsWith(JOB);

/** The order that a stream of stdin was made for; null where this is no such stream. */
export function orderOfStdin(streamId: string): string | null {
  const [, order] = /^sin_([a-z0-9]{20})$/.exec(streamId) ?? [];
  return order ?? null;
}

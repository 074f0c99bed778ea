/**
 * `npm test` runs each claim on a sample of its cases or at a smaller size. `npm run test:long` sets HOLDFAST_LONG and
 * runs the same files with every case, at full size and in real time.
 */
export const isLong = process.env.HOLDFAST_LONG !== undefined;

/** Returns every case in the long run; otherwise the first case and each nth after it. */
export const sample = <Case>(cases: readonly Case[], every: number): Case[] =>
  cases.filter((_, i) => isLong || i % every === 0);

/** Percentiles of a duration, in milliseconds. */
export interface Sample {
  p50: number;
  p95: number;
  p99: number;
  n: number;
}

export function summarise(times: readonly number[]): Sample {
  const sorted = [...times].sort((a, b) => a - b);
  const at = (share: number) =>
    sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), n: sorted.length };
}

/** Times `count` runs, `width` of them concurrently, after `warmUp` runs that do not count. */
export async function timed(
  count: number,
  work: (i: number) => Promise<unknown>,
  { width = 1, warmUp = 2 }: { width?: number; warmUp?: number } = {},
): Promise<{ sample: Sample; perSecond: number }> {
  for (let i = 0; i < warmUp; i += 1) await work(-1 - i);
  const times: number[] = [];
  const todo = Array.from({ length: count }, (_, i) => i).values();
  const startedAt = performance.now();
  const worker = async () => {
    for (const i of todo) {
      const from = performance.now();
      await work(i);
      times.push(performance.now() - from);
    }
  };
  await Promise.all(Array.from({ length: width }, worker));
  return { sample: summarise(times), perSecond: (count * 1000) / (performance.now() - startedAt) };
}

const SETTLE_MS = 150;

/**
 * Times several contenders in turns, `perRound` runs each per round, so that a noisy moment of the machine affects all
 * of them and the ratios stay meaningful.
 */
export async function interleaved(
  contenders: Record<string, (i: number) => Promise<unknown>>,
  rounds: Record<string, number>,
  perRound: number,
): Promise<Record<string, Sample>> {
  const times: Record<string, number[]> = {};
  for (const [name, work] of Object.entries(contenders)) {
    times[name] = [];
    await work(-1);
  }
  const most = Math.max(...Object.values(rounds));
  for (let round = 0; round < most; round += 1) {
    for (const [name, work] of Object.entries(contenders)) {
      if (round >= (rounds[name] ?? most)) continue;
      // Pauses, so that the previous contender's clean-up does not slow this one.
      await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
      for (let i = 0; i < perRound; i += 1) {
        const from = performance.now();
        await work(round * perRound + i);
        times[name]?.push(performance.now() - from);
      }
    }
  }
  return Object.fromEntries(Object.entries(times).map(([name, all]) => [name, summarise(all)]));
}

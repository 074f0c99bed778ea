/** Findings about resource limits: memory, disk and processes. */
import { mb, percent, seconds } from "../lib/format.ts";
import type { Facts, FindingText, Rule } from "./diagnosis.ts";
import { fitOf, risingShare, slopeOf } from "./linear-fit.ts";
import { CANCEL, describeCommands, describeTimeouts } from "./phrases.ts";
import { nameOf } from "./process-activity.ts";

const PIDS_SHARE = 0.95;
const DISK_SHARE = 0.97;
const OOM_LATELY_MS = 600_000;
const LEAK = {
  points: 5,
  rising: 0.85,
  fit: 0.8,
  minMb: 8,
  soonMs: 600_000,
  sureMs: 120_000,
  problemMs: 8_000,
};
const MEGABYTE = 1_048_576;

export const outOfMemory: Rule = {
  kind: "out_of_memory",
  severity: "problem",
  evaluate: ({ oom, now, limits, usage }) =>
    oom.kills === 0 || oom.lastAt === null || Math.abs(now - oom.lastAt) > OOM_LATELY_MS
      ? null
      : {
          summary: `The sandbox ran out of memory: the kernel killed ${oom.kills} of its processes at the limit of ${limits.memoryMb} MB.`,
          evidence: [
            `The last kill was observed ${seconds(Math.max(0, now - oom.lastAt))} ago.`,
            ...(usage === null ? [] : [`The sandbox uses ${mb(usage.memoryBytes)} MB now.`]),
          ],
          confidence: "high",
          holdfast:
            "Nothing else: a command that was killed ended with cause oom_killed; a command that lost a child process keeps running.",
          you: [
            "Create a sandbox with a larger resources.memoryMb.",
            "Find the processes that use the memory: 'holdfast resources NAME'.",
          ],
        },
};

export const diskFull: Rule = {
  kind: "disk_full",
  severity: "problem",
  evaluate: ({ usage, isDiskFull }) => {
    const disk = usage?.disk ?? null;
    const share = disk === null ? 0 : disk.usedBytes / Math.max(1, disk.limitBytes);
    if (!isDiskFull && share < DISK_SHARE) return null;
    return {
      summary: "The disk of the sandbox is full: commands run, but their writes fail.",
      evidence: [
        ...(disk === null ? [] : [`${mb(disk.usedBytes)} of ${mb(disk.limitBytes)} MB are used.`]),
        ...(isDiskFull ? ["The last proof could not write a file."] : []),
      ],
      confidence: "high",
      holdfast:
        "Nothing: Holdfast deletes no files of a sandbox. It stays reachable, so that you can free space.",
      you: [
        "Find large directories: 'holdfast exec NAME -- du -xh -d2 / | sort -h | tail'.",
        "Remove files, or create a sandbox with a larger resources.diskMb.",
      ],
    };
  },
};

export const pidLimit: Rule = {
  kind: "pid_limit",
  severity: "problem",
  evaluate: ({ usage, limits, forksRefused, execs, now }) => {
    if (usage === null) return null;
    const share = usage.processes / limits.pids;
    if (share < PIDS_SHARE && forksRefused === 0) return null;
    return {
      summary: `The sandbox has reached its process limit: ${usage.processes} of ${limits.pids}; it can start no new process.`,
      evidence: [
        `${usage.pidsRefused} forks were refused in total${forksRefused > 0 ? `, ${forksRefused} of them during the observation` : ""}.`,
        ...describeCommands(execs.running).slice(0, 3),
      ],
      confidence: "high",
      holdfast: describeTimeouts(execs.running, now),
      you: [
        CANCEL,
        "List its processes: 'holdfast resources NAME'.",
        "Create a sandbox with a larger resources.pids.",
      ],
    };
  },
};

/** Returns a finding about steady growth of memory over the samples; null if memory does not grow steadily. */
function findGrowth({ memory, limits, activity }: Facts): (FindingText & { spanMs: number }) | null {
  const [first, last] = [memory[0], memory.at(-1)];
  if (memory.length < LEAK.points || first === undefined || last === undefined) return null;
  const spanMs = last.x - first.x;
  const grown = last.y - first.y;
  const rate = slopeOf(memory);
  if (grown < LEAK.minMb * MEGABYTE || rate <= 0) return null;
  if (risingShare(memory) < LEAK.rising || fitOf(memory) < LEAK.fit) return null;
  const leftMs = Math.max(0, (limits.memoryMb * MEGABYTE - last.y) / rate);
  const isLarge = grown >= 0.05 * limits.memoryMb * MEGABYTE;
  if (!isLarge && leftMs > LEAK.soonMs) return null;
  const [most] = (activity?.lasting ?? [])
    .filter(({ grownBytes }) => grownBytes > 0)
    .sort((a, b) => b.grownBytes - a.grownBytes);
  const blame = `${most === undefined ? "" : nameOf(most.process)} grew the most during the observation, to ${mb(most?.process.rssBytes ?? 0)} MB.`;
  return {
    spanMs,
    summary: `The memory of the sandbox grows steadily, as in a memory leak: ${mb(grown)} MB in ${seconds(spanMs)}, ${mb(rate * 60_000)} MB a minute.`,
    evidence: [
      `${mb(last.y)} of ${limits.memoryMb} MB are used; at this rate the limit is reached in about ${seconds(leftMs)}.`,
      `${percent(risingShare(memory))} of ${memory.length - 1} steps between samples went up.`,
      ...(most === undefined ? [] : [blame]),
    ],
    confidence: spanMs >= LEAK.sureMs ? "high" : spanMs >= LEAK.problemMs ? "medium" : "low",
    holdfast:
      "Nothing before the limit: there the kernel kills one of its processes, which is recorded as an event. Other sandboxes are not affected.",
    you: ["Diagnose it again in a minute: a program that is only loading data stops growing.", CANCEL],
  };
}

const evaluateGrowth = (facts: Facts, isSure: boolean): FindingText | null => {
  const found = findGrowth(facts);
  if (found === null || found.spanMs >= LEAK.problemMs !== isSure) return null;
  const { spanMs: _span, ...text } = found;
  return text;
};

export const memoryLeak: Rule = {
  kind: "memory_leak",
  severity: "problem",
  evaluate: (facts) => evaluateGrowth(facts, true),
};

/** Reports growth over a short time, which may also come from a program that is loading data. */
export const growingMemory: Rule = {
  kind: "memory_leak",
  severity: "notice",
  evaluate: (facts) => evaluateGrowth(facts, false),
};

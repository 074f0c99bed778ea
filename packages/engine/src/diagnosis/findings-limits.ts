import type { Facts, Rule, Told } from "./diagnosis.ts";
import { CANCEL, commandsOf, endings, percent, seconds } from "./diagnosis-words.ts";
import { mb } from "./megabytes.ts";
import { nameOf } from "./signs.ts";
import { fitOf, risingShare, slopeOf } from "./trend.ts";

/** What runs out. */

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
  look: ({ oom, now, limits, usage }) =>
    oom.kills === 0 || oom.lastAt === null || Math.abs(now - oom.lastAt) > OOM_LATELY_MS
      ? null
      : {
          summary: `It ran out of memory: the kernel killed ${oom.kills} of its processes at its limit of ${limits.memoryMb} MB.`,
          evidence: [
            `The last kill was seen ${seconds(Math.max(0, now - oom.lastAt))} ago.`,
            ...(usage === null ? [] : [`It now uses ${mb(usage.memoryBytes)} MB.`]),
          ],
          confidence: "high",
          holdfast:
            "Nothing else: a command that was killed itself has ended with cause oom_killed, one that lost a child goes on without it.",
          you: [
            "Give it more memory: a new sandbox with a larger resources.memoryMb.",
            "Find what takes it: 'holdfast resources NAME'.",
          ],
        },
};

export const diskFull: Rule = {
  kind: "disk_full",
  severity: "problem",
  look: ({ usage, isDiskFull }) => {
    const disk = usage?.disk ?? null;
    const share = disk === null ? 0 : disk.usedBytes / Math.max(1, disk.limitBytes);
    if (!isDiskFull && share < DISK_SHARE) return null;
    return {
      summary: "Its disk is full: commands run, and whatever they write fails.",
      evidence: [
        ...(disk === null ? [] : [`${mb(disk.usedBytes)} of ${mb(disk.limitBytes)} MB are used.`]),
        ...(isDiskFull ? ["The last proof could not write."] : []),
      ],
      confidence: "high",
      holdfast: "Nothing: the files are its own. It stays reachable, so that it can be emptied.",
      you: [
        "See what takes the room: 'holdfast exec NAME -- du -xh -d2 / | sort -h | tail'.",
        "Remove some, or create one with a larger resources.diskMb.",
      ],
    };
  },
};

export const pidLimit: Rule = {
  kind: "pid_limit",
  severity: "problem",
  look: ({ usage, limits, forksRefused, execs, now }) => {
    if (usage === null) return null;
    const share = usage.processes / limits.pids;
    if (share < PIDS_SHARE && forksRefused === 0) return null;
    return {
      summary: `It has as many processes as it may have: ${usage.processes} of ${limits.pids}; no new one can be started in it.`,
      evidence: [
        `${usage.pidsRefused} forks were refused in all${forksRefused > 0 ? `, ${forksRefused} of them while it was looked at` : ""}.`,
        ...commandsOf(execs.running).slice(0, 3),
      ],
      confidence: "high",
      holdfast: endings(execs.running, now),
      you: [CANCEL, "See them: 'holdfast resources NAME'.", "Create one with a larger resources.pids."],
    };
  },
};

/** What grows, and how sure that is by now; null where nothing does. */
function growth({ memory, limits, signs }: Facts): (Told & { spanMs: number }) | null {
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
  const [most] = (signs?.lasting ?? [])
    .filter(({ grownBytes }) => grownBytes > 0)
    .sort((a, b) => b.grownBytes - a.grownBytes);
  const blame = `${most === undefined ? "" : nameOf(most.process)} grew the most while it was looked at, to ${mb(most?.process.rssBytes ?? 0)} MB.`;
  return {
    spanMs,
    summary: `Its memory grows and grows, which is how a memory leak looks: ${mb(grown)} MB in ${seconds(spanMs)}, ${mb(rate * 60_000)} MB a minute.`,
    evidence: [
      `${mb(last.y)} of ${limits.memoryMb} MB are used; at this rate it reaches its limit in about ${seconds(leftMs)}.`,
      `Of ${memory.length - 1} steps ${percent(risingShare(memory))} went up.`,
      ...(most === undefined ? [] : [blame]),
    ],
    confidence: spanMs >= LEAK.sureMs ? "high" : spanMs >= LEAK.problemMs ? "medium" : "low",
    holdfast:
      "Nothing before the limit: there the kernel kills a process of it, with an event that says so. No other sandbox is harmed.",
    you: ["Look again in a minute: one that only loads something stops growing.", CANCEL],
  };
}

const grown = (facts: Facts, isSure: boolean): Told | null => {
  const found = growth(facts);
  if (found === null || found.spanMs >= LEAK.problemMs !== isSure) return null;
  const { spanMs: _span, ...told } = found;
  return told;
};

export const memoryLeak: Rule = {
  kind: "memory_leak",
  severity: "problem",
  look: (facts) => grown(facts, true),
};

/** So short a time shows a program that loads what it needs as well. */
export const growingMemory: Rule = {
  kind: "memory_leak",
  severity: "notice",
  look: (facts) => grown(facts, false),
};

import { readFileSync } from "node:fs";

const kilobytes = (path: string, field: string): number => {
  const found = new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(readFileSync(path, "utf8"));
  return Number(found?.[1] ?? 0);
};

/**
 * Proportional set size (`pssKb`, shared pages divided among their users) and resident set size (`rssKb`) of a process.
 */
export const pssKb = (pid: number): number => kilobytes(`/proc/${pid}/smaps_rollup`, "Pss");
export const rssKb = (pid: number): number => kilobytes(`/proc/${pid}/smaps_rollup`, "Rss");

import { readFileSync } from "node:fs";

const kilobytes = (path: string, field: string): number => {
  const found = new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(readFileSync(path, "utf8"));
  return Number(found?.[1] ?? 0);
};

/** Proportional share of a process, and resident size: what it costs next to its like, and alone. */
export const pssKb = (pid: number): number => kilobytes(`/proc/${pid}/smaps_rollup`, "Pss");
export const rssKb = (pid: number): number => kilobytes(`/proc/${pid}/smaps_rollup`, "Rss");

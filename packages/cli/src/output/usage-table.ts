import type { UsageSummary } from "@holdfast/sdk";
import { age, counted, size, table } from "./table.ts";

/**
 * Functions that return a sandbox's sort key. Keys are sorted in ascending order, so a negated key puts the largest
 * figure first.
 */
const ORDERS = {
  cpu: ({ cpuPercent }: UsageSummary) => -(cpuPercent ?? -1),
  memory: ({ memoryBytes }: UsageSummary) => -(memoryBytes ?? -1),
  processes: ({ processes }: UsageSummary) => -(processes ?? -1),
  operations: ({ operations }: UsageSummary) => -operations,
  activity: ({ lastActivityAt }: UsageSummary) => -Date.parse(lastActivityAt),
  age: ({ createdAt }: UsageSummary) => Date.parse(createdAt),
  status: ({ status }: UsageSummary) => status,
  name: ({ name }: UsageSummary) => name,
} as const;

export type UsageOrder = keyof typeof ORDERS;
export const USAGE_ORDERS = Object.keys(ORDERS) as UsageOrder[];

/**
 * Sorts by `order`, then by name, so that sandboxes with equal values do not change places when the table is redrawn.
 */
export function inOrder(usage: readonly UsageSummary[], order: UsageOrder): UsageSummary[] {
  const first = ORDERS[order];
  const compare = (one: string | number, other: string | number) => (one < other ? -1 : one > other ? 1 : 0);
  return [...usage].sort((one, other) => compare(first(one), first(other)) || compare(one.name, other.name));
}

export const usageTable = (usage: readonly UsageSummary[], now: number = Date.now()): string =>
  table(
    ["NAME", "STATUS", "AGE", "CPU %", "MEMORY", "PROCS", "OPS", "ACTIVE", "CAUSE"],
    usage.map((one) => [
      one.name,
      one.status,
      age(one.createdAt, now),
      one.cpuPercent === null ? "-" : one.cpuPercent.toFixed(1),
      `${one.memoryBytes === null ? "-" : size(one.memoryBytes)} / ${size(one.memoryLimitBytes)}`,
      one.processes === null ? "-" : String(one.processes),
      String(one.operations),
      `${age(one.lastActivityAt, now)} ago`,
      one.cause?.message ?? "",
    ]),
  );

/** Formats counts by status: "3 sandboxes: 2 ready, 1 degraded". */
export function tallyOf(usage: readonly UsageSummary[]): string {
  const byStatus = Map.groupBy(usage, ({ status }) => status);
  const parts = [...byStatus].map(([status, those]) => `${those.length} ${status}`);
  const all = counted(usage.length, "sandbox", "sandboxes");
  return parts.length === 0 ? all : `${all}: ${parts.join(", ")}`;
}

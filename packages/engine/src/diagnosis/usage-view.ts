import type { UsageSummary } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import type { Meter } from "./meter.ts";

/** A line of `holdfast top`. */
export function summaryOf(cell: Cell, meter: Meter): UsageSummary {
  const { id: sandboxId, name, createdAt, lastActivityAt, spec } = cell.record;
  const { status, cause } = cell.judge();
  const latest = meter.latest(cell);
  return {
    sandboxId,
    name,
    status,
    cause,
    createdAt: new Date(createdAt).toISOString(),
    lastActivityAt: new Date(lastActivityAt).toISOString(),
    operations: meter.operations(cell),
    measuredAt: latest === null ? null : new Date(latest.at).toISOString(),
    cpuPercent: latest === null ? null : Math.round(latest.cpuPercent * 10) / 10,
    memoryBytes: latest?.memoryBytes ?? null,
    memoryLimitBytes: spec.resources.memoryMb * 1_048_576,
    processes: latest?.processes ?? null,
    processLimit: spec.resources.pids,
  };
}

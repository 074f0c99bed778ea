import type { UsageSummary } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { UsageMeter } from "./usage-meter.ts";

/** Returns one line of `holdfast top`. */
export function summaryOf(live: LiveSandbox, meter: UsageMeter): UsageSummary {
  const { id: sandboxId, name, createdAt, lastActivityAt, spec } = live.record;
  const { status, cause } = live.judge();
  const latest = meter.latest(live);
  return {
    sandboxId,
    name,
    status,
    cause,
    createdAt: iso(createdAt),
    lastActivityAt: iso(lastActivityAt),
    operations: meter.operations(live),
    measuredAt: latest === null ? null : iso(latest.at),
    cpuPercent: latest === null ? null : Math.round(latest.cpuPercent * 10) / 10,
    memoryBytes: latest?.memoryBytes ?? null,
    memoryLimitBytes: spec.resources.memoryMb * 1_048_576,
    processes: latest?.processes ?? null,
    processLimit: spec.resources.pids,
  };
}

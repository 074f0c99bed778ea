import type { SweepItem, SweepLayer, SweepReport, SweepRule } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";

/** Why an item was removed or suspended. */
const MESSAGES: Record<SweepRule, string> = {
  kept_long_enough: "the failed sandbox was kept for its full retention",
  past_ttl: "its ttlMs has passed",
  past_idle_ttl: "the sandbox was idle for its idleTtlMs",
  disposable: "the host is short of resources, and the sandbox was created disposable",
  idle: "the host is short of memory, and the sandbox is idle",
  old_events: "events past their retention",
  old_keys: "idempotency keys, records of deleted sandboxes, alerts and deliveries past their retention",
  ended_execs: "ended execs past their retention",
};

/**
 * Why an item was removed or suspended in an emergency cleanup on request. These texts replace those in `MESSAGES`,
 * because such a cleanup does not depend on a shortage.
 */
const REQUESTED: Partial<Record<SweepRule, string>> = {
  disposable: "an emergency cleanup was requested, and the sandbox was created disposable",
  idle: "an emergency cleanup was requested, and the sandbox is idle",
};

/** Replaces an item's reason with the reason of an emergency cleanup on request. */
export const withRequestReason = (one: SweepItem): SweepItem => {
  const message = one.action === "failed" ? undefined : REQUESTED[one.rule];
  return message === undefined ? one : { ...one, message };
};

export const item = (
  rule: SweepRule,
  live: LiveSandbox | null,
  count: number,
  action: SweepItem["action"],
): SweepItem => ({
  rule,
  sandboxId: live?.id ?? null,
  count,
  action,
  message: MESSAGES[rule],
});

/** Builds the report of a sweep from its items. */
export function report(
  layers: SweepLayer[],
  items: SweepItem[],
  rest: { at: number; ms: number; dryRun?: boolean; emergency?: boolean },
): SweepReport {
  const sum = (action: SweepItem["action"]) =>
    items.reduce((total, one) => total + (one.action === action ? one.count : 0), 0);
  return {
    at: iso(rest.at),
    ms: rest.ms,
    layers,
    emergency: rest.emergency ?? false,
    dryRun: rest.dryRun ?? false,
    removed: sum("removed"),
    putToStandby: sum("put_to_standby"),
    failed: sum("failed"),
    items,
  };
}

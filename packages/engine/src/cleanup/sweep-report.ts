import type { SweepItem, SweepLayer, SweepReport, SweepRule } from "@holdfast/contract";
import type { Cell } from "./cell.ts";

/** Why something was cleaned, or put to standby. */
const MESSAGES: Record<SweepRule, string> = {
  kept_long_enough: "it failed, and has been kept for as long as it was to be",
  past_ttl: "its ttlMs is over",
  past_idle_ttl: "nobody has used it for its idleTtlMs",
  disposable: "the host runs short, and it was created disposable",
  idle: "the host runs short of memory, and nobody has used it for a while",
  old_events: "events past their retention",
  old_keys: "idempotency keys, records of deleted sandboxes, alerts and deliveries past their retention",
  ended_execs: "ended execs past their retention",
};

/** What an order says where a shortage is not the reason. */
const ORDERED: Partial<Record<SweepRule, string>> = {
  disposable: "an emergency cleanup was ordered, and it was created disposable",
  idle: "an emergency cleanup was ordered, and nobody has used it for a while",
};

export const toldAsOrdered = (one: SweepItem): SweepItem => {
  const message = one.action === "failed" ? undefined : ORDERED[one.rule];
  return message === undefined ? one : { ...one, message };
};

export const item = (
  rule: SweepRule,
  cell: Cell | null,
  count: number,
  action: SweepItem["action"],
): SweepItem => ({
  rule,
  sandboxId: cell?.id ?? null,
  count,
  action,
  message: MESSAGES[rule],
});

/** What was done, with its counts. */
export function report(
  layers: SweepLayer[],
  items: SweepItem[],
  rest: { at: number; ms: number; dryRun?: boolean; emergency?: boolean },
): SweepReport {
  const sum = (action: SweepItem["action"]) =>
    items.reduce((total, one) => total + (one.action === action ? one.count : 0), 0);
  return {
    at: new Date(rest.at).toISOString(),
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

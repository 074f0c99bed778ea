import { HoldfastError, LABELS_MAX, type UpdateSandbox, VARIABLES_MAX } from "@holdfast/contract";
import type { SandboxSpec } from "./records.ts";

/**
 * What a sandbox is by a change of it, and in words what changed; null where that is nothing.
 */
export function changedSpec(
  spec: SandboxSpec,
  { labels, env, lifecycle }: UpdateSandbox,
): { spec: SandboxSpec; what: string } | null {
  const next: SandboxSpec = {
    ...spec,
    labels: merged(spec.labels, labels),
    env: merged(spec.env, env),
    lifecycle: merged(spec.lifecycle, lifecycle),
  };
  requireFew("The sandbox", "labels", next.labels, LABELS_MAX);
  requireFew("The sandbox", "variables", next.env, VARIABLES_MAX);
  const keys = { labels: changedKeys(spec.labels, next.labels), env: changedKeys(spec.env, next.env) };
  const all = { ...keys, lifecycle: changedKeys(spec.lifecycle, next.lifecycle) };
  const what = Object.entries(all).filter(([, changed]) => changed.length > 0);
  if (what.length === 0) return null;
  return { spec: next, what: what.map(([field, changed]) => `${field} (${told(changed)})`).join(", ") };
}

type Values = Readonly<Record<string, unknown>>;

/** Keys that are not named stay, those that are null go. */
export function merged<Known extends Values>(before: Known, changes: Values = {}): Known {
  const left = Object.entries({ ...before, ...changes }).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  return Object.fromEntries(left) as Known;
}

export const changedKeys = (before: Values, after: Values): string[] =>
  Object.keys({ ...before, ...after }).filter((key) => before[key] !== after[key]);

const TOLD = 8;
export const told = (keys: readonly string[]): string =>
  keys.length <= TOLD ? keys.join(", ") : `${keys.slice(0, TOLD).join(", ")} and ${keys.length - TOLD} more`;

export function requireFew(whose: string, what: string, values: Values, most: number): void {
  const count = Object.keys(values).length;
  if (count <= most) return;
  const message = `${whose} would have ${count} ${what}; ${most} is the most.`;
  throw new HoldfastError("invalid_request", { message });
}

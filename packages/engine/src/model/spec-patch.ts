import { HoldfastError, LABELS_MAX, type UpdateSandbox, VARIABLES_MAX } from "@holdfast/contract";
import { listNames } from "../lib/format.ts";
import type { SandboxSpec } from "../ports/records.ts";

/** The changes of an update, with the TTL counted from the sandbox's creation. */
type FixedChanges = Omit<UpdateSandbox, "lifecycle"> & {
  lifecycle?: Omit<NonNullable<UpdateSandbox["lifecycle"]>, "expiresInMs">;
};

/**
 * Converts a new TTL so that it counts from the sandbox's creation. Refuses an end that has already passed, because it
 * would delete the sandbox at once; a caller who wants that can delete the sandbox.
 */
export function withFixedEnd(
  { lifecycle, ...others }: UpdateSandbox,
  { createdAt, now }: { createdAt: number; now: number },
): FixedChanges {
  if (lifecycle === undefined) return others;
  const { expiresInMs, ...changes } = lifecycle;
  const age = now - createdAt;
  if (expiresInMs !== undefined) {
    if (changes.ttlMs !== undefined) throw invalid("Give either ttlMs or expiresInMs, not both.");
    changes.ttlMs = age + expiresInMs;
    if (changes.ttlMs > TTL_MAX_MS)
      throw invalid(
        `The sandbox would be ${inDays(changes.ttlMs)} days old then; ${inDays(TTL_MAX_MS)} are allowed.`,
      );
  }
  if (typeof changes.ttlMs === "number" && changes.ttlMs <= age) {
    const message = `The sandbox is ${Math.floor(age / 1_000)} s old, so a ttlMs of ${changes.ttlMs} would delete it at once. Use expiresInMs to count from now, or delete the sandbox.`;
    throw invalid(message);
  }
  return { ...others, lifecycle: changes };
}

const TTL_MAX_MS = 31_536_000_000;
const inDays = (ms: number): number => Math.ceil(ms / 86_400_000);
const invalid = (message: string) => new HoldfastError("invalid_request", { message });

/** Applies an update to a spec. Returns the new spec and a description of what changed; null if nothing did. */
export function changedSpec(
  spec: SandboxSpec,
  { labels, env, lifecycle }: FixedChanges,
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
  return { spec: next, what: what.map(([field, changed]) => `${field} (${listKeys(changed)})`).join(", ") };
}

type Values = Readonly<Record<string, unknown>>;

/** Merges an update into existing values. Keys that are absent from the update stay; keys that are null are removed. */
export function merged<Known extends Values>(before: Known, changes: Values = {}): Known {
  const left = Object.entries({ ...before, ...changes }).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  return Object.fromEntries(left) as Known;
}

export const changedKeys = (before: Values, after: Values): string[] =>
  Object.keys({ ...before, ...after }).filter((key) => before[key] !== after[key]);

/** Names the changed keys for an event. */
export const listKeys = (keys: readonly string[]): string => listNames(keys, KEYS_SHOWN);

const KEYS_SHOWN = 8;

export function requireFew(whose: string, what: string, values: Values, most: number): void {
  const count = Object.keys(values).length;
  if (count <= most) return;
  const message = `${whose} would have ${count} ${what}; at most ${most} are allowed.`;
  throw new HoldfastError("invalid_request", { message });
}

/** When a sandbox is to be deleted, as that platform says it: an age, a date, a while without use, or several of these. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { HoldfastError, type Lifecycle } from "@holdfast/contract";
import { notSupported } from "../refusals.ts";
import { durationMs } from "./durations.ts";

export const Policy = Type.Object({
  type: Type.String(),
  value: Type.String(),
  action: Type.Optional(Type.Unknown()),
});
type Policy = Static<typeof Policy>;

/** As it was asked for. */
export interface AskedExpiry {
  ttl?: string;
  expires?: string;
  policies?: readonly Policy[];
}

export type Expiry = Pick<Lifecycle, "ttlMs" | "idleTtlMs">;

const POLICIES = "body/spec/lifecycle/expirationPolicies";

/** What ends it first counts. Dates are counted from its creation, as ages are. */
export function expiryOf({ ttl, expires, policies = [] }: AskedExpiry, createdAt: number): Expiry {
  const ages = ttl === undefined ? [] : [ageMs("body/spec/runtime/ttl", ttl)];
  if (expires !== undefined) ages.push(untilMs("body/spec/runtime/expires", expires, createdAt));
  const idle: number[] = [];
  for (const { type, value, action } of policies) {
    if (action != null && action !== "delete")
      throw notSupported(`spec.lifecycle.expirationPolicies with the action ${String(action).slice(0, 40)}`);
    if (type === "ttl-max-age") ages.push(ageMs(POLICIES, value));
    else if (type === "date") ages.push(untilMs(POLICIES, value, createdAt));
    else if (type === "ttl-idle") idle.push(ageMs(POLICIES, value));
    else throw notSupported(`spec.lifecycle.expirationPolicies of type ${type.slice(0, 40)}`);
  }
  return {
    ...(ages.length > 0 ? { ttlMs: Math.min(...ages) } : {}),
    ...(idle.length > 0 ? { idleTtlMs: Math.min(...idle) } : {}),
  };
}

/** A date was read a moment before the sandbox had a time of creation. */
const DRIFT_MS = 60_000;

/** What was asked for, where that is still so; what somebody made of it meanwhile, in the same words, where it is not. */
export function shownExpiry(
  asked: AskedExpiry,
  { ttlMs, idleTtlMs }: Expiry,
  createdAt: number,
): AskedExpiry {
  const was = expiryOrNone(asked, createdAt);
  const isSame = (a: number | undefined, b: number | undefined) =>
    a === b || (a !== undefined && b !== undefined && Math.abs(a - b) <= DRIFT_MS);
  if (isSame(was.ttlMs, ttlMs) && isSame(was.idleTtlMs, idleTtlMs)) return asked;
  const seconds = (ms: number) => `${Math.ceil(ms / 1_000)}s`;
  return {
    ...(ttlMs === undefined ? {} : { ttl: seconds(ttlMs) }),
    ...(idleTtlMs === undefined
      ? {}
      : { policies: [{ type: "ttl-idle", value: seconds(idleTtlMs), action: "delete" }] }),
  };
}

/** It is kept in labels, which others can write as well. */
function expiryOrNone(asked: AskedExpiry, createdAt: number): Expiry {
  try {
    return expiryOf(asked, createdAt);
  } catch {
    return {};
  }
}

/** Of a duration that a field has. */
export function ageMs(where: string, text: string): number {
  const ms = durationMs(text);
  if (ms !== null && ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a duration such as 30m, 24h or 7d.`,
  });
}

/** How long after a time the date is that a field has. */
export function untilMs(where: string, text: string, from: number): number {
  const ms = Date.parse(text) - from;
  if (ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a date that is still to come.`,
  });
}

/**
 * Expiry settings: the platform's ways to say when a sandbox is deleted. A request gives a maximum age, a date, an idle
 * time, or several of them.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { notSupported } from "@holdfast/adapter-shared";
import { HoldfastError, type Lifecycle } from "@holdfast/contract";
import { durationMs } from "../durations.ts";

export const Policy = Type.Object({
  type: Type.String(),
  value: Type.String(),
  action: Type.Optional(Type.Unknown()),
});
type Policy = Static<typeof Policy>;

/** The expiry settings as requested. */
export interface AskedExpiry {
  ttl?: string;
  expires?: string;
  policies?: readonly Policy[];
}

type Expiry = Pick<Lifecycle, "ttlMs" | "idleTtlMs">;

const POLICIES = "body/spec/lifecycle/expirationPolicies";

/**
 * Converts the expiry settings to a maximum age (`ttlMs`) and a maximum idle time (`idleTtlMs`). A date is converted to
 * a maximum age, counted from the sandbox's creation. If several settings give a maximum age, the shortest one applies,
 * and likewise for the maximum idle time. A limit that no setting gives is left out.
 */
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

/**
 * Tolerance when expiry settings are compared with a sandbox's limits. A requested date differs from the limit by a
 * moment, because it was converted to an age shortly before the sandbox got its creation time.
 */
const DRIFT_MS = 60_000;

/**
 * Returns the expiry settings as the client requested them, if the sandbox still has the limits that they give.
 * Otherwise returns settings that give the sandbox's current limits.
 */
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

/**
 * Converts expiry settings to limits. Returns no limits if the settings are invalid: they are read from labels, which
 * other clients can write too.
 */
function expiryOrNone(asked: AskedExpiry, createdAt: number): Expiry {
  try {
    return expiryOf(asked, createdAt);
  } catch {
    return {};
  }
}

/** Parses the duration in a field. */
export function ageMs(where: string, text: string): number {
  const ms = durationMs(text);
  if (ms !== null && ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a duration such as 30m, 24h or 7d.`,
  });
}

/** Returns the time from `from` until the date in a field. */
export function untilMs(where: string, text: string, from: number): number {
  const ms = Date.parse(text) - from;
  if (ms > 0) return ms;
  throw new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a date in the future.`,
  });
}

import type { Sandbox } from "@holdfast/contract";
import type { Invariant } from "./invariant.ts";

import { short } from "./wording.ts";

/**
 * Maximum time until a shortage or an emergency cleanup causes its last deletion. It is measured from the end of the
 * shortage, or from the request of the cleanup.
 */
const SHORT_MS = 30_000;

const removedForAReason: Invariant = {
  name: "removed-for-a-reason",
  promise:
    "A sandbox is deleted only on request, after its TTL, after its idle TTL with nothing running in it, after the retention of a failure, or, if it was created disposable and nothing runs in it, when the host is short of resources.",
  witnessed({ mirror, history, host, time }, fact) {
    if (fact.type === "emergency") history.emergencyAt = time.elapsed;
    if (fact.type === "stored" && fact.change.kind === "sandbox.update") {
      const { id, phase, spec } = fact.change.record;
      const isNews = phase.name === "deleting" && !history.deleting.has(id);
      if (phase.name === "failed") history.keptUntil.set(id, phase.keptUntil);
      if (!isNews) return null;
      history.deleting.add(id);
      const { name, createdAt, lastActivityAt } = fact.change.record;
      const { ttlMs, idleTtlMs, disposable } = spec.lifecycle;
      const now = time.now();
      const isShort = time.elapsed - Math.max(host.shortAt, history.emergencyAt) < SHORT_MS;
      const isIdle = mirror.openExecs().every(({ sandboxId }) => sandboxId !== id);
      const isAllowed =
        history.unwanted.has(id) ||
        history.unwanted.has(name) ||
        (ttlMs !== undefined && createdAt + ttlMs <= now) ||
        (idleTtlMs !== undefined && isIdle && lastActivityAt + idleTtlMs <= now) ||
        (history.keptUntil.get(id) ?? Number.POSITIVE_INFINITY) <= now ||
        (disposable === true && isIdle && isShort);
      return isAllowed ? null : `${short(id)} is deleted without a reason`;
    }
    if (fact.type !== "pruned") return null;
    const { id, phase, endedAt } = fact.record;
    const isOld = phase.name === "gone" && endedAt !== null && endedAt < fact.goneBefore;
    return isOld ? null : `the record of ${short(id)} was removed in phase ${phase.name}`;
  },
};

const OVER: ReadonlySet<Sandbox["status"]> = new Set(["stopping", "terminated", "failed"]);

const endsAtItsEnd: Invariant = {
  name: "ends-at-its-end",
  promise: "A sandbox past the end of its TTL is never reported as one that serves or will serve.",
  witnessed({ time }, fact) {
    if (fact.type !== "reported-sandbox") return null;
    const { id, status, expiresAt, lease } = fact.sandbox;
    if (expiresAt === null || Date.parse(expiresAt) > time.now() || OVER.has(status)) return null;
    return lease.state === "quarantined" ? null : `${short(id)} is past its end and ${status}`;
  },
};

const failsForItsOwn: Invariant = {
  name: "fails-for-its-own",
  promise: "A sandbox that has served does not fail because others could not be launched.",
  witnessed({ history }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { id, phase } = fact.change.record;
    if (phase.name !== "failed" || !history.provenOnce.has(id)) return null;
    return phase.cause.code === "launches_suspended" ? `${short(id)} failed: ${phase.cause.message}` : null;
  },
};

export const REMOVAL_INVARIANTS: readonly Invariant[] = [removedForAReason, endsAtItsEnd, failsForItsOwn];

import { type Cause, HoldfastError, type SweepRule } from "@holdfast/contract";
import type { SandboxRecord } from "../ports/records.ts";
import { errorOf } from "./keeper-errors.ts";

/** Why a sandbox is deleted that has reached the end of its `ttlMs`. */
export const EXPIRED: Cause = { code: "expired", message: "The sandbox has reached the end of its TTL." };

/** For each sweep rule that deletes sandboxes without a request: the cause that is recorded with the delete. */
const CAUSES: Partial<Record<SweepRule, Cause>> = {
  past_ttl: EXPIRED,
  past_idle_ttl: { code: "idle_expired", message: "The sandbox was unused for as long as its idleTtlMs." },
  kept_long_enough: {
    code: "kept_long_enough",
    message: "The files of the failed sandbox were kept for as long as failed sandboxes are kept.",
  },
  disposable: {
    code: "disposed",
    message: "The sandbox is disposable, and it was removed to free resources of the host.",
  },
};

export const removalCause = (rule: SweepRule): Cause | null => CAUSES[rule] ?? null;

const CODES: ReadonlySet<string> = new Set(Object.values(CAUSES).map(({ code }) => code));

/** Whether a rule, and not a request, deletes or has deleted the sandbox. */
export const isRemovedByRule = ({ phase }: Pick<SandboxRecord, "phase">): boolean =>
  (phase.name === "deleting" || phase.name === "gone") && phase.cause !== null && CODES.has(phase.cause.code);

/** Creates the error for a call on a sandbox that has been deleted, is being deleted, or has expired. */
export function goneError(sandboxId: SandboxRecord["id"], cause: Cause | null): HoldfastError {
  if (cause === null || !CODES.has(cause.code)) return new HoldfastError("sandbox_gone", { sandboxId });
  return new HoldfastError("sandbox_gone", { sandboxId, message: cause.message, cause: errorOf(cause) });
}

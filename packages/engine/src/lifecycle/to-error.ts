import { causeOf, type ErrorCode, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { errorOf } from "../model/keeper-errors.ts";

interface Failure {
  code: ErrorCode;
  /** The beginning of the error message, which names the operation that failed. */
  what: string;
  /** The error that follows from the sandbox's phase. If it is set, the caller gets it instead of the failure. */
  refusal?: HoldfastError | null;
}

/** Converts the error of an operation on a sandbox to a `HoldfastError`. Returns a `HoldfastError` unchanged. */
export function toError(live: LiveSandbox, failure: Failure, error: unknown): unknown {
  if (isHoldfastError(error)) return error;
  const { code, what, refusal = live.refusal() } = failure;
  if (refusal !== null) return refusal;
  const cause = causeOf(error);
  const message = `${what}: ${cause.message}`;
  return new HoldfastError(code, { sandboxId: live.id, message, cause: errorOf(cause) });
}

/** The error of an operation that the sandbox's phase does not allow. */
export const wrongState = (live: LiveSandbox, message: string): HoldfastError =>
  live.refusal() ?? new HoldfastError("wrong_state", { sandboxId: live.id, message });

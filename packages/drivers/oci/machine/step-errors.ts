import { HoldfastError, type SandboxId } from "@holdfast/contract";
import { CheckpointUnusable, type LaunchOrder } from "@holdfast/engine";
import { PorterError } from "@holdfast/keeper";
import { errnoOf } from "../proc/errno.ts";
import type { Machine } from "./machine.ts";

/** The reason why a launch step was refused. Callers see the message, so it contains no path. */
export class LaunchRefusal extends Error {
  override readonly name = "LaunchRefusal";
}

/**
 * The reason why memory was not dumped or restored. Callers see the message, so it contains no path. The operator also
 * sees the detail.
 */
export class StandbyRefusal extends Error {
  override readonly name = "StandbyRefusal";
  readonly detail: string;
  constructor(message: string, detail = message) {
    super(message);
    this.detail = detail;
  }
}

/** One step of a launch failed. The message is for callers and contains no path; the detail is for the operator. */
export class LaunchStepError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(step: string, complaint: string, error: unknown) {
    super([complaint, ...reasonFor(error)].join(": "), error instanceof PorterError ? { cause: error } : {});
    this.name = "LaunchStepError";
    this.code = `launch_${step}`;
    this.detail = detailOf(error);
  }
}

/**
 * A step of a checkpoint or restore failed. The message is for callers, without paths; the detail is for the operator.
 */
export class StandbyStepError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(code: string, complaint: string, error: unknown) {
    const reason = error instanceof StandbyRefusal ? [error.message] : [];
    super([complaint, ...(isDiskFull(error) ? [DISK_FULL] : reason)].join(": "));
    this.name = "StandbyStepError";
    this.code = code;
    this.detail = detailOf(error);
  }
}

const DISK_FULL = "the host's disk is full";

function reasonFor(error: unknown): string[] {
  if (error instanceof LaunchRefusal || error instanceof StandbyRefusal) return [error.message];
  return isDiskFull(error) ? [DISK_FULL] : [];
}

const detailOf = (error: unknown): string =>
  error instanceof StandbyRefusal ? error.detail : error instanceof Error ? error.message : String(error);

/**
 * Whether the error means that a disk is full, according to its errno or to the kernel's text in a helper's message.
 */
export function isDiskFull(error: unknown): boolean {
  if (["ENOSPC", "EDQUOT"].includes(errnoOf(error))) return true;
  return error instanceof Error && /No space left on device|Disk quota exceeded/.test(error.message);
}

/** Returns a function that runs one launch step, reports its progress, and wraps its errors in a `LaunchStepError`. */
export function launchSteps(machine: Machine, order: LaunchOrder, signal: AbortSignal) {
  return async <Result>(
    name: string,
    complaint: string,
    act: () => Promise<Result> | Result,
  ): Promise<Result> => {
    signal.throwIfAborted();
    order.onStep?.(name);
    try {
      return await act();
    } catch (error) {
      // Errors that do not mean that the host failed are not wrapped, for example an unusable checkpoint.
      if (error instanceof HoldfastError || error instanceof CheckpointUnusable) throw error;
      const { sandboxId, generation } = order;
      const cause = new LaunchStepError(name, complaint, error);
      machine.log.warn({ sandboxId, generation, step: name, detail: cause.detail }, "launch failed");
      if (signal.aborted) throw signal.reason;
      throw new HoldfastError(isDiskFull(error) ? "disk_full" : "launch_failed", { sandboxId, cause });
    }
  };
}

interface StandbyOrder {
  sandboxId: SandboxId;
  generation: number;
  onStep?: ((step: string) => void) | undefined;
}

/**
 * Returns a function that runs a checkpoint or restore step, reports progress, and wraps errors in a
 * `StandbyStepError`.
 */
export function standbySteps(machine: Machine, order: StandbyOrder, signal: AbortSignal) {
  return async <Result>(
    step: { name: string; code: string; complaint: string },
    act: () => Promise<Result> | Result,
  ): Promise<Result> => {
    signal.throwIfAborted();
    order.onStep?.(step.name);
    try {
      return await act();
    } catch (error) {
      if (error instanceof HoldfastError) throw error;
      const { sandboxId, generation } = order;
      const failure =
        error instanceof CheckpointUnusable ? error : new StandbyStepError(step.code, step.complaint, error);
      const detail = failure instanceof StandbyStepError ? failure.detail : failure.message;
      machine.log.warn({ sandboxId, generation, step: step.name, detail }, `${step.name} failed`);
      if (signal.aborted) throw signal.reason;
      if (isDiskFull(error)) throw new HoldfastError("disk_full", { sandboxId, cause: failure });
      throw failure;
    }
  };
}

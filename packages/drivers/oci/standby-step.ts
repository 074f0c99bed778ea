import { HoldfastError, type SandboxId } from "@holdfast/contract";
import { CheckpointUnusable } from "@holdfast/engine";
import { isDiskFull } from "./launch-step.ts";
import type { Machine } from "./machine.ts";
import { StandbyRefusal } from "./standby-refusal.ts";

/** One step of a checkpoint or restore failed. The message is for callers and names no path; the detail is for the operator. */
export class StandbyStepError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(code: string, complaint: string, error: unknown) {
    const reason = error instanceof StandbyRefusal ? [error.message] : [];
    super([complaint, ...(isDiskFull(error) ? ["the host's disk is full"] : reason)].join(": "));
    this.name = "StandbyStepError";
    this.code = code;
    this.detail =
      error instanceof StandbyRefusal ? error.detail : error instanceof Error ? error.message : String(error);
  }
}

interface Steps {
  sandboxId: SandboxId;
  generation: number;
  onStep?: ((step: string) => void) | undefined;
}

/** Gives what does one step, says that it has begun, and what has failed where it does. */
export function standbySteps(machine: Machine, order: Steps, signal: AbortSignal) {
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

import { HoldfastError } from "@holdfast/contract";
import { CheckpointUnusable, type LaunchOrder } from "@holdfast/engine";
import { PorterError } from "@holdfast/keeper";
import { errnoOf } from "./errno.ts";
import type { Machine } from "./machine.ts";
import { StandbyRefusal } from "./standby-refusal.ts";

/** Why a step can't be done, in words for callers: names no path. */
export class LaunchRefusal extends Error {
  override readonly name = "LaunchRefusal";
}

/** One step of a launch failed. The message is for callers and names no path; the detail is for the operator. */
export class LaunchStepError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(step: string, complaint: string, error: unknown) {
    super([complaint, ...reasonFor(error)].join(": "), error instanceof PorterError ? { cause: error } : {});
    this.name = "LaunchStepError";
    this.code = `launch_${step}`;
    this.detail =
      error instanceof StandbyRefusal ? error.detail : error instanceof Error ? error.message : String(error);
  }
}

function reasonFor(error: unknown): string[] {
  if (error instanceof LaunchRefusal || error instanceof StandbyRefusal) return [error.message];
  return isDiskFull(error) ? ["the host's disk is full"] : [];
}

/** Helpers say it in words, the kernel's own. */
export function isDiskFull(error: unknown): boolean {
  if (["ENOSPC", "EDQUOT"].includes(errnoOf(error))) return true;
  return error instanceof Error && /No space left on device|Disk quota exceeded/.test(error.message);
}

/** Gives what does one step of this launch, says that it has begun, and what has failed where it does. */
export function stepper(machine: Machine, order: LaunchOrder, signal: AbortSignal) {
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
      // That nothing can be made of its checkpoint is no failure of this host.
      if (error instanceof HoldfastError || error instanceof CheckpointUnusable) throw error;
      const { sandboxId, generation } = order;
      const cause = new LaunchStepError(name, complaint, error);
      machine.log.warn({ sandboxId, generation, step: name, detail: cause.detail }, "launch failed");
      if (signal.aborted) throw signal.reason;
      throw new HoldfastError(isDiskFull(error) ? "disk_full" : "launch_failed", { sandboxId, cause });
    }
  };
}

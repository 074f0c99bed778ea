import type { Cause, ExecId } from "@holdfast/contract";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { OpenExec } from "../live/open-exec.ts";
import type { EngineContext } from "../ports/context.ts";
import type { ExecRecord } from "../ports/records.ts";

/** The open execs of all sandboxes. An exec, also a queued one, is open until it has an outcome. */
export class OpenExecs {
  readonly #context: EngineContext;
  readonly #open = new Map<ExecId, OpenExec>();
  #queued = 0;

  constructor(context: EngineContext) {
    this.#context = context;
  }

  get runningCount(): number {
    return this.#open.size - this.#queued;
  }

  get queuedCount(): number {
    return this.#queued;
  }

  get(id: ExecId): OpenExec | undefined {
    return this.#open.get(id);
  }

  all(): OpenExec[] {
    return [...this.#open.values()];
  }

  enter(live: LiveSandbox, record: ExecRecord, { expectsReader = false } = {}): OpenExec {
    const exec = new OpenExec(this.#context, live, record, expectsReader);
    this.#open.set(record.id, exec);
    live.addExec(exec);
    return exec;
  }

  leave(exec: OpenExec): void {
    this.dequeue(exec);
    this.#open.delete(exec.record.id);
    exec.live.removeExec(exec);
  }

  enqueue(exec: OpenExec): void {
    exec.markQueued();
    exec.live.queueExec(exec);
    this.#queued += 1;
  }

  dequeue(exec: OpenExec): void {
    if (!exec.isQueued) return;
    exec.markUnqueued();
    exec.live.unqueueExec(exec);
    this.#queued -= 1;
  }
}

/**
 * Whether the memory in which the exec began is lost. An exec lives as long as that memory, which may be restored in
 * later generations.
 */
export const isOfOtherMemory = ({ generation }: ExecRecord, { record }: LiveSandbox): boolean =>
  generation < record.memorySince;

export const KEEPER_FORGOT: Cause = {
  code: "keeper_restarted",
  message: "The keeper that ran the command is gone; its outcome is unknown.",
};

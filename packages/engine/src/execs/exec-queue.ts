import { HoldfastError } from "@holdfast/contract";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { unseenEnd } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import type { ExecDispatch } from "./exec-dispatch.ts";
import type { ExecFinish } from "./exec-finish.ts";
import type { OpenExecs } from "./open-execs.ts";

/**
 * The exec queue of each sandbox: `execsPerSandbox` execs run at a time, and the others wait in order of arrival. The
 * length of the queue and the time of a wait are limited.
 */
export class ExecQueue {
  readonly #context: EngineContext;
  readonly #open: OpenExecs;
  readonly #finish: ExecFinish;
  readonly #dispatch: ExecDispatch;

  constructor(context: EngineContext, open: OpenExecs, finish: ExecFinish, dispatch: ExecDispatch) {
    this.#context = context;
    this.#open = open;
    this.#finish = finish;
    this.#dispatch = dispatch;
  }

  /** Returns whether a new exec of this sandbox runs now or is queued. Throws if the queue is full. */
  admit(live: LiveSandbox): "now" | "queued" {
    const { execsPerSandbox, execsQueuedPerSandbox } = this.#context.numbers;
    if (hasRoom(live, execsPerSandbox) && live.queuedExecs.size === 0) return "now";
    if (live.queuedExecs.size < execsQueuedPerSandbox) return "queued";
    const message = `The sandbox has ${execsPerSandbox} execs in progress and ${execsQueuedPerSandbox} in its queue.`;
    throw new HoldfastError("too_many_execs", { sandboxId: live.id, message });
  }

  /** Dispatches queued execs, the longest waiting first, until `execsPerSandbox` execs of the sandbox run. */
  advance(live: LiveSandbox): void {
    const { execsPerSandbox } = this.#context.numbers;
    for (const exec of live.queuedExecs) {
      if (!hasRoom(live, execsPerSandbox) || live.refusal() !== null) return;
      if (!exec.isStored) continue;
      this.#open.dequeue(exec);
      void this.#dispatch.send(exec, null);
    }
  }

  /** Ends execs that have been queued for too long, so that their callers get an answer. */
  expire(now: number): void {
    const { execQueueMs } = this.#context.numbers;
    if (this.#open.queuedCount === 0) return;
    for (const exec of this.#open.all()) {
      if (!exec.isQueued || !exec.isStored || now < exec.record.createdAt + execQueueMs) continue;
      const message = `No other exec of the sandbox ended within ${execQueueMs} ms, so this one was never started.`;
      const cause = { code: "queue_timeout", message };
      void this.#finish.finish(exec, unseenEnd("refused", exec.record, cause, now, "no journal"));
    }
  }

  /** Ends an exec that is still queued; returns false if the exec has left the queue. */
  cancel(exec: OpenExec): boolean {
    if (!exec.isQueued || !exec.isStored) return false;
    const cause = { code: "cancelled", message: "The command was cancelled before it was started." };
    const now = this.#context.clock.now();
    void this.#finish.finish(exec, unseenEnd("cancelled", exec.record, cause, now, "no journal"));
    return true;
  }
}

const hasRoom = ({ openExecs, queuedExecs }: LiveSandbox, limit: number): boolean =>
  openExecs.size - queuedExecs.size < limit;

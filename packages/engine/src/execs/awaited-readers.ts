import type { ExecId } from "@holdfast/contract";
import { soonest } from "../lib/deadline.ts";
import { OneShot } from "../lib/one-shot.ts";
import { awaitEnd, whileAwaited } from "../lifecycle/suspend.ts";
import type { OpenExec } from "../live/open-exec.ts";
import type { EngineContext } from "../ports/context.ts";

/**
 * Treats a reader for which a command waits as a caller that waits for the end of the exec: in standby the command
 * would not continue, and its reader would wait until another caller wakes the sandbox. An exec without `keepAwake` may
 * be suspended under its readers. A reader for which the command does not wait delays no standby.
 */
export class AwaitedReaders {
  readonly #context: EngineContext;
  readonly #openExec: (id: ExecId) => OpenExec | undefined;
  /** Announced readers that have not come yet. The event is set when a reader comes. */
  readonly #expected = new Map<ExecId, OneShot>();

  constructor(context: EngineContext, openExec: (id: ExecId) => OpenExec | undefined) {
    this.#context = context;
    this.#openExec = openExec;
  }

  /**
   * Must be called when an exec was created whose caller is expected to read the output. Until the first reader comes,
   * and for a limited time, the caller itself counts as the reader.
   */
  expect(exec: OpenExec): void {
    const { id, spec } = exec.record;
    if (!exec.expectsReader || !spec.keepAwake) return;
    const { clock, numbers, stopping } = this.#context;
    const came = new OneShot();
    this.#expected.set(id, came);
    const ends = [came, exec.over, stopping] as const;
    // The caller learns of the exec when it begins, and connects only then.
    const untilCome = async () => {
      await soonest(clock, numbers.execStartDeadlineMs, exec.begun, ...ends);
      await soonest(clock, numbers.outputReturnMs, ...ends);
    };
    void whileAwaited(exec.live, id, untilCome).finally(() => this.#expected.delete(id));
  }

  /** Registers a reader for which the command waits. A result that is not null must be disposed of when it leaves. */
  enter(id: ExecId): Disposable | null {
    const exec = this.#openExec(id);
    // The reader is registered before the expectation ends, so that no standby begins in between.
    const leave = exec?.record.spec.keepAwake ? awaitEnd(exec.live, id) : null;
    this.came(id);
    if (exec === undefined || leave === null) return null;
    // The rest of the output of an ended exec can be read during standby too.
    const forget = exec.over.onSet(leave);
    return {
      [Symbol.dispose]: () => {
        forget();
        leave();
      },
    };
  }

  /** Must be called when a reader has come: the announced reader is then no longer expected. */
  came(id: ExecId): void {
    this.#expected.get(id)?.set();
  }
}

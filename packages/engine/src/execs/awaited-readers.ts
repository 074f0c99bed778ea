import type { ExecId } from "@holdfast/contract";
import { soonest } from "../lib/deadline.ts";
import { OneShot } from "../lib/one-shot.ts";
import { awaitEnd, whileAwaited } from "../lifecycle/suspend.ts";
import type { OpenExec } from "../live/open-exec.ts";
import type { EngineContext } from "../ports/context.ts";

/**
 * Prevents standby while a command waits for a reader of its output. In standby the command would not continue, and the
 * reader would wait until another caller wakes the sandbox. So such a reader counts as a caller that waits for the end
 * of the exec. Two kinds of readers prevent no standby: the readers of an exec without `keepAwake`, and readers for
 * which the command does not wait.
 */
export class AwaitedReaders {
  readonly #context: EngineContext;
  readonly #openExec: (id: ExecId) => OpenExec | undefined;
  /** Announced readers that have not come yet. The value is an event that is set when the reader comes. */
  readonly #expected = new Map<ExecId, OneShot>();

  constructor(context: EngineContext, openExec: (id: ExecId) => OpenExec | undefined) {
    this.#context = context;
    this.#openExec = openExec;
  }

  /**
   * Must be called for a new exec. If its caller is expected to read the output, the caller itself counts as a reader
   * until the first reader comes, at most for a limited time.
   */
  expect(exec: OpenExec): void {
    const { id, spec } = exec.record;
    if (!exec.expectsReader || !spec.keepAwake) return;
    const { clock, numbers, stopping } = this.#context;
    const came = new OneShot();
    this.#expected.set(id, came);
    const ends = [came, exec.over, stopping] as const;
    // The wait has two parts: until the exec begins, because the caller learns of the exec only then, and until the
    // caller connects as a reader.
    const untilCome = async () => {
      await soonest(clock, numbers.execStartDeadlineMs, exec.begun, ...ends);
      await soonest(clock, numbers.outputReturnMs, ...ends);
    };
    void whileAwaited(exec.live, id, untilCome).finally(() => this.#expected.delete(id));
  }

  /**
   * Registers a reader for which the command waits. Returns null if the reader prevents no standby. Otherwise the
   * result must be disposed of when the reader leaves.
   */
  enter(id: ExecId): Disposable | null {
    const exec = this.#openExec(id);
    // The reader is registered before the expectation ends, so that no standby begins in between.
    const leave = exec?.record.spec.keepAwake ? awaitEnd(exec.live, id) : null;
    this.came(id);
    if (exec === undefined || leave === null) return null;
    // When the exec has ended, the reader no longer prevents standby: the rest of the output can be read in standby
    // too.
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

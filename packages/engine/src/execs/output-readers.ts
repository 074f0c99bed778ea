import { type ExecId, HoldfastError, type Stats } from "@holdfast/contract";
import type { EngineContext } from "../ports/context.ts";

/**
 * Counts and limits the current readers of output, so that abandoned readers can't pile up, and provides figures for
 * operators.
 */
export class Readers {
  readonly #context: EngineContext;
  readonly #byExec = new Map<ExecId, number>();
  #count = 0;
  readonly #cut: Stats["readersCut"] = { wedged: 0, expired: 0 };

  constructor(context: EngineContext) {
    this.#context = context;
  }

  get count(): number {
    return this.#count;
  }

  get cut(): Stats["readersCut"] {
    return { ...this.#cut };
  }

  /** Counts an output stream that was closed before its exec ended. */
  noteCut(execId: string, why: keyof Stats["readersCut"]): void {
    this.#cut[why] += 1;
    const { log } = this.#context;
    if (why === "wedged") log.info({ exec: execId }, "a reader that is stuck or gone was cut off");
    else log.debug({ exec: execId }, "an output stream has reached its maximum duration");
  }

  /**
   * Registers a reader, which the caller unregisters by disposing of the result. Throws `too_many_readers` if a maximum
   * is reached.
   */
  enter(execId: ExecId): Disposable {
    const { readersPerExec, readersMax } = this.#context.numbers;
    const ofExec = this.#byExec.get(execId) ?? 0;
    if (ofExec >= readersPerExec || this.#count >= readersMax) {
      const message =
        ofExec >= readersPerExec
          ? `${readersPerExec} callers read this exec's output already.`
          : `${readersMax} callers read output already.`;
      throw new HoldfastError("too_many_readers", { execId, message });
    }
    this.#count += 1;
    this.#byExec.set(execId, ofExec + 1);
    return { [Symbol.dispose]: () => this.#leave(execId) };
  }

  #leave(execId: ExecId): void {
    this.#count -= 1;
    const left = (this.#byExec.get(execId) ?? 1) - 1;
    if (left === 0) this.#byExec.delete(execId);
    else this.#byExec.set(execId, left);
  }
}

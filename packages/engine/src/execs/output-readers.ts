import { type ExecId, HoldfastError, type Stats } from "@holdfast/contract";
import type { World } from "./world.ts";

/** Who reads output right now: a bound, so that forgotten readers can't pile up, and figures for operators. */
export class Readers {
  readonly #world: World;
  readonly #byExec = new Map<ExecId, number>();
  #count = 0;
  readonly #cut: Stats["readersCut"] = { wedged: 0, expired: 0 };

  constructor(world: World) {
    this.#world = world;
  }

  get count(): number {
    return this.#count;
  }

  get cut(): Stats["readersCut"] {
    return { ...this.#cut };
  }

  /** A stream was ended before its exec. */
  noteCut(execId: string, why: keyof Stats["readersCut"]): void {
    this.#cut[why] += 1;
    const { log } = this.#world;
    if (why === "wedged") log.info({ exec: execId }, "a reader that is stuck or gone was cut off");
    else log.debug({ exec: execId }, "a stream of output had lasted long enough");
  }

  /** Takes a place, or refuses; the place is given back by disposing of it. */
  enter(execId: ExecId): Disposable {
    const { readersPerExec, readersMax } = this.#world.numbers;
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

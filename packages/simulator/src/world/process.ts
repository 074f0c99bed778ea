import type { Faults } from "../schedule/armed-faults.ts";
import type { Owner, VirtualTime } from "../time/virtual-time.ts";

/**
 * Maximum number of calls that a server may make at one moment of virtual time. Only an endless loop makes more calls.
 */
const CALLS_AT_ONCE = 20_000;

interface Parts {
  number: number;
  /** Replaces the default maximum number of calls at one moment of virtual time. */
  callsAtOnce?: number;
  time: VirtualTime;
  faults: Faults;
  onDeath(why: string, downMs: number): void;
  /** Called when the server makes calls in an endless loop, in which virtual time does not pass. */
  onSpin(): void;
}

/** The operating system process of a server. After its death it receives nothing and does nothing. */
export class Process implements Owner {
  readonly #parts: Parts;
  readonly number: number;
  #alive = true;
  #moment = 0;
  #calls = 0;

  constructor(parts: Parts) {
    this.number = parts.number;
    this.#parts = parts;
  }

  get alive(): boolean {
    return this.#alive;
  }

  die(why: string, downMs: number): void {
    if (!this.#alive) return;
    this.#alive = false;
    this.#parts.onDeath(why, downMs);
  }

  /** Returns whether the server may call the simulated world. It may not if it is dead or in an endless loop. */
  mayCall(): boolean {
    const { elapsed } = this.#parts.time;
    if (elapsed !== this.#moment) this.#calls = 0;
    this.#moment = elapsed;
    this.#calls += 1;
    if (this.#alive && this.#calls > (this.#parts.callsAtOnce ?? CALLS_AT_ONCE)) {
      this.#parts.onSpin();
      this.die("it spins", Number.POSITIVE_INFINITY);
    }
    return this.#alive;
  }

  /** Resolves with the answer of `work`; never resolves if the server dies before. */
  delivers<Answer>(work: Promise<Answer>): Promise<Answer> {
    return new Promise((resolve, reject) => {
      work.then(
        (answer) => {
          if (this.#alive) resolve(answer);
        },
        (error: unknown) => {
          if (this.#alive) reject(error);
        },
      );
    });
  }

  /**
   * Performs an effect of this server on the host. A server that is already dead can still have effects, through its
   * helper processes. A fault may kill the server right after the effect, before the server has recorded anything.
   */
  effect<Result>(what: string, act: () => Result): Result {
    const result = act();
    if (!this.#alive) return result;
    const fault = this.#parts.faults.take("effect", what);
    if (fault !== null) this.die(`right after it ${what}`, fault.ms);
    return result;
  }
}

export const never = (): Promise<never> => new Promise(() => undefined);

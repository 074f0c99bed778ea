import type { Faults } from "./faults.ts";
import type { Owner, VirtualTime } from "./virtual-time.ts";

/** So much is never asked of the world within one moment, except by a loop that has no end. */
const ASKED_AT_ONCE = 20_000;

interface Parts {
  number: number;
  /** So much may be asked within one moment, where that is more than usual. */
  askedAtOnce?: number;
  time: VirtualTime;
  faults: Faults;
  onDeath(why: string, downMs: number): void;
  /** It asks and asks, and time stands still. */
  onSpin(): void;
}

/** The server's process: from its death on it hears nothing and does nothing, in the middle of whatever it was doing. */
export class Process implements Owner {
  readonly #parts: Parts;
  readonly number: number;
  #alive = true;
  #moment = 0;
  #asked = 0;

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

  /** Whether it may ask the world for something. One that is dead may not, nor one that does nothing else. */
  asks(): boolean {
    const { elapsed } = this.#parts.time;
    if (elapsed !== this.#moment) this.#asked = 0;
    this.#moment = elapsed;
    this.#asked += 1;
    if (this.#alive && this.#asked > (this.#parts.askedAtOnce ?? ASKED_AT_ONCE)) {
      this.#parts.onSpin();
      this.die("it spins", Number.POSITIVE_INFINITY);
    }
    return this.#alive;
  }

  /** An answer that comes after death is never heard. */
  hears<Answer>(work: Promise<Answer>): Promise<Answer> {
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
   * A physical act of this server's: what a helper of it does is done whether or not it lives to hear of it. This is one of
   * the moments at which the server may die: right after the act, with nothing of it written down yet.
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

import type { VirtualTime } from "../time/virtual-time.ts";
import type { Fact } from "../world/facts.ts";
import type { Scene } from "./invariant.ts";
import { INVARIANTS } from "./invariants.ts";

export interface Violation {
  readonly invariant: string;
  readonly what: string;
  /** Number of the step after which the violation was found. If it was found after all steps, the number of steps. */
  readonly step: number;
}

const STANDING = INVARIANTS.flatMap(({ name, standing }) => (standing ? [{ name, standing }] : []));
const WITNESSED = INVARIANTS.flatMap(({ name, witnessed }) => (witnessed ? [{ name, witnessed }] : []));
const STORED = INVARIANTS.flatMap(({ name, stored }) => (stored ? [{ name, stored }] : []));

/** Checks the promises and records the trace. A run ends at the first violation, which is its result. */
export class Watch {
  readonly trace: string[] = [];
  readonly #time: VirtualTime;
  readonly #isTraced: boolean;
  #scene: Scene | null = null;
  #violation: Violation | null = null;
  #commitsSeen = -1;
  /** Steps executed so far. */
  step = 0;

  constructor(time: VirtualTime, options: { trace: boolean }) {
    this.#time = time;
    this.#isTraced = options.trace;
  }

  /** Sets the scene to examine. Facts that were reported before this call are ignored. */
  begin(scene: Scene): void {
    this.#scene = scene;
  }

  get violation(): Violation | null {
    return this.#violation;
  }

  /** Adds a line to the trace. `line` is only called if the trace is recorded. */
  readonly note = (line: () => string): void => {
    if (!this.#isTraced) return;
    this.trace.push(`${(this.#time.elapsed / 1000).toFixed(3).padStart(9)} ${line()}`);
  };

  broken(invariant: string, what: string): void {
    if (this.#violation !== null) return;
    this.#violation = { invariant, what, step: this.step };
    this.note(() => `VIOLATION of ${invariant}: ${what}`);
  }

  readonly report = (fact: Fact): void => {
    const scene = this.#scene;
    if (scene === null) return;
    for (const { name, witnessed } of WITNESSED) this.#judge(name, witnessed(scene, fact));
  };

  /**
   * Checks all promises at a moment, after everything that can happen at that moment has happened. Returns false once a
   * promise is broken, because later checks would show nothing more.
   */
  readonly look = (): boolean => {
    const scene = this.#scene;
    if (this.#violation !== null || scene === null) return false;
    for (const { name, standing } of STANDING) this.#judge(name, standing(scene));
    return this.#violation === null;
  };

  /** Checks the content of the database, if anything was written to it since the last check. */
  lookAtDatabase(): void {
    const scene = this.#scene;
    if (this.#violation !== null || scene === null || scene.mirror.commits === this.#commitsSeen) return;
    this.#commitsSeen = scene.mirror.commits;
    for (const { name, stored } of STORED) this.#judge(name, stored(scene));
  }

  #judge(name: string, what: string | null): void {
    if (what !== null) this.broken(name, what);
  }
}

import type { Fact } from "./facts.ts";
import { INVARIANTS, type Scene } from "./invariants.ts";
import type { VirtualTime } from "./virtual-time.ts";

export interface Violation {
  readonly invariant: string;
  readonly what: string;
  /** The step after which it showed; the number of steps where they were over. */
  readonly step: number;
}

const STANDING = INVARIANTS.flatMap(({ name, standing }) => (standing ? [{ name, standing }] : []));
const WITNESSED = INVARIANTS.flatMap(({ name, witnessed }) => (witnessed ? [{ name, witnessed }] : []));
const STORED = INVARIANTS.flatMap(({ name, stored }) => (stored ? [{ name, stored }] : []));

/** Watches over the promises, and writes down what happens. The first that is broken is what a run is about. */
export class Watch {
  readonly trace: string[] = [];
  readonly #time: VirtualTime;
  readonly #isTraced: boolean;
  #scene: Scene | null = null;
  #violation: Violation | null = null;
  #commitsSeen = -1;
  /** Steps taken so far. */
  step = 0;

  constructor(time: VirtualTime, options: { trace: boolean }) {
    this.#time = time;
    this.#isTraced = options.trace;
  }

  /** What there is to look at; facts before that are nobody's. */
  begin(scene: Scene): void {
    this.#scene = scene;
  }

  get violation(): Violation | null {
    return this.#violation;
  }

  /** A line of the trace, which is not even made unless somebody will read it. */
  readonly note = (line: () => string): void => {
    if (!this.#isTraced) return;
    this.trace.push(`${(this.#time.elapsed / 1000).toFixed(3).padStart(9)} ${line()}`);
  };

  broken(invariant: string, what: string): void {
    if (this.#violation !== null) return;
    this.#violation = { invariant, what, step: this.step };
    this.note(() => `VIOLATION of ${invariant}: ${what}`);
  }

  readonly tell = (fact: Fact): void => {
    const scene = this.#scene;
    if (scene === null) return;
    for (const { name, witnessed } of WITNESSED) this.#judge(name, witnessed(scene, fact));
  };

  /** At a moment at which nothing is left to do. False once a promise is broken: the rest would show nothing more. */
  readonly look = (): boolean => {
    const scene = this.#scene;
    if (this.#violation !== null || scene === null) return false;
    for (const { name, standing } of STANDING) this.#judge(name, standing(scene));
    return this.#violation === null;
  };

  /** At what the database itself says, if it was given anything since the last look. */
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

/** Whoever a timer belongs to. The timers of one that is no longer alive never ring. */
export interface Owner {
  readonly alive: boolean;
}

interface Timer {
  due: number;
  order: number;
  ring: (() => void) | null;
  owner: Owner | null;
}

/** Some morning. Nothing depends on it but the dates in traces. */
const EPOCH = Date.UTC(2026, 0, 1, 8);

/**
 * Time that passes only when nothing is left to do at this moment. There are two of it, as on a machine: one that timers
 * count by and that only goes forward, and the time of day, which can be set.
 */
export class VirtualTime {
  readonly #heap: Timer[] = [];
  #order = 0;
  #elapsed = 0;
  #offset = EPOCH;
  #settings: { since: number; offset: number }[] = [{ since: 0, offset: EPOCH }];
  /** How far the time of day was set back, in all: whatever is stored as a time of day comes that much later. */
  setBackMs = 0;
  /** What the engine has given to the real database and not yet had an answer to. */
  underWay = 0;

  /** Milliseconds since the simulation began, by the clock that nobody can set. */
  get elapsed(): number {
    return this.#elapsed;
  }

  /** The time of day. */
  readonly now = (): number => this.#elapsed + this.#offset;

  /** What the time of day was then. */
  wallAt(elapsed: number): number {
    const setting = this.#settings.findLast(({ since }) => since <= elapsed);
    return elapsed + (setting?.offset ?? EPOCH);
  }

  /** Sets the time of day; timers don't notice. */
  jump(ms: number): void {
    this.#offset += ms;
    if (ms < 0) this.setBackMs -= ms;
    this.#settings.push({ since: this.#elapsed, offset: this.#offset });
  }

  after(ms: number, then: () => void, owner: Owner | null = null): () => void {
    const timer: Timer = {
      due: this.#elapsed + Math.max(0, Math.ceil(ms)),
      order: this.#order,
      ring: then,
      owner,
    };
    this.#order += 1;
    this.#push(timer);
    return () => {
      timer.ring = null;
    };
  }

  pause(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const cancel = this.after(ms, () => {
        signal?.removeEventListener("abort", aborted);
        resolve();
      });
      const aborted = () => {
        cancel();
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", aborted, { once: true });
    });
  }

  /**
   * Lets everything happen that can happen at this moment. A tick comes after all microtasks, which is all that there is
   * but for the database's group commit: that needs turns of the event loop, which cost more.
   */
  async quiet(): Promise<void> {
    await tick();
    while (this.underWay > 0) await turn();
  }

  /** The same, and whatever else the event loop has to do: rejections that nobody handled are told of then. */
  async rest(): Promise<void> {
    do await turn();
    while (this.underWay > 0);
  }

  /** Lets time pass, timer by timer. `quiet` is called after each; once it answers false the rest is left. */
  async pass(ms: number, quiet: () => boolean): Promise<void> {
    const end = this.#elapsed + ms;
    for (;;) {
      const timer = this.#heap[0];
      if (timer === undefined || timer.due > end) break;
      this.#pop();
      if (timer.ring === null || timer.owner?.alive === false) continue;
      this.#elapsed = timer.due;
      timer.ring();
      await this.quiet();
      if (!quiet()) return;
    }
    this.#elapsed = end;
  }

  #push(timer: Timer): void {
    const heap = this.#heap;
    let at = heap.length;
    while (at > 0) {
      const above = (at - 1) >> 1;
      const parent = heap[above];
      if (parent === undefined || before(parent, timer)) break;
      heap[at] = parent;
      at = above;
    }
    heap[at] = timer;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return;
    let at = 0;
    for (;;) {
      const left = 2 * at + 1;
      const right = left + 1;
      const [a, b] = [heap[left], heap[right]];
      if (a === undefined) break;
      const [child, below] = b !== undefined && before(b, a) ? [b, right] : [a, left];
      if (before(last, child)) break;
      heap[at] = child;
      at = below;
    }
    heap[at] = last;
  }
}

const before = (a: Timer, b: Timer): boolean => a.due < b.due || (a.due === b.due && a.order < b.order);

/** Asked for by a microtask: one that is asked for by anything else, such as a message, comes before them all. */
const tick = (): Promise<void> => new Promise((resolve) => queueMicrotask(() => process.nextTick(resolve)));

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

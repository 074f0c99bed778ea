/** The owner of timers, such as a server. When it dies, its timers never fire. */
export interface Owner {
  readonly alive: boolean;
}

interface Timer {
  due: number;
  order: number;
  ring: (() => void) | null;
  owner: Owner | null;
}

/** Start of virtual time, chosen arbitrarily. Only the dates in traces depend on it. */
const EPOCH = Date.UTC(2026, 0, 1, 8);

/**
 * Virtual time. It advances only when everything that can happen at the current moment has happened. It has two clocks,
 * like a real machine: a monotonic one for timers, and the time of day, which can be set.
 */
export class VirtualTime {
  readonly #heap: Timer[] = [];
  #order = 0;
  #elapsed = 0;
  #offset = EPOCH;
  #settings: { since: number; offset: number }[] = [{ since: 0, offset: EPOCH }];
  /**
   * Total amount by which the time of day was set back. Everything that is due at a stored time of day happens that
   * much later.
   */
  setBackMs = 0;
  /** Number of calls to the real database that have not been answered yet. */
  inProgress = 0;

  /** Milliseconds since the simulation began, on the monotonic clock. */
  get elapsed(): number {
    return this.#elapsed;
  }

  /** The time of day. */
  readonly now = (): number => this.#elapsed + this.#offset;

  /** Returns the time of day at an earlier moment of the monotonic clock. */
  wallAt(elapsed: number): number {
    const setting = this.#settings.findLast(({ since }) => since <= elapsed);
    return elapsed + (setting?.offset ?? EPOCH);
  }

  /** Moves the wall clock by `ms`; timers are unaffected. */
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
   * Runs everything that can happen at the current moment. Waiting for a `process.nextTick` callback is enough for most
   * work, because that callback runs after all microtasks. Only the database's group commit needs whole turns of the
   * event loop. Turns cost more, so they are taken only while a commit is in progress.
   */
  async quiet(): Promise<void> {
    await tick();
    while (this.inProgress > 0) await turn();
  }

  /**
   * Runs everything that `quiet` runs, and everything else that the event loop has to do, such as reporting unhandled
   * rejections.
   */
  async rest(): Promise<void> {
    do await turn();
    while (this.inProgress > 0);
  }

  /**
   * Advances time from timer to timer. After each timer, runs everything that can happen at that moment, then calls
   * `quiet`. Stops early if `quiet` returns false.
   */
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

/**
 * Resolves after all pending microtasks. `process.nextTick` is called from a microtask, because its callback would
 * otherwise run before the microtasks if the caller is, for example, a message handler.
 */
const tick = (): Promise<void> => new Promise((resolve) => queueMicrotask(() => process.nextTick(resolve)));

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

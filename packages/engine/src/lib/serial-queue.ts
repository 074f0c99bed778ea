import { HoldfastError, NUMBERS } from "@holdfast/contract";
import { raced } from "./deadline.ts";

/**
 * The default limit on the tasks that are queued or running. Correct use never needs that many: if the limit is
 * reached, tasks are added faster than they run.
 */
const LIMIT = NUMBERS.changesWaiting;

interface QueueOptions<Key> {
  /** Maximum number of tasks that are queued or running. */
  limit?: number;
  /** Returns the error for a task beyond the limit. */
  onFull?: (key: Key) => HoldfastError;
  onIdle?: (key: Key) => void;
}

/**
 * Runs one task at a time, in the order of the calls. A task that fails rejects for its own caller only, and the next
 * task runs. Tasks beyond the limit are refused with `capacity`.
 */
export class SerialQueue {
  readonly #limit: number;
  readonly #onFull: () => HoldfastError;
  readonly #onIdle: () => void;
  #tail: Promise<unknown> = Promise.resolve();
  #length = 0;

  constructor({
    limit = LIMIT,
    onFull = () => queueFull(limit),
    onIdle = () => {},
  }: QueueOptions<void> = {}) {
    this.#limit = limit;
    this.#onFull = onFull;
    this.#onIdle = onIdle;
  }

  /** The number of tasks that are queued or running. */
  get length(): number {
    return this.#length;
  }

  /**
   * Runs the task when its turn comes. If the signal aborts before that, the caller is rejected at once and the task is
   * skipped.
   */
  run<Result>(work: () => Promise<Result> | Result, signal?: AbortSignal): Promise<Result> {
    if (this.#length >= this.#limit) return Promise.reject(this.#onFull());
    this.#length += 1;
    const before = this.#tail;
    const turn = (signal === undefined ? before : raced(before, signal)).then(work);
    const done = () => {
      this.#length -= 1;
      if (this.#length === 0) this.#onIdle();
    };
    // An aborted caller is rejected before the earlier tasks are done. The next task must still wait for the earlier
    // tasks.
    this.#tail = signal === undefined ? turn.then(done, done) : Promise.allSettled([before, turn]).then(done);
    return turn;
  }

  /** Resolves when no task is queued or running. If the signal aborts first, rejects with the signal's reason. */
  async idle(signal: AbortSignal): Promise<void> {
    while (this.#length > 0) await raced(this.#tail, signal);
  }
}

/** A separate serial queue for each key. A key without tasks takes no memory. */
export class KeyedSerialQueue<Key> {
  readonly #limit: number;
  readonly #onFull: (key: Key) => HoldfastError;
  readonly #queues = new Map<Key, SerialQueue>();

  constructor({ limit = LIMIT, onFull = () => queueFull(limit) }: Omit<QueueOptions<Key>, "onIdle"> = {}) {
    this.#limit = limit;
    this.#onFull = onFull;
  }

  /** Runs the task when the earlier tasks of the same key are done. */
  run<Result>(key: Key, work: () => Promise<Result> | Result, signal?: AbortSignal): Promise<Result> {
    return (this.#queues.get(key) ?? this.#open(key)).run(work, signal);
  }

  #open(key: Key): SerialQueue {
    const onIdle = () => void this.#queues.delete(key);
    const queue = new SerialQueue({ limit: this.#limit, onFull: () => this.#onFull(key), onIdle });
    this.#queues.set(key, queue);
    return queue;
  }

  /** The number of keys with queued or running tasks. */
  get size(): number {
    return this.#queues.size;
  }
}

const queueFull = (limit: number): HoldfastError =>
  new HoldfastError("capacity", { message: `${limit} operations are waiting in the same queue already.` });

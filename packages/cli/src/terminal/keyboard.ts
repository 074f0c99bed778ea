import { type DetachKeys, DetachWatch } from "./detach-keys.ts";

/** How long a possible beginning of the detach sequence is held back from the command. */
const HOLD_MS = 500;
/** Maximum size of input, usually pasted, that was read and not yet sent. When it is reached, reading pauses. */
const PENDING_LIMIT_BYTES = 1_048_576;

/** Reads typed input. Keys that arrive while others are being sent are returned together. */
export class Keyboard implements Disposable {
  readonly #watch: DetachWatch;
  readonly #onDetach: () => void;
  #pending: Buffer[] = [];
  #pendingBytes = 0;
  #hold: NodeJS.Timeout | undefined;
  #isOver = false;
  #wake: () => void = () => {};

  constructor(keys: DetachKeys, onDetach: () => void) {
    this.#watch = new DetachWatch(keys);
    this.#onDetach = onDetach;
    process.stdin.on("data", this.#read).on("end", this.#finish).on("error", this.#finish);
  }

  readonly #read = (typed: Buffer): void => {
    clearTimeout(this.#hold);
    const { passed, isDetached } = this.#watch.feed(typed);
    this.#push(passed);
    if (isDetached) this.#onDetach();
    else if (this.#watch.isHolding) this.#hold = setTimeout(() => this.#push(this.#watch.release()), HOLD_MS);
  };

  #push(passed: Buffer): void {
    if (passed.length === 0) return;
    this.#pending.push(passed);
    this.#pendingBytes += passed.length;
    if (this.#pendingBytes >= PENDING_LIMIT_BYTES) process.stdin.pause();
    this.#wake();
  }

  /** Ends the input. Called when the terminal is closed, or on disposal. */
  readonly #finish = (): void => {
    this.#isOver = true;
    this.#wake();
  };

  /** Waits for input and returns everything typed since the last call; null after the end of input. */
  async take(): Promise<Buffer | null> {
    while (this.#pendingBytes === 0 && !this.#isOver) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#pendingBytes === 0) return null;
    const typed = Buffer.concat(this.#pending);
    this.#pending = [];
    this.#pendingBytes = 0;
    if (!this.#isOver) process.stdin.resume();
    return typed;
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#hold);
    process.stdin.off("data", this.#read).off("end", this.#finish).off("error", this.#finish).pause();
    this.#pending = [];
    this.#pendingBytes = 0;
    this.#finish();
  }
}

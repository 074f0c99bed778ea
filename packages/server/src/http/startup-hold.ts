import { HoldfastError } from "@holdfast/contract";

/**
 * Makes calls wait until recovery is done. Many clients never repeat a POST, so a call that arrives during recovery
 * waits instead of being refused. A call that has waited for too long gets the retryable error `starting`.
 */
export class StartupHold {
  readonly #started: Promise<void>;
  readonly #holdMs: number;
  #open = false;

  constructor(started: Promise<void>, holdMs: number) {
    this.#holdMs = holdMs;
    this.#started = started.then(
      () => {
        this.#open = true;
      },
      () => {},
    );
  }

  get open(): boolean {
    return this.#open;
  }

  async pass(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const bound = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, this.#holdMs);
    });
    await Promise.race([this.#started, bound]);
    clearTimeout(timer);
    if (!this.#open) throw new HoldfastError("starting");
  }
}

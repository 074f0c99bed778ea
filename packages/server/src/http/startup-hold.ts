import { HoldfastError } from "@holdfast/contract";

/**
 * Holds calls until recovery is done: many clients never send a POST again, so a call that comes a moment early is
 * better kept waiting than refused. Past the bound it is told to come back.
 */
export class StartGate {
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

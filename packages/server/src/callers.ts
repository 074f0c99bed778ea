import type { ServerResponse } from "node:http";

/**
 * Who is still listening. Each request gets one signal, which aborts when its caller's socket closes before the answer
 * was sent, or when the server shuts down. It ends waiting and streaming; an exec that was dispatched goes on.
 */
export class Callers {
  readonly #present = new Set<AbortController>();
  #closing: Error | null = null;

  /** Why nobody is served any more; null while the server is open. */
  get closing(): Error | null {
    return this.#closing;
  }

  /** The signal of the caller that waits for this response. */
  signal(response: ServerResponse): AbortSignal {
    const controller = new AbortController();
    if (this.#closing) controller.abort(this.#closing);
    else if (response.destroyed) controller.abort(new CallerLeft());
    else this.#follow(response, controller);
    return controller.signal;
  }

  #follow(response: ServerResponse, controller: AbortController): void {
    this.#present.add(controller);
    response.once("close", () => {
      this.#present.delete(controller);
      if (!response.writableFinished) controller.abort(new CallerLeft());
    });
  }

  /** Ends every wait and stream, those under way and those to come. */
  dismiss(reason: Error): void {
    this.#closing = reason;
    for (const controller of this.#present) controller.abort(reason);
    this.#present.clear();
  }
}

/** Nobody is there to be answered. */
export class CallerLeft extends Error {
  constructor() {
    super("the caller has left");
    this.name = "CallerLeft";
  }
}

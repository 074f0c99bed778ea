import type { ServerResponse } from "node:http";
import { HoldfastError } from "@holdfast/contract";

/** What tells that a caller has left. */
interface Connection {
  once(event: "close", listener: () => void): unknown;
}

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
    if (response.destroyed) return AbortSignal.abort(new CallerLeft());
    return this.#follow(response, () => response.writableFinished);
  }

  /** The signal of the caller at the other end of a socket that is open. */
  attached(socket: Connection): AbortSignal {
    return this.#follow(socket, () => false);
  }

  #follow(connection: Connection, isAnswered: () => boolean): AbortSignal {
    if (this.#closing) return AbortSignal.abort(this.#closing);
    const controller = new AbortController();
    this.#present.add(controller);
    connection.once("close", () => {
      this.#present.delete(controller);
      if (!isAnswered()) controller.abort(new CallerLeft());
    });
    return controller.signal;
  }

  /** Ends every wait and stream, those under way and those to come. */
  dismiss(reason: Error): void {
    this.#closing = reason;
    for (const controller of this.#present) controller.abort(reason);
    this.#present.clear();
  }
}

/** Ends the wait with the caller, or the server; the work itself goes on. */
export function whileHeard<Result>(work: Promise<Result>, signal: AbortSignal): Promise<Result> {
  return new Promise((resolve, reject) => {
    const left = () => reject(signal.reason);
    signal.addEventListener("abort", left, { once: true });
    if (signal.aborted) left();
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", left));
  });
}

/** An order that the server's own shutdown cut short may have been recorded; the next server then goes on with it. */
export async function orMaybeDispatched<Result>(callers: Callers, order: Promise<Result>): Promise<Result> {
  try {
    return await order;
  } catch (error) {
    if (error !== callers.closing) throw error;
    throw new HoldfastError("shutting_down", { dispatched: "unknown" });
  }
}

/** Nobody is there to be answered. */
export class CallerLeft extends Error {
  constructor() {
    super("the caller has left");
    this.name = "CallerLeft";
  }
}

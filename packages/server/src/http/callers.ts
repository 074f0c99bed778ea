import type { ServerResponse } from "node:http";
import { HoldfastError } from "@holdfast/contract";

/** The part of a connection through which the server learns that the caller has disconnected. */
interface Connection {
  once(event: "close", listener: () => void): unknown;
}

/**
 * Tracks connected callers. Each request gets one signal, which aborts when the caller's socket closes before the
 * response was sent, or when the server shuts down. The signal ends waits and streams; an exec that was started keeps
 * running.
 */
export class Callers {
  readonly #present = new Set<AbortController>();
  #closing: Error | null = null;

  /** The error that refuses all requests during shutdown; null while the server is running normally. */
  get closing(): Error | null {
    return this.#closing;
  }

  /**
   * Returns a signal that aborts when the caller who waits for this response disconnects, or when the server shuts
   * down.
   */
  signal(response: ServerResponse): AbortSignal {
    if (response.destroyed) return AbortSignal.abort(new CallerLeft());
    return this.#follow(response, () => response.writableFinished);
  }

  /**
   * Returns a signal that aborts when the caller at the other end of this socket disconnects, or when the server shuts
   * down.
   */
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

  /** Aborts every wait and stream: those in progress, and those that begin later. */
  dismiss(reason: Error): void {
    this.#closing = reason;
    for (const controller of this.#present) controller.abort(reason);
    this.#present.clear();
  }
}

/**
 * Waits for an operation. If the server's shutdown interrupts the wait, throws an error with `dispatched: unknown`,
 * because the operation may already be recorded. The server completes a recorded operation after its next start.
 */
export async function orMaybeDispatched<Result>(callers: Callers, order: Promise<Result>): Promise<Result> {
  try {
    return await order;
  } catch (error) {
    if (error !== callers.closing) throw error;
    throw new HoldfastError("shutting_down", { dispatched: "unknown" });
  }
}

/** Abort reason for a caller that has disconnected. */
export class CallerLeft extends Error {
  constructor() {
    super("the caller has left");
    this.name = "CallerLeft";
  }
}

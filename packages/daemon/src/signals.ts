import type { Log } from "@holdfast/engine";

interface Shutdown {
  log: Log;
  shutdownMs: number;
  /** Called at the first signal. */
  onStopping(): void;
  /** Stops the server and releases its resources. Resolves with a text for the person who stopped the server. */
  close(): Promise<string>;
}

/**
 * Handles signals: the first one starts an orderly shutdown with a time limit, the second one exits at once. The
 * returned function reports whether the shutdown has begun.
 */
export function closeOnSignal({ log, shutdownMs, onStopping, close }: Shutdown): () => boolean {
  let closing = false;
  const onSignal = (signal: string) => {
    if (closing) process.exit(1);
    closing = true;
    onStopping();
    log.info({ signal }, "shutting down; sandboxes keep running");
    setTimeout(() => {
      log.error({ shutdownMs }, "shutdown timed out; exiting, the next start recovers");
      process.exit(1);
    }, shutdownMs).unref();
    close().then(
      (text) => {
        console.log(text);
        process.exit(0);
      },
      (error) => {
        log.error({ err: error }, "shutdown failed; exiting, the next start recovers");
        process.exit(1);
      },
    );
  };
  process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
  return () => closing;
}

/**
 * Handles signals that arrive before the server is up: reports the signal and exits. The returned function removes the
 * signal handlers.
 */
export function exitOnEarlySignal(): () => void {
  const exit = () => {
    console.log("\nStopped before the server was up. Sandboxes keep running; the next start recovers.");
    process.exit(1);
  };
  process.on("SIGTERM", exit).on("SIGINT", exit);
  return () => void process.off("SIGTERM", exit).off("SIGINT", exit);
}

/**
 * Exits on an uncaught error. The store holds all durable state, so a restart is safer than continuing in an unknown
 * state.
 */
export function endOnBugs(log: Log): void {
  process.on("uncaughtException", (error, origin) => {
    log.error({ err: error, origin }, "uncaught error; exiting, the next start recovers");
    process.exit(1);
  });
}

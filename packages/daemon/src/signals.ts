import type { Log } from "@holdfast/engine";

/** The first signal lets go in order, within a bound; the second one ends the process at once. */
export function closeOnSignal(close: () => Promise<void>, log: Log, shutdownMs: number): void {
  let closing = false;
  const onSignal = (signal: string) => {
    if (closing) process.exit(1);
    closing = true;
    log.info({ signal }, "shutting down; sandboxes go on");
    setTimeout(() => {
      log.error({ shutdownMs }, "shutdown took too long and was cut; the next start recovers");
      process.exit(1);
    }, shutdownMs).unref();
    close().then(
      () => process.exit(0),
      (error) => {
        log.error({ err: error }, "shutdown failed; the next start recovers");
        process.exit(1);
      },
    );
  };
  process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
}

/** Everything durable is in the store, so a server that does not know what it is doing does best to end. */
export function endOnBugs(log: Log): void {
  process.on("uncaughtException", (error, origin) => {
    log.error({ err: error, origin }, "an error that nothing caught; the next start recovers");
    process.exit(1);
  });
}

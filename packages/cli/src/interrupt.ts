import { constants } from "node:os";

/** A terminal sends its signal to the whole process group, the launcher passes it on: both together are one. */
const SAME_SIGNAL_MS = 300;

/** The user, or whoever runs us, wants us to stop. */
export class Interrupted extends Error {
  readonly signal: NodeJS.Signals;
  constructor(signal: NodeJS.Signals) {
    super(`interrupted by ${signal}`);
    this.name = "Interrupted";
    this.signal = signal;
  }
  /** What a shell reports for a command that the signal ended. */
  get exitCode(): number {
    return exitCodeOf(this.signal);
  }
}

export const exitCodeOf = (signal: string): number =>
  128 + ((constants.signals as Record<string, number>)[signal] ?? 0);

export interface Interruption {
  /** Fires with an `Interrupted` at the first signal. */
  readonly signal: AbortSignal;
  /** As if a signal had come. */
  interrupt(interrupted: Interrupted): void;
  /** Called at the second signal: the user will not wait for the cleaning up. */
  onSecond: (interrupted: Interrupted) => void;
}

/** Turns SIGINT, SIGTERM and SIGHUP into an AbortSignal, so that commands can clean up before they end. */
export function watchSignals(): Interruption {
  const controller = new AbortController();
  let first = 0;
  const interruption: Interruption = {
    signal: controller.signal,
    interrupt: (interrupted) => controller.abort(interrupted),
    onSecond: ({ exitCode }) => process.exit(exitCode),
  };
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(name, () => {
      if (!controller.signal.aborted) {
        first = performance.now();
        controller.abort(new Interrupted(name));
      } else if (performance.now() - first > SAME_SIGNAL_MS) {
        interruption.onSecond(new Interrupted(name));
      }
    });
  }
  return interruption;
}

import { constants } from "node:os";

/**
 * Signals within this time of each other count as one. The CLI may get the same signal twice: a terminal signals the
 * whole process group, and the launcher also forwards the signal.
 */
const SAME_SIGNAL_MS = 300;

/** The reason of an interruption: the user, or the parent process, has asked the CLI to stop. */
export class Interrupted extends Error {
  readonly signal: NodeJS.Signals;
  constructor(signal: NodeJS.Signals) {
    super(`interrupted by ${signal}`);
    this.name = "Interrupted";
    this.signal = signal;
  }
  /** The exit code that a shell reports for a command ended by this signal. */
  get exitCode(): number {
    return exitCodeOf(this.signal);
  }
}

export const exitCodeOf = (signal: string): number =>
  128 + ((constants.signals as Record<string, number>)[signal] ?? 0);

export interface Interruption {
  /** Fires with an `Interrupted` at the first signal, or with the reason given to `interrupt`. */
  readonly signal: AbortSignal;
  /** Interrupts the command with this reason, as a signal would. */
  interrupt(reason: Error): void;
  /**
   * Called at the first SIGINT, instead of firing `signal`; only the second SIGINT then fires `signal`. If this is
   * null, the first SIGINT fires `signal`.
   */
  onFirstInterrupt: (() => void) | null;
  /** Called when another signal arrives after `signal` has fired: the user does not want to wait for the cleanup. */
  onSecond: (interrupted: Interrupted) => void;
}

/** Turns SIGINT, SIGTERM and SIGHUP into an AbortSignal, so that commands can clean up before they end. */
export function watchSignals(): Interruption {
  const controller = new AbortController();
  let last: { name: NodeJS.Signals; at: number } | null = null;
  const interruption: Interruption = {
    signal: controller.signal,
    interrupt: (reason) => controller.abort(reason),
    onFirstInterrupt: null,
    onSecond: ({ exitCode }) => process.exit(exitCode),
  };
  const take = (name: NodeJS.Signals) => {
    const forward = interruption.onFirstInterrupt;
    if (controller.signal.aborted) return interruption.onSecond(new Interrupted(name));
    if (name !== "SIGINT" || forward === null) return controller.abort(new Interrupted(name));
    interruption.onFirstInterrupt = null;
    forward();
  };
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(name, () => {
      const now = performance.now();
      const isSame = last !== null && now - last.at <= SAME_SIGNAL_MS;
      if (isSame && (last?.name === name || controller.signal.aborted)) return;
      last = { name, at: now };
      take(name);
    });
  }
  return interruption;
}

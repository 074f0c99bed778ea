import type { WaitOptions } from "../api.ts";
import { ExecUnfinishedError, HoldfastError, type KnownOfExec, type Where } from "../errors.ts";

/** The names of the options of calls that wait. */
export const WAIT_OPTIONS = { signal: true, giveUpAfterMs: true } as const;

/** Node's longest timer; longer waits are treated as unbounded. */
const TIMER_LIMIT_MS = 2_147_483_647;

/**
 * Ends the wait of one call when the caller's signal fires or when `giveUpAfterMs` has passed. If the signal fires, its
 * reason is thrown unchanged. The exec keeps running in both cases.
 */
export class Waiting {
  readonly signal: AbortSignal | undefined;
  readonly #deadline: AbortSignal | null;
  readonly #afterMs: number;

  constructor({ signal, giveUpAfterMs = Number.POSITIVE_INFINITY }: WaitOptions) {
    this.#afterMs = giveUpAfterMs;
    this.#deadline = giveUpAfterMs > TIMER_LIMIT_MS ? null : AbortSignal.timeout(Math.max(0, giveUpAfterMs));
    if (this.#deadline === null) this.signal = signal;
    else this.signal = signal === undefined ? this.#deadline : AbortSignal.any([signal, this.#deadline]);
  }

  /** Whether the error was thrown because `giveUpAfterMs` has passed. */
  isOver(error: unknown): boolean {
    return this.#deadline?.aborted === true && error === this.#deadline.reason;
  }

  /**
   * Returns the error to throw instead of `error`. That is an ExecUnfinishedError with the last known state if
   * `giveUpAfterMs` has passed, or if a retryable error ended the wait for an exec that may have been started. In all
   * other cases it is `error` itself.
   */
  explain(error: unknown, doing: string, known: KnownOfExec, where: Where): unknown {
    if (this.isOver(error)) {
      return unfinished(error, `after ${this.#afterMs} ms of ${doing}`, known, where);
    }
    if (!(error instanceof HoldfastError) || !error.retryable) return error;
    // If the exec was not started, there is no unfinished exec to report.
    if (known.exec === null && error.dispatched === "no") return error;
    return unfinished(error, `while ${doing}: ${error.message.replace(/\.$/, "")}`, known, error);
  }
}

function unfinished(cause: unknown, why: string, known: KnownOfExec, where: Where): ExecUnfinishedError {
  const { id, exec } = known;
  const status =
    exec === null ? "it is unknown whether it was started" : `its last known status was ${exec.status}`;
  const answer = cause instanceof HoldfastError ? cause : { status: 0, body: "", requestId: undefined };
  return new ExecUnfinishedError(
    {
      method: where.method,
      url: where.url,
      code: "exec_unfinished",
      message: `Gave up on exec ${id} ${why}; ${status}.`,
      hint:
        exec === null
          ? "Starting it again with the same id is safe: the command never runs twice."
          : "The exec is not affected: get it by its id, and read its output from the cursor.",
      retryable: true,
      dispatched: exec?.dispatched ?? "unknown",
      status: answer.status,
      body: answer.body,
      requestId: answer.requestId,
      sandboxId: exec?.sandboxId,
      execId: id,
      cause,
    },
    known,
  );
}

import type { WaitOptions } from "./api.ts";
import { ExecUnfinishedError, HoldfastError, type KnownOfExec, type Where } from "./errors.ts";

/** The longest that a timer can run: whoever waits longer waits without a bound. */
const TIMER_LIMIT_MS = 2_147_483_647;

/**
 * How long one call waits: until the caller's signal fires, whose reason is then thrown as it is, or until the caller's
 * patience is over. Neither of them touches the exec.
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

  /** Whether it was the caller's patience that ended, and not something else. */
  isOver(error: unknown): boolean {
    return this.#deadline?.aborted === true && error === this.#deadline.reason;
  }

  /** What to throw for `error`: where it means that waiting was given up, what is known of the exec. */
  explain(error: unknown, doing: string, known: KnownOfExec, where: Where): unknown {
    if (this.isOver(error)) {
      return unfinished(error, `after ${this.#afterMs} ms of ${doing}`, known, where);
    }
    if (!(error instanceof HoldfastError) || !error.retryable) return error;
    // Where nothing was started, there is nothing unfinished.
    if (known.exec === null && error.dispatched === "no") return error;
    return unfinished(error, `while ${doing}: ${error.message.replace(/\.$/, "")}`, known, error);
  }
}

function unfinished(cause: unknown, why: string, known: KnownOfExec, where: Where): ExecUnfinishedError {
  const { id, exec } = known;
  const status =
    exec === null ? "whether it was started is not known" : `when last heard of it was ${exec.status}`;
  const answer = cause instanceof HoldfastError ? cause : { status: 0, body: "", requestId: undefined };
  return new ExecUnfinishedError(
    {
      method: where.method,
      url: where.url,
      code: "exec_unfinished",
      message: `Gave up on exec ${id} ${why}; ${status}.`,
      hint:
        exec === null
          ? "Starting it again under the same id is safe: it never runs twice."
          : "Nothing of it is lost: it can be found again by its id, and read on from the cursor.",
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

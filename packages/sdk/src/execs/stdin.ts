import type { Content } from "./api.ts";
import { batchesOf } from "./batches.ts";
import { type Calls, pause } from "./calls.ts";
import { hasEnded } from "./ended.ts";
import { ConflictError } from "./errors.ts";
import { backoff } from "./retry.ts";
import type { Exec } from "./types.generated.ts";

/** Half of what a keeper holds for a command that does not read: it takes more once as much is free. */
const PIECE_BYTES = 524_288;
/** Between tries at a stdin that takes nothing; the keeper waits for it as well. */
const FULL_PAUSE_MS = 50;

const NOTHING = new Uint8Array();

interface WriteOptions {
  end: boolean;
  signal: AbortSignal | undefined;
}

/** The way into one exec's stdin. One write at a time: two can't interleave, and one that failed doesn't stop the next. */
export class Stdin {
  readonly #calls: Calls;
  readonly #execPath: string;
  /** How much the sandbox has taken; null where that has to be asked first. */
  #offset: number | null;
  #turn: Promise<void> = Promise.resolve();

  constructor(calls: Calls, execPath: string, offset: number | null) {
    this.#calls = calls;
    this.#execPath = execPath;
    this.#offset = offset;
  }

  /** Every byte exactly once, by its position in all of stdin. For a single writer. */
  write(content: Content, { end, signal }: WriteOptions): Promise<void> {
    return this.#inTurn(async () => {
      let offset = this.#offset ?? (await this.#send(0, NOTHING, { end: false, signal }));
      // Whatever breaks off a write, it is not known how much of it arrived.
      this.#offset = null;
      let isClosed = false;
      for await (const { data, isLast } of batchesOf(content, PIECE_BYTES, signal)) {
        isClosed = end && isLast;
        const goal = offset + data.length;
        while (offset < goal) {
          const rest = data.subarray(data.length - (goal - offset));
          const accepted = await this.#send(offset, rest, { end: isClosed, signal });
          if (accepted === offset) await pause(FULL_PAUSE_MS, signal);
          offset = accepted;
        }
      }
      if (end && !isClosed) await this.#send(offset, NOTHING, { end, signal });
      this.#offset = offset;
    });
  }

  /** Behind whatever others wrote. At most once: what may have arrived is not sent again. */
  append(content: Content, { end, signal }: WriteOptions): Promise<void> {
    return this.#inTurn(async () => {
      this.#offset = null;
      let isClosed = false;
      for await (const { data, isLast } of batchesOf(content, PIECE_BYTES, signal)) {
        isClosed = end && isLast;
        await this.#send(null, data, { end: isClosed, signal });
      }
      if (end && !isClosed) await this.#send(null, NOTHING, { end, signal });
    });
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => {});
    return turn;
  }

  /** Says how far stdin has got. */
  async #send(offset: number | null, data: Uint8Array, { end, signal }: WriteOptions): Promise<number> {
    let wasQueued = true;
    for (let tries = 1; ; tries++) {
      try {
        const { accepted } = await this.#calls.json<{ accepted: number }>({
          method: "POST",
          path: `${this.#execPath}/stdin`,
          query: { offset: offset ?? undefined, end },
          bytes: data,
          headers: { "content-type": "application/octet-stream" },
          idempotent: offset !== null,
          waiting: true,
          signal,
        });
        return accepted;
      } catch (error) {
        if (!(error instanceof ConflictError)) throw error;
        // An exec that still waits for its turn takes nothing. The turn may come between the refusal and this look.
        const exec = await this.#look(signal);
        if (hasEnded(exec) || !(wasQueued || exec.status === "queued")) throw error;
        wasQueued = exec.status === "queued";
        await pause(backoff(tries, Math.random()), signal);
      }
    }
  }

  #look(signal: AbortSignal | undefined): Promise<Exec> {
    return this.#calls.json({ method: "GET", path: this.#execPath, idempotent: true, waiting: true, signal });
  }
}

import type { Content } from "../api.ts";
import { ConflictError } from "../errors.ts";
import { type Calls, pause } from "../transport/calls.ts";
import { backoff } from "../transport/retry.ts";
import type { Exec } from "../types.generated.ts";
import { batchesOf } from "./batches.ts";
import { hasEnded } from "./ended.ts";

/**
 * Size of one write: half of the buffer in which the keeper holds input that the command has not read. The keeper
 * accepts more input when this much of the buffer is free.
 */
const PIECE_BYTES = 524_288;
/**
 * Pause between attempts to write to a full stdin. It is short, because the keeper delays its response to a write that
 * it can't accept, for 1 s at most.
 */
const FULL_PAUSE_MS = 50;

const NOTHING = new Uint8Array();

interface WriteOptions {
  end: boolean;
  signal: AbortSignal | undefined;
}

/**
 * Writes to one exec's stdin, one write at a time, so that writes never interleave. A failed write does not prevent
 * later ones.
 */
export class Stdin {
  readonly #calls: Calls;
  readonly #execPath: string;
  /** Number of bytes of stdin that the sandbox has accepted so far; null if unknown. */
  #offset: number | null;
  #turn: Promise<void> = Promise.resolve();

  constructor(calls: Calls, execPath: string, offset: number | null) {
    this.#calls = calls;
    this.#execPath = execPath;
    this.#offset = offset;
  }

  /**
   * Writes every byte exactly once. Each request states the byte offset in stdin at which its data belongs. Bytes of
   * another writer would shift the offsets, so there must be no other writer.
   */
  write(content: Content, { end, signal }: WriteOptions): Promise<void> {
    return this.#inTurn(async () => {
      let offset = this.#offset ?? (await this.#send(0, NOTHING, { end: false, signal }));
      // The offset is unknown until the write has ended, and stays unknown if the write fails or is aborted.
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

  /**
   * Appends input to stdin, after everything that other writers have written. Bytes that may have arrived are not sent
   * again, so every byte is written at most once.
   */
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

  /** Sends one piece at the given byte offset in stdin, and returns the offset up to which input was accepted. */
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
        // A queued exec rejects input with a conflict, so the write is repeated until the exec has started. The exec
        // may start between a rejection and the look at its status. So one more attempt is made after the exec was
        // first seen to be no longer queued.
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

import { type ExecId, HoldfastError } from "@holdfast/contract";
import { DeadlinePassed } from "../lib/deadline.ts";
import { SerialQueue } from "../lib/serial-queue.ts";
import type { EngineContext } from "../ports/context.ts";
import { KeeperRefusal, LinkLost } from "../ports/index.ts";
import type { LiveSandbox } from "./live-sandbox.ts";

const CHUNK_BYTES = 262_144;
const PAUSE_MS = 200;
const NOTHING = new Uint8Array();

/**
 * Writes data without an offset to a command's stdin: the text in the start request, and then the data that callers
 * append. One piece is written at a time, and repeated at the same offset until the keeper has all of it. The keeper
 * skips bytes that it already has, so neither a lost link nor two concurrent callers can duplicate, drop or mix bytes.
 */
export class StdinFeed {
  readonly #context: EngineContext;
  readonly #live: LiveSandbox;
  readonly #id: ExecId;
  readonly #writes: SerialQueue;
  /** Settles when the stored text was written or can't be written. */
  begun: Promise<unknown> = Promise.resolve();

  constructor(context: EngineContext, live: LiveSandbox, id: ExecId) {
    this.#context = context;
    this.#live = live;
    this.#id = id;
    const limit = context.numbers.stdinWritesWaiting;
    const message = `${limit} writes wait for this exec's stdin already.`;
    const about = { sandboxId: live.id, execId: id, message };
    this.#writes = new SerialQueue({ limit, onFull: () => new HoldfastError("capacity", about) });
  }

  /**
   * Writes the stored text from its beginning. After a restart the next server writes the text again, and the keeper
   * skips the part that it has.
   */
  begin(text: string, end: boolean, signal: AbortSignal): Promise<number> {
    const turn = this.#writes.run(() => this.#give(Buffer.from(text, "utf8"), end, 0, signal));
    this.begun = turn.catch(() => undefined);
    return turn;
  }

  /**
   * Appends data after all data written before. When all of it is accepted, resolves with the offset that stdin has
   * reached.
   */
  append(data: Uint8Array, end: boolean, signal: AbortSignal): Promise<number> {
    return this.#writes.run(() => this.#give(data, end, null, signal));
  }

  async #give(data: Uint8Array, end: boolean, at: number | null, signal: AbortSignal): Promise<number> {
    const { clock, numbers } = this.#context;
    let base = at;
    for (let done = 0; ; ) {
      signal.throwIfAborted();
      try {
        // A suspended sandbox has no link. After the wake the piece is sent again, from the first byte that the keeper
        // has not accepted.
        if (!this.#live.isLinked) await this.#live.until(() => !this.#live.isAsleep, signal);
        const link = await this.#live.waitForLink(numbers.createDeadlineMs, signal);
        if (!link) throw new LinkLost("the sandbox has no keeper", "no");
        const ask = { offset: 0, data: NOTHING, end: false };
        base ??= (await link.writeStdin(this.#id, ask, signal)).accepted;
        const piece = data.subarray(done, done + CHUNK_BYTES);
        const last = done + piece.length === data.length;
        const chunk = { offset: base + done, data: piece, end: last && end };
        const { accepted } = await link.writeStdin(this.#id, chunk, signal);
        done = Math.max(done, Math.min(accepted - base, data.length));
        if (last && done === data.length) return accepted;
      } catch (error) {
        const isFull = error instanceof KeeperRefusal && error.reason === "limit";
        const comesBack = isFull || error instanceof LinkLost || error instanceof DeadlinePassed;
        const isOver = this.#live.refusal() !== null && !this.#live.isAsleep;
        if (!comesBack || signal.aborted || isOver) throw error;
        await clock.sleep(PAUSE_MS, signal);
      }
    }
  }
}

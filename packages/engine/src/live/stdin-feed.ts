import { type ExecId, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { DeadlinePassed } from "./clock.ts";
import { KeeperRefusal, LinkLost } from "./ports.ts";
import type { World } from "./world.ts";

const CHUNK_BYTES = 262_144;
const WAITING_MAX = 256;
const PAUSE_MS = 200;
const NOTHING = new Uint8Array();

/**
 * The way into a command's stdin for what has no offset of its own: the text that came with the exec, and what is typed
 * behind it. One piece at a time, each sent at a fixed offset until the keeper has all of it: the keeper skips what it
 * already has, so neither a lost link nor two callers at once can double, drop or mix bytes.
 */
export class StdinFeed {
  readonly #world: World;
  readonly #cell: Cell;
  readonly #id: ExecId;
  #tail: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  /** Settles when the stored text was given, or can't be. */
  begun: Promise<unknown> = Promise.resolve();

  constructor(world: World, cell: Cell, id: ExecId) {
    this.#world = world;
    this.#cell = cell;
    this.#id = id;
  }

  /** The stored text, from the very beginning; a restarted server gives it again. */
  begin(text: string, end: boolean, signal: AbortSignal): Promise<number> {
    const turn = this.#inTurn(() => this.#give(Buffer.from(text, "utf8"), end, 0, signal));
    this.begun = turn.catch(() => undefined);
    return turn;
  }

  /** Behind everything before it. Resolves with how far stdin has got, once all of it was accepted. */
  append(data: Uint8Array, end: boolean, signal: AbortSignal): Promise<number> {
    if (this.#waiting >= WAITING_MAX) {
      const message = `${WAITING_MAX} writes wait for this exec's stdin already.`;
      throw new HoldfastError("capacity", { sandboxId: this.#cell.id, execId: this.#id, message });
    }
    return this.#inTurn(() => this.#give(data, end, null, signal));
  }

  #inTurn(work: () => Promise<number>): Promise<number> {
    this.#waiting += 1;
    const turn = this.#tail.then(work).finally(() => {
      this.#waiting -= 1;
    });
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  async #give(data: Uint8Array, end: boolean, at: number | null, signal: AbortSignal): Promise<number> {
    const { clock, numbers } = this.#world;
    let base = at;
    for (let done = 0; ; ) {
      signal.throwIfAborted();
      try {
        // Frozen, and without a link: it is given where it stopped when that is over.
        if (this.#cell.links === null) await this.#cell.until(() => !this.#cell.isAsleep, signal);
        const link = await this.#cell.links?.get(numbers.createDeadlineMs, signal);
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
        const isOver = this.#cell.refusal() !== null && !this.#cell.isAsleep;
        if (!comesBack || signal.aborted || isOver) throw error;
        await clock.sleep(PAUSE_MS, signal);
      }
    }
  }
}

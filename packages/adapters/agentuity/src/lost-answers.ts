import { hash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { randomText } from "@holdfast/contract";

/** How long a request is looked out for whose answer was lost: the client repeats for half a minute. */
const REMEMBERED_MS = 60_000;
const REMEMBERED_MAX = 1_000;
/** The client repeats nothing sooner than half a second after it was sent. */
const REPEATED_AFTER_MS = 400;
/** How long a request that may be such a repetition waits to hear what became of the one before it. */
const HELD_MS = 2_000;
const ID_LENGTH = 20;

interface Limits {
  now: () => number;
  repeatedAfterMs: number;
  heldMs: number;
}
const LIMITS: Limits = { now: Date.now, repeatedAfterMs: REPEATED_AFTER_MS, heldMs: HELD_MS };

interface UnderWay {
  key: string;
  since: number;
  /** Resolves when it was answered, or is known to be lost. */
  settled: Promise<void>;
}

interface Lost {
  key: string;
  id: string;
  until: number;
}

/**
 * Keeps an order from being carried out twice because its answer was lost. The client sends a request again, with nothing
 * that tells it from a second one, when the connection breaks before the answer; what the first one began would then be begun
 * again. So each order gets an id, which what it makes is made under, and where the connection closed before the answer was
 * written out the next identical order gets the same id, once: the engine makes nothing twice under one.
 *
 * Orders that are merely alike are carried out each: an answer that was written out is never looked at again. One that comes
 * while another like it has been unanswered for a while waits a moment, because the end of a lost connection may be noticed
 * after the request that replaces it. What can't be known here, and is left: an answer that was written out and lost on the
 * way, a connection that broke unnoticed, and orders of a server that ended meanwhile.
 */
export class LostAnswers {
  readonly #limits: Limits;
  readonly #underWay = new Set<UnderWay>();
  /** Oldest first. */
  #lost: Lost[] = [];

  constructor(limits: Partial<Limits> = {}) {
    this.#limits = { ...LIMITS, ...limits };
  }

  /** The id for an order: a new one, or that of the same order whose answer was lost. `order` is all that makes it the same. */
  async idFor(order: unknown, response: ServerResponse, signal: AbortSignal): Promise<string> {
    const key = hash("sha256", JSON.stringify(order));
    await this.#repeatedSettled(key, signal);
    signal.throwIfAborted();
    const id = this.#takeLost(key) ?? randomText(ID_LENGTH);
    const { promise: settled, resolve } = Promise.withResolvers<void>();
    const own: UnderWay = { key, since: this.#limits.now(), settled };
    this.#underWay.add(own);
    response.once("close", () => {
      this.#underWay.delete(own);
      if (!response.writableFinished) this.#remember(key, id);
      resolve();
    });
    return id;
  }

  /** Until no order is left that this may repeat, for a moment at most. */
  async #repeatedSettled(key: string, signal: AbortSignal): Promise<void> {
    const { now, repeatedAfterMs, heldMs } = this.#limits;
    const sentBefore = now() - repeatedAfterMs;
    const first = [...this.#underWay].filter((each) => each.key === key && each.since <= sentBefore);
    if (first.length === 0) return;
    const patience = AbortSignal.any([signal, AbortSignal.timeout(heldMs)]);
    const over = new Promise<void>((resolve) =>
      patience.addEventListener("abort", () => resolve(), { once: true }),
    );
    await Promise.race([over, ...first.map(({ settled }) => settled)]);
  }

  #takeLost(key: string): string | null {
    this.#lost = this.#lost.filter(({ until }) => until > this.#limits.now());
    const at = this.#lost.findIndex((lost) => lost.key === key);
    return at === -1 ? null : (this.#lost.splice(at, 1)[0]?.id ?? null);
  }

  #remember(key: string, id: string): void {
    if (this.#lost.length >= REMEMBERED_MAX) this.#lost.shift();
    this.#lost.push({ key, id, until: this.#limits.now() + REMEMBERED_MS });
  }
}

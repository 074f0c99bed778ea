import { hash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { randomText } from "@holdfast/contract";

/** How long a request with a lost response is remembered. The client repeats such a request for half a minute. */
const REMEMBERED_MS = 60_000;
const REMEMBERED_MAX = 1_000;
/**
 * Minimum time between an unanswered request and its repetition. The client waits at least half a second before it
 * repeats a request, so an equal request that arrives earlier is a new one.
 */
const REPEATED_AFTER_MS = 400;
/** How long a request that may be a repetition waits for the outcome of the earlier request. */
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
  /** Resolves when the response was sent completely, or when the connection closed before that. */
  settled: Promise<void>;
}

interface Lost {
  key: string;
  id: string;
  until: number;
}

/**
 * Prevents a request from being carried out twice because its response was lost. If the connection breaks before the
 * response, the client sends the request again, and the repetition looks exactly like a new, equal request. So each
 * request gets an id under which its resources are created, and the engine creates nothing twice under one id. If the
 * connection closed before the response was written, the next equal request, and only that one, gets the same id.
 *
 * Equal requests that are not repetitions are each carried out: once the response of a request was written, its id is
 * never reused. The server may receive a repetition before it notices that the earlier connection has ended. So if an
 * equal request has been unanswered for a while, a new request waits a moment for the outcome of that request.
 *
 * Three cases are not detected: a response that was written but lost on the way, a broken connection that the server
 * did not notice, and requests to a server that has since restarted.
 */
export class LostAnswers {
  readonly #limits: Limits;
  readonly #underWay = new Set<UnderWay>();
  /** Requests with a lost response, oldest first. */
  #lost: Lost[] = [];

  constructor(limits: Partial<Limits> = {}) {
    this.#limits = { ...LIMITS, ...limits };
  }

  /**
   * Returns the id for a request: the id of an equal request with a lost response, if there is one, and a new id
   * otherwise. `order` contains everything that makes two requests equal.
   */
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

  /**
   * Waits briefly for earlier, equal requests that are still unanswered: this request may be a repetition of one of
   * them.
   */
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

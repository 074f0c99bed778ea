import { causeOf } from "@holdfast/contract";
import { raced, within } from "../lib/deadline.ts";
import { LinkUnwanted } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Instance, Link } from "../ports/index.ts";
import { type ForkExecIds, renamedLink } from "./fork-exec-ids.ts";

interface LinkHooks {
  /**
   * Runs on every new link before callers get it: subscribes to the keeper's reports and compares the execs. If it
   * throws, the link is closed.
   */
  onUp(link: Link): Promise<void>;
  onDown(why: string): void;
}

/**
 * Keeps one link to an instance's keeper open for as long as the instance is wanted. A lost link is replaced by a new
 * one, with back-off and jitter and no limit on attempts, because only an observation can show that the instance is
 * gone. Callers wait for the next link instead of failing on the lost one.
 */
export class PersistentLink {
  readonly #context: EngineContext;
  readonly #instance: Instance;
  readonly #hooks: LinkHooks;
  readonly #names: ForkExecIds | null;
  readonly #over = new AbortController();
  #current: Link | null = null;
  #waiters = new Set<(link: Link) => void>();
  #down = "not connected yet";
  #losses = 0;
  #bootId: string | undefined;

  constructor(
    context: EngineContext,
    instance: Instance,
    hooks: LinkHooks,
    names: ForkExecIds | null = null,
  ) {
    this.#context = context;
    this.#instance = instance;
    this.#bootId = instance.keeperBootId;
    this.#hooks = hooks;
    this.#names = names;
  }

  get current(): Link | null {
    return this.#current;
  }

  /** How many times a link was lost or a connection attempt failed. */
  get losses(): number {
    return this.#losses;
  }

  /** Whether the link is closed for good. */
  get isClosed(): boolean {
    return this.#over.signal.aborted;
  }

  /** Opens the link and keeps it open until `close` is called or the engine stops. */
  open(): void {
    void this.#keep();
  }

  /**
   * Closes the current link, so that a new one is opened at once. Does nothing if there is no link, because one is
   * being opened anyway.
   */
  renew(): void {
    this.#current?.close();
  }

  close(): void {
    this.#over.abort(new LinkUnwanted());
    this.#current?.close();
    this.#current = null;
  }

  /** Returns the current link or waits for the next one. Rejects if no link is up after `ms`. */
  async get(ms: number, signal: AbortSignal): Promise<Link> {
    if (this.#current !== null) return this.#current;
    const { clock } = this.#context;
    const limit = {
      ms,
      what: `waiting for a link (${this.#down})`,
      signal: AbortSignal.any([signal, this.#over.signal]),
    };
    return within(clock, limit, (waiting) => {
      const next = Promise.withResolvers<Link>();
      this.#waiters.add(next.resolve);
      const drop = () => this.#waiters.delete(next.resolve);
      waiting.addEventListener("abort", drop, { once: true });
      return next.promise.finally(drop);
    });
  }

  async #keep(): Promise<void> {
    const { clock, ids, numbers, log } = this.#context;
    const over = AbortSignal.any([this.#over.signal, this.#context.stopping]);
    const bound = { sandbox: this.#instance.sandboxId, generation: this.#instance.generation };
    let failures = 0;
    while (!over.aborted) {
      try {
        const link = await this.#connect(over);
        failures = 0;
        log.debug({ ...bound, keeper: link.keeper }, "link up");
        const why = await raced(link.closed, over).finally(() => link.close());
        this.#lost(why);
        log.warn({ ...bound, why }, "link lost");
      } catch (error) {
        if (over.aborted) break;
        failures += 1;
        this.#lost(causeOf(error).message);
        if (failures === 1) log.warn({ ...bound, cause: causeOf(error) }, "no link to the keeper");
      }
      const wait = Math.min(numbers.linkRetryMaxMs, numbers.linkRetryMinMs * 2 ** Math.min(failures, 10));
      await clock.sleep(wait * (0.5 + ids.random() / 2), over).catch(() => undefined);
    }
    this.#current?.close();
    this.#current = null;
  }

  async #connect(over: AbortSignal): Promise<Link> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.linkDeadMs, what: "connecting to the keeper", signal: over };
    return within(clock, limit, async (signal) => {
      const bare = await driver.connect(this.#instance, signal);
      const link = this.#names === null ? bare : renamedLink(bare, this.#names);
      try {
        this.#recognise(link);
        await raced(this.#hooks.onUp(link), signal);
      } catch (error) {
        link.close();
        throw error;
      }
      this.#current = link;
      for (const give of [...this.#waiters]) give(link);
      return link;
    });
  }

  /**
   * Rejects a link if another process answers in the keeper's place. The first hello is answered before any command can
   * run, so its boot id is the keeper's. Later a command that runs as root can put its own socket in the keeper's
   * place, but it can't know the boot id, which exists only in the keeper's memory.
   */
  #recognise(link: Link): void {
    const { bootId } = link.keeper;
    this.#bootId ??= bootId;
    if (bootId !== this.#bootId) throw new Error("another process answers in the keeper's place");
  }

  #lost(why: string): void {
    this.#losses += 1;
    this.#current = null;
    this.#down = why;
    this.#hooks.onDown(why);
  }
}

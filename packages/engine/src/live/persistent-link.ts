import { causeOf } from "@holdfast/contract";
import { raced, within } from "./clock.ts";
import { type ExecNames, renamedLink } from "./exec-names.ts";
import { type Instance, type Link, LinkLost } from "./ports.ts";
import type { World } from "./world.ts";

export interface LinkHooks {
  /** Runs on every new link before anybody else gets it: re-subscribe, reconcile. A throw gives the link up. */
  onUp(link: Link): Promise<void>;
  onDown(why: string): void;
}

/** Why nobody gets a link any more: the instance that it led to is being ended, or put to sleep. */
export class LinkUnwanted extends LinkLost {
  constructor() {
    super("the link is no longer wanted", "no");
    this.name = "LinkUnwanted";
  }
}

/**
 * Keeps one link to an instance's keeper for as long as the instance is wanted. A link is disposable: when it is lost,
 * this connects again, with back-off and jitter, for ever; whether the instance is still there is not decided here but
 * by observation. Callers wait for the next link instead of failing on the lost one.
 */
export class LinkHolder {
  readonly #world: World;
  readonly #instance: Instance;
  readonly #hooks: LinkHooks;
  readonly #names: ExecNames | null;
  readonly #over = new AbortController();
  #current: Link | null = null;
  #waiters = new Set<(link: Link) => void>();
  #down = "not connected yet";
  #bootId: string | undefined;

  constructor(world: World, instance: Instance, hooks: LinkHooks, names: ExecNames | null = null) {
    this.#world = world;
    this.#instance = instance;
    this.#bootId = instance.keeperBootId;
    this.#hooks = hooks;
    this.#names = names;
  }

  get current(): Link | null {
    return this.#current;
  }

  /** Whether no link will come any more. */
  get isClosed(): boolean {
    return this.#over.signal.aborted;
  }

  /** Starts the loop; it ends with `close` or with the engine. */
  open(): void {
    void this.#keep();
  }

  /** Gives the present link up, so that the next one is made at once. Where there is none, one is being made anyway. */
  renew(): void {
    this.#current?.close();
  }

  close(): void {
    this.#over.abort(new LinkUnwanted());
    this.#current?.close();
    this.#current = null;
  }

  /** The link, or the next one; rejects when there is none within `ms`. */
  async get(ms: number, signal: AbortSignal): Promise<Link> {
    if (this.#current !== null) return this.#current;
    const { clock } = this.#world;
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
    const { clock, ids, numbers, log } = this.#world;
    const over = AbortSignal.any([this.#over.signal, this.#world.stopping]);
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
    const { clock, driver, numbers } = this.#world;
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
   * The first hello comes before any command could run; after it, a command that runs as root can put a socket of its own
   * in the keeper's place, but not learn the boot id that the keeper keeps in its memory.
   */
  #recognise(link: Link): void {
    const { bootId } = link.keeper;
    this.#bootId ??= bootId;
    if (bootId !== this.#bootId) throw new Error("another process answers in the keeper's place");
  }

  #lost(why: string): void {
    this.#current = null;
    this.#down = why;
    this.#hooks.onDown(why);
  }
}

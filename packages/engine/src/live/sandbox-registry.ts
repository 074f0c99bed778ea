import { HoldfastError, isName, isSandboxId, type SandboxId } from "@holdfast/contract";
import { goneError } from "../model/removal-cause.ts";
import type { Store } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";
import type { EngineEvents } from "./engine-events.ts";
import { type ForkExecIds, forkExecIds } from "./fork-exec-ids.ts";
import type { LiveSandbox } from "./live-sandbox.ts";
import { type OrphanSightings, pendingMessage } from "./orphan-sightings.ts";

/** The live sandboxes, by id and by name. Records of sandboxes that are gone stay in the store. */
export class SandboxRegistry {
  readonly #store: Store;
  readonly #orphans: OrphanSightings;
  readonly #live = new Map<SandboxId, LiveSandbox>();
  readonly #events: EngineEvents;

  constructor(store: Store, orphans: OrphanSightings, events: EngineEvents) {
    this.#store = store;
    this.#orphans = orphans;
    this.#events = events;
  }

  allLive(): Iterable<LiveSandbox> {
    return this.#live.values();
  }

  live(id: string): LiveSandbox | undefined {
    return this.#live.get(id as SandboxId);
  }

  add(live: LiveSandbox): void {
    this.#live.set(live.id, live);
    this.#events.sandboxAdded.emit(live);
  }

  drop(live: LiveSandbox): void {
    this.#live.delete(live.id);
    this.#events.sandboxRemoved.emit(live);
  }

  /** Returns the live sandbox with this id or name. Rejects with `sandbox_gone` if only its record is left. */
  async find(ref: string): Promise<LiveSandbox> {
    const known = this.live(ref);
    if (known !== undefined) return known;
    const record = await this.stored(ref);
    const live = this.#live.get(record.id);
    if (live !== undefined) return live;
    throw goneError(record.id, record.phase.name === "gone" ? record.phase.cause : null);
  }

  /** Returns the id of the sandbox with this id or name. A sandbox that is gone is found only by its id. */
  async idOf(ref: string): Promise<SandboxId> {
    return this.live(ref)?.id ?? (await this.stored(ref)).id;
  }

  /** Returns the stored record of the sandbox with this id or name. */
  async stored(ref: string): Promise<SandboxRecord> {
    const record = isSandboxId(ref) ? await this.#byId(ref) : isName(ref) ? await this.#byName(ref) : null;
    if (record === null) {
      throw new HoldfastError("sandbox_not_found", {
        message: `There is no sandbox ${JSON.stringify(ref.slice(0, 80))}.`,
      });
    }
    return record;
  }

  /**
   * Returns the translation of a fork's exec ids. Also works after the fork is gone, because its execs can be read as
   * long as its record is kept.
   */
  async forkExecIds(id: SandboxId): Promise<ForkExecIds | null> {
    const record = this.#live.get(id)?.record ?? (await this.#store.sandbox(id).catch(() => null));
    return record === null ? null : forkExecIds(record);
  }

  /** Returns the record of the sandbox with this name. A sandbox whose TTL has passed is found only by its id. */
  async #byName(name: string): Promise<SandboxRecord | null> {
    const record = await this.#store.sandboxByName(name).catch((error: unknown) => unreadable(name, error));
    return record !== null && this.#live.get(record.id)?.isExpired ? null : record;
  }

  /**
   * Returns the sandbox that still holds a name although its TTL has passed. The name becomes free once the delete is
   * recorded.
   */
  async expiredHolder(name: string): Promise<LiveSandbox | null> {
    const record = await this.#store.sandboxByName(name).catch(() => null);
    const live = record === null ? undefined : this.#live.get(record.id);
    return live?.isExpired ? live : null;
  }

  /**
   * Returns the record of the sandbox with this id; null if neither a record nor an orphan has the id. Rejects with
   * `pending_cleanup` for an orphan, and for a sandbox whose record is unreadable and whose resources may still exist.
   */
  async #byId(id: SandboxId): Promise<SandboxRecord | null> {
    try {
      const record = await this.#store.sandbox(id);
      if (record !== null) return record;
    } catch (error) {
      if (!(await this.#store.unreadable()).includes(id))
        throw new HoldfastError("sandbox_gone", { sandboxId: id, cause: error });
      throw new HoldfastError("pending_cleanup", {
        sandboxId: id,
        message: pendingMessage(id, null),
        cause: error,
      });
    }
    const dueAt = this.#orphans.removalDueAt(id);
    if (dueAt === null) return null;
    throw new HoldfastError("pending_cleanup", { sandboxId: id, message: pendingMessage(id, dueAt) });
  }
}

function unreadable(name: string, error: unknown): never {
  const message = `The record of ${name} can't be read. Delete the sandbox by its id, which 'holdfast audit' shows.`;
  throw new HoldfastError("pending_cleanup", { message, cause: error });
}

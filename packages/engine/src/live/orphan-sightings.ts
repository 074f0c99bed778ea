import type { SandboxId } from "@holdfast/contract";
import { iso } from "../lib/format.ts";

/** Sandboxes that were found on the host without a record, with the time at which each was first seen. */
export class OrphanSightings {
  readonly #graceMs: number;
  readonly #firstSeen = new Map<SandboxId, number>();

  constructor(graceMs: number) {
    this.#graceMs = graceMs;
  }

  get count(): number {
    return this.#firstSeen.size;
  }

  firstSeenAt(id: SandboxId): number | undefined {
    return this.#firstSeen.get(id);
  }

  /** Records a sighting and returns when the sandbox was first seen. */
  note(id: SandboxId, now: number): number {
    const since = this.#firstSeen.get(id) ?? now;
    this.#firstSeen.set(id, since);
    return since;
  }

  forget(id: SandboxId): void {
    this.#firstSeen.delete(id);
  }

  /** Forgets all sandboxes that are not in the given set. */
  retain(ids: ReadonlySet<SandboxId>): void {
    for (const id of [...this.#firstSeen.keys()]) if (!ids.has(id)) this.#firstSeen.delete(id);
  }

  /** Returns when the orphan is removed if it still exists then; null if no orphan with this id is known. */
  removalDueAt(id: SandboxId): number | null {
    const since = this.#firstSeen.get(id);
    return since === undefined ? null : since + this.#graceMs;
  }
}

/** Returns the message for callers that ask for a sandbox whose record is unreadable or missing. */
export const pendingMessage = (id: SandboxId, removalDueAt: number | null): string =>
  removalDueAt === null
    ? `The record of ${id} can't be read. Its resources stay until the sandbox is deleted by this id.`
    : `Sandbox ${id} has no record. Resources of it that still exist at ${iso(removalDueAt)} are removed then.`;

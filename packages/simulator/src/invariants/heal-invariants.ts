import type { Cause, SandboxId } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";
import type { Invariant } from "./invariant.ts";

const GIVEN_UP: ReadonlySet<string> = new Set(["not_healed", "keeps_breaking"]);

const causeOf = ({ phase }: SandboxRecord): Cause | undefined =>
  phase.name === "failed" ? phase.cause : phase.name === "queued" ? phase.restart : undefined;

const givenUpForAReason: Invariant = {
  name: "given-up-for-a-reason",
  promise:
    "The healing ladder ends an instance only while it does not serve: a failed observation is no reason.",
  witnessed({ host, time, numbers }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { record } = fact.change;
    const cause = causeOf(record);
    if (cause === undefined || !GIVEN_UP.has(cause.code)) return null;
    if (cause.cause?.code === "observation_unknown")
      return `${record.id.slice(-3)} was given up although it could not be observed: ${cause.message}`;
    const instance = host.instanceOf(record.id);
    if (instance === null || instance.generation !== record.generation) return null;
    if (instance.brokenSince !== null || instance.provenAt === null) return null;
    const servedMs = time.elapsed - instance.provenAt;
    if (servedMs >= numbers.healAfterMs) return null;
    return `${record.id.slice(-3)} was given up and had served ${servedMs} ms before: ${cause.message}`;
  },
};

/** Remembers when each sandbox last began a wake. */
export class WakeHistory {
  readonly #begun = new Map<SandboxId, { generation: number; at: number; consumed: boolean }>();

  /**
   * Notes a stored record of a sandbox. If a wake had restored the memory of a checkpoint and this record gives that
   * memory up, returns the start time of that wake. Otherwise returns null.
   */
  stored({ id, generation, phase }: SandboxRecord, now: number): number | null {
    const known = this.#begun.get(id);
    const wake = known?.generation === generation ? known : undefined;
    if (phase.name === "waking") {
      this.#begun.set(id, { generation, at: wake?.at ?? now, consumed: phase.consumed });
      return null;
    }
    this.#begun.delete(id);
    const isGivenUp = phase.name === "failed" || phase.name === "queued";
    return wake?.consumed && isGivenUp ? wake.at : null;
  }
}

const memoryTriedFor: Invariant = {
  name: "memory-tried-for",
  promise: "A wake gives up an instance that serves only when no time is left for another proof.",
  witnessed({ history, host, time, numbers }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { record } = fact.change;
    const since = history.wakes.stored(record, time.elapsed);
    const instance = host.instanceOf(record.id);
    if (since === null || instance === null || instance.brokenSince !== null || instance.isHalf) return null;
    const triedMs = time.elapsed - since;
    if (triedMs >= numbers.wakeDeadlineMs - numbers.proofDeadlineMs) return null;
    return `the memory of ${record.id.slice(-3)} was given up after ${triedMs} ms: ${causeOf(record)?.message}`;
  },
};

export const HEAL_INVARIANTS: readonly Invariant[] = [givenUpForAReason, memoryTriedFor];

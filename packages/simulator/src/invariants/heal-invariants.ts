import type { Cause } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";
import type { Invariant } from "./invariants.ts";

const GIVEN_UP: ReadonlySet<string> = new Set(["not_healed", "keeps_breaking"]);

const causeOf = ({ phase }: SandboxRecord): Cause | undefined =>
  phase.name === "failed" ? phase.cause : phase.name === "queued" ? phase.restart : undefined;

const givenUpForAReason: Invariant = {
  name: "given-up-for-a-reason",
  promise:
    "An instance is ended by the ladder only while it does not serve: no look that failed is a reason.",
  witnessed({ host, time, numbers }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { record } = fact.change;
    const cause = causeOf(record);
    if (cause === undefined || !GIVEN_UP.has(cause.code)) return null;
    if (cause.cause?.code === "observation_unknown")
      return `${record.id.slice(-3)} was given up though nobody could see it: ${cause.message}`;
    const instance = host.instanceOf(record.id);
    if (instance === null || instance.generation !== record.generation) return null;
    if (instance.brokenSince !== null || instance.provenAt === null) return null;
    const servedMs = time.elapsed - instance.provenAt;
    if (servedMs >= numbers.healAfterMs) return null;
    return `${record.id.slice(-3)} was given up and had served ${servedMs} ms before: ${cause.message}`;
  },
};

export const HEAL_INVARIANTS: readonly Invariant[] = [givenUpForAReason];

import { raced } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { failedProof } from "../model/status.ts";
import type { EngineContext } from "../ports/context.ts";
import type { LinkOpener } from "./link-opener.ts";
import { type EntryTime, proveEntry } from "./prove-entry.ts";
import type { Prover } from "./prover.ts";

export interface ServiceParts {
  events: EngineEvents;
  links: LinkOpener;
  prover: Prover;
}

/** The differences between the two ways to bring an instance into service: launch and wake. */
interface ServiceEntry {
  /** The name of the operation in error messages. */
  what: "launch" | "wake";
  /**
   * Whether the sandbox may serve without one of its drives. If it does, it is degraded, with the missing drive as the
   * cause.
   */
  mayLackMounts: boolean;
  /** Thaws a restored instance once its drives are mounted. */
  thaw?: () => Promise<void>;
  /** Runs after the proof has passed and before the result is stored. */
  beforeRecord?: () => Promise<void>;
}

/**
 * Takes an existing instance into service: mounts its drives, opens the link, proves it and stores the record. A launch
 * and a wake share these last steps; an instance that fails one of them has never served.
 */
export async function bringIntoService(
  context: EngineContext,
  { events, links, prover }: ServiceParts,
  live: LiveSandbox,
  { what, mayLackMounts, thaw, beforeRecord }: ServiceEntry,
  time: EntryTime,
): Promise<void> {
  const { signal } = time;
  const { generation } = live.record;
  await events.instanceReady.run(live, signal);
  await thaw?.();
  live.progress("proving");
  links.open(live);
  const rules = { mayLackMounts, hasMemory: what === "wake" };
  const { proof, keeperBootId } = await proveEntry(context, prover, live, rules, time);
  if (beforeRecord) await raced(beforeRecord(), signal);
  const provenAt = Date.parse(proof.at);
  const lacking = proof.ok ? undefined : failedProof(proof);
  // Retries the write while the store refuses it, because a refused write must not end the instance.
  const proven = await live.decideUntil(
    { type: "proven", generation, provenAt, keeperBootId, lacking },
    signal,
  );
  if (proven === null) throw new Error(`the ${what} was overtaken`);
  live.progress("ready");
}

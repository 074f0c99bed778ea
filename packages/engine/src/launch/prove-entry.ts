import { HoldfastError, type Proof } from "@holdfast/contract";
import { raced, within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { failedProof, lacksMountsOnly } from "../model/status.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Prover } from "./prover.ts";

/** The time limits for bringing an instance into service. */
export interface EntryTime {
  /** Aborts at the deadline. */
  signal: AbortSignal;
  /** Aborts before the deadline, when too little time is left for another proof. */
  lastProof: AbortSignal;
}

/** Runs the work under a deadline, and passes it the signals that limit the repetition of proofs. */
export async function withinEntryTime<Result>(
  { clock, numbers }: EngineContext,
  limit: { ms: number; what: string; signal: AbortSignal },
  work: (time: EntryTime) => Promise<Result>,
): Promise<Result> {
  const lastProof = clock.deadline(Math.max(0, limit.ms - numbers.proofDeadlineMs), "another proof");
  try {
    return await within(clock, limit, (signal) => work({ signal, lastProof: lastProof.signal }));
  } finally {
    lastProof.clear();
  }
}

interface EntryProof {
  proof: Proof;
  keeperBootId: string;
}

/** Conditions for an instance to enter service. */
interface EntryRules {
  /** Whether a proof is accepted if it fails only because drives are missing. */
  mayLackMounts: boolean;
  /** Whether the instance has memory that would be lost for good if the instance were given up. */
  hasMemory: boolean;
}

/** Pause before another proof if the keeper answered and the proof failed. */
const PROVE_AGAIN_MS = 500;

/**
 * Proves that an instance can serve, before it enters service. Runs one proof after another until a proof is accepted,
 * and rejects if a failed proof is not repeated. A failed proof that the keeper did not answer, because the link was
 * lost, silent or not made yet, shows nothing about the instance. Such a proof is repeated over the next link for as
 * long as there is time; otherwise one broken link would end the instance. A failed proof that the keeper did answer is
 * repeated, for as long as there is time, only if the instance has memory: the host may have been short of resources
 * for a moment, and the memory exists nowhere else. Before each repetition the driver observes the instance, and this
 * function rejects if the instance is absent. The loop never spins, because each pass waits for a link or pauses.
 */
export async function proveEntry(
  context: EngineContext,
  prover: Prover,
  live: LiveSandbox,
  { mayLackMounts, hasMemory }: EntryRules,
  { signal, lastProof }: EntryTime,
): Promise<EntryProof> {
  for (;;) {
    const { isLinkWanted, linkEpoch, linkFailures } = live;
    if (!isLinkWanted) throw new Error("the link to the keeper was given up");
    const proof = await raced(prover.prove(live), signal);
    const keeperBootId = live.linkEpoch === linkEpoch ? live.link?.keeper.bootId : undefined;
    const isSameLink = live.linkFailures === linkFailures && keeperBootId !== undefined;
    const isEnough = proof.ok || (isSameLink && mayLackMounts && lacksMountsOnly(proof));
    if (isEnough && keeperBootId !== undefined) return { proof, keeperBootId };
    const isAnswer = isSameLink && isAnswered(proof);
    if (lastProof.aborted || (isAnswer && !hasMemory))
      throw new HoldfastError("proof_failed", { message: failedProof(proof).message });
    await throwIfAbsent(context, live, signal);
    if (isAnswer) await context.clock.sleep(PROVE_AGAIN_MS, signal);
    // The keeper did not answer although the link was not lost. A new link shows whether the link or the keeper was at
    // fault.
    else if (isSameLink) live.renewLink();
  }
}

/** Whether the keeper answered. If it did not, the proof consists only of the failed check of the link. */
const isAnswered = ({ checks }: Proof): boolean => checks.some(({ name }) => name !== "link");

/**
 * Rejects if the instance is observed to be absent. Does not reject if the observation fails, because that proves
 * nothing.
 */
export async function throwIfAbsent(
  { clock, driver, numbers }: EngineContext,
  live: LiveSandbox,
  signal: AbortSignal,
): Promise<void> {
  const limit = { ms: numbers.observeEveryMs, what: "observing", signal };
  const seen = await within(clock, limit, (inner) => driver.observe([live.id], inner)).catch(() => null);
  signal.throwIfAborted();
  if (seen?.get(live.id)?.seen !== "absent") return;
  throw new HoldfastError("proof_failed", { message: "The instance's processes have ended." });
}

import { type Cause, type Numbers, type Proof, type Status, unreachable } from "@holdfast/contract";
import { wantedMounts } from "./mount-step.ts";
import type { Observation } from "./ports.ts";
import type { SandboxRecord } from "./records.ts";

/** What is known about a running instance right now. In memory only: it is evidence, and evidence ages. */
export interface Health {
  /** The last proof, passed or failed. */
  proof: Proof | null;
  provenAt: number | null;
  /** When the keeper was last heard, on any link; null while there has been none. */
  heardAt: number | null;
  /** Why there is no link, where there is none. */
  linkDown: string | null;
  observation: Observation | null;
  /** Why this engine has frozen it. */
  frozenFor: Cause | null;
  /** Paths of mounts that the last look from both sides found to be what they should be. */
  provenMounts: readonly string[];
}

export const NO_HEALTH: Health = {
  proof: null,
  provenAt: null,
  heardAt: null,
  linkDown: null,
  observation: null,
  frozenFor: null,
  provenMounts: [],
};

export interface Judgement {
  status: Status;
  cause: Cause | null;
}

/** The one place where a status is made: from the record, the evidence and the time. */
export function judge(
  record: SandboxRecord,
  health: Health,
  now: number,
  numbers: Pick<Numbers, "linkDeadMs">,
): Judgement {
  const { phase } = record;
  switch (phase.name) {
    case "queued":
      return { status: "queued", cause: null };
    case "launching":
      return { status: "creating", cause: null };
    case "running": {
      const cause = whyNotServing(record, health, now, numbers);
      return cause === null ? { status: "ready", cause: null } : { status: "degraded", cause };
    }
    case "paused":
      return { status: "paused", cause: null };
    case "suspending":
      return { status: "suspending", cause: null };
    case "standby":
      // Nothing of it is in memory any more only once its absence was observed.
      return { status: record.lease.state === "none" ? "standby" : "suspending", cause: null };
    case "waking":
      return { status: "waking", cause: null };
    case "deleting":
      return { status: "stopping", cause: phase.cause };
    case "gone":
      return { status: "terminated", cause: phase.cause };
    case "failed":
      return { status: "failed", cause: phase.cause };
    default:
      return unreachable(phase);
  }
}

/** The first thing, most telling first, that keeps a running instance from being called ready. */
function whyNotServing(
  record: SandboxRecord,
  health: Health,
  now: number,
  { linkDeadMs }: Pick<Numbers, "linkDeadMs">,
): Cause | null {
  const { observation, proof } = health;
  if (record.lease.state !== "held")
    return { code: "lease_lost", message: "The lease over the instance is not held." };
  if (observation?.seen === "absent")
    return { code: "keeper_died", message: "The instance's processes are gone." };
  if (observation?.seen === "unknown") {
    return { code: "observation_unknown", message: `The instance could not be observed: ${observation.why}` };
  }
  if (health.frozenFor !== null) return health.frozenFor;
  const problem = observation?.problems[0] ?? brokenMount(record, observation);
  if (problem !== undefined) return problem;
  if (health.linkDown !== null)
    return { code: "link_down", message: `There is no link to the keeper: ${health.linkDown}` };
  if (health.heardAt === null || now - health.heardAt > linkDeadMs) {
    const message =
      health.heardAt === null
        ? "Nothing has been heard of the keeper yet."
        : "The keeper has missed its heartbeats.";
    return { code: "keeper_silent", message };
  }
  if (proof === null || proof.generation !== record.generation) {
    return { code: "unproven", message: "There is no proof yet that the instance serves." };
  }
  return proof.ok ? null : failedProof(proof);
}

/** A mount that is to be there and is not what it should be. What was given up is not missed. */
function brokenMount({ mounts }: SandboxRecord, observation: Health["observation"]): Cause | undefined {
  const wanted = new Set(wantedMounts({ mounts }).map(({ path }) => path));
  const seen = observation?.seen === "present" ? observation.mounts : [];
  const broken = seen.find(({ path, problem }) => problem !== null && wanted.has(path));
  return broken?.problem ? { ...broken.problem, code: MOUNT_BROKEN } : undefined;
}

const MOUNT_BROKEN = "mount_broken";

/** Whether all that is wrong is a mount: the rest of the sandbox works. */
export const isMountTrouble = ({ cause }: Judgement): boolean => cause?.code === MOUNT_BROKEN;

/** Whether an instance serves but for its mounts, by a proof that failed. */
export const lacksMountsOnly = ({ checks }: Proof): boolean =>
  checks.every(({ name, ok }) => ok || name === "mounts");

export function failedProof(proof: Proof): Cause {
  const failed = proof.checks.filter((check) => !check.ok);
  const message = failed.map((check) => `${check.name}: ${check.message ?? "failed"}`).join("; ");
  const code = failed.length > 0 && lacksMountsOnly(proof) ? MOUNT_BROKEN : "proof_failed";
  return { code, message: message || "The proof failed." };
}

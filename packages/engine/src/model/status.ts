import { type Cause, type Numbers, type Proof, type Status, unreachable } from "@holdfast/contract";
import type { Observation } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";
import { wantedMounts } from "./mount-machine.ts";
import { EXPIRED } from "./removal-cause.ts";
import { isExpired } from "./sandbox-facts.ts";

/** The current evidence about a running instance. It is kept in memory only, because evidence goes out of date. */
export interface Health {
  /** The last proof, whether it passed or failed; null before the first one. */
  proof: Proof | null;
  provenAt: number | null;
  /** When the last frame from the keeper arrived on any link; null before the first one. */
  heardAt: number | null;
  /** Why there is no link; null if there is one. */
  linkDown: string | null;
  observation: Observation | null;
  /** Why this engine has frozen the instance; null if it has not. */
  frozenFor: Cause | null;
  /**
   * The result of the last check of a failed sandbox's files; null before the first check. `missing` describes what is
   * missing on the host, and is null if nothing is missing. `generation` is the generation that failed.
   */
  filesCheck: { generation: number; missing: string | null } | null;
  /** Paths of the mounts that the last check confirmed from inside and outside. */
  provenMounts: readonly string[];
}

export const NO_HEALTH: Health = {
  proof: null,
  provenAt: null,
  heardAt: null,
  linkDown: null,
  observation: null,
  frozenFor: null,
  filesCheck: null,
  provenMounts: [],
};

export interface Judgement {
  status: Status;
  cause: Cause | null;
}

/** Computes a sandbox's status from the record, the evidence and the time; no other code does. */
export function judge(
  record: SandboxRecord,
  health: Health,
  now: number,
  numbers: Pick<Numbers, "linkDeadMs">,
): Judgement {
  const { phase } = record;
  if (isExpired(record, now)) return { status: "stopping", cause: EXPIRED };
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
      // The instance may use memory until it is observed to be absent, so the status is `suspending` until then.
      return { status: record.lease.state === "none" ? "standby" : "suspending", cause: null };
    case "waking":
      return { status: "waking", cause: null };
    case "deleting":
      return { status: "stopping", cause: phase.cause };
    case "gone":
      return { status: "terminated", cause: phase.cause };
    case "failed":
      return { status: "failed", cause: withMissingFiles(phase.cause, filesLeft(record, health)) };
    default:
      return unreachable(phase);
  }
}

/**
 * Whether the files of a failed sandbox still exist on the host, as far as is known. A sandbox that was never ready has
 * no files, because its failed creation removed them and released its name.
 */
export function filesLeft(
  { nameHeld, generation }: Pick<SandboxRecord, "nameHeld" | "generation">,
  { filesCheck }: Pick<Health, "filesCheck">,
): FilesLeft {
  if (!nameHeld) return { are: "removed" };
  if (filesCheck?.generation !== generation) return { are: "unknown" };
  const { missing } = filesCheck;
  return missing === null ? { are: "kept" } : { are: "incomplete", missing };
}

export type FilesLeft =
  | { are: "kept" | "removed" | "unknown" }
  /** `missing` describes the missing files. */
  | { are: "incomplete"; missing: string };

/**
 * Adds to the cause that files of the sandbox are missing, so that they can't be read and the sandbox can't be
 * restarted.
 */
function withMissingFiles(cause: Cause, left: FilesLeft): Cause {
  if (left.are !== "incomplete") return cause;
  const end = /[.!?]$/.test(cause.message) ? "" : ".";
  const missing = `Its files can't be read, and a restart can't start it again: ${left.missing}.`;
  return { ...cause, message: `${cause.message}${end} ${missing}` };
}

/**
 * Returns the reason why a running instance is not ready; null if it is ready. Of several reasons, returns the one that
 * explains most.
 */
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

/** Returns the problem of a wanted mount that does not work. Mounts that are to be removed are not checked. */
function brokenMount({ mounts }: SandboxRecord, observation: Health["observation"]): Cause | undefined {
  const wanted = new Set(wantedMounts({ mounts }).map(({ path }) => path));
  const seen = observation?.seen === "present" ? observation.mounts : [];
  const broken = seen.find(({ path, problem }) => problem !== null && wanted.has(path));
  return broken?.problem ? { ...broken.problem, code: MOUNT_BROKEN } : undefined;
}

const MOUNT_BROKEN = "mount_broken";

/** Whether a mount is the only problem, so that the rest of the sandbox works. */
export const isMountTrouble = ({ cause }: Judgement): boolean => cause?.code === MOUNT_BROKEN;

/** Whether a failed proof shows that the instance serves, except for its mounts. */
export const lacksMountsOnly = ({ checks }: Proof): boolean =>
  checks.every(({ name, ok }) => ok || name === "mounts");

export function failedProof(proof: Proof): Cause {
  const failed = proof.checks.filter((check) => !check.ok);
  const message = failed.map((check) => `${check.name}: ${check.message ?? "failed"}`).join("; ");
  const code = failed.length > 0 && lacksMountsOnly(proof) ? MOUNT_BROKEN : "proof_failed";
  return { code, message: message || "The proof failed." };
}

import type { Numbers, Sandbox, StandbyKind } from "@holdfast/contract";
import { viewMounts } from "./drives/mounts.ts";
import { iso } from "./lib/format.ts";
import { viewLease } from "./model/lease-machine.ts";
import { expiryOf } from "./model/sandbox-facts.ts";
import { type Health, judge, NO_HEALTH } from "./model/status.ts";
import type { Origin, PhaseState, SandboxRecord } from "./ports/records.ts";

/** Returns a sandbox as callers see it: its record, and its status with the evidence. */
export function viewSandbox(
  record: SandboxRecord,
  health: Health | null,
  now: number,
  {
    numbers,
    standbyKind,
    recovery,
  }: { numbers: Numbers; standbyKind: StandbyKind; recovery: Sandbox["recovery"] },
): Sandbox {
  const evidence = health ?? NO_HEALTH;
  const { status, cause } = judge(record, evidence, now, numbers);
  const { phase, spec } = record;
  return {
    id: record.id,
    name: record.name,
    status,
    cause,
    generation: record.generation,
    image: spec.image,
    createdAt: iso(record.createdAt),
    lastActivityAt: iso(record.lastActivityAt),
    endedAt: iso(record.endedAt),
    expiresAt: iso(expiryOf(record)),
    execsStarted: record.execsStarted,
    keptUntil: phase.name === "failed" ? iso(phase.keptUntil) : null,
    provenAt: iso(evidence.provenAt),
    proof: evidence.proof,
    lease: viewLease(record.lease),
    recovery,
    standbyKind,
    checkpoint: viewCheckpoint(phase),
    forkedFrom: viewOrigin(record.forkedFrom),
    resources: spec.resources,
    lifecycle: spec.lifecycle,
    labels: spec.labels,
    mounts: viewMounts(record, evidence),
  };
}

function viewOrigin(origin: Origin | null): Sandbox["forkedFrom"] {
  if (origin === null) return null;
  const { sandboxId, checkpointId, execs } = origin;
  return { sandboxId, checkpointId, execs: Object.fromEntries(execs.map(({ id, from }) => [id, from])) };
}

function viewCheckpoint(phase: PhaseState): Sandbox["checkpoint"] {
  const checkpoint = "checkpoint" in phase ? phase.checkpoint : null;
  if (checkpoint === null) return null;
  const { id, takenAt, sizeBytes } = checkpoint;
  return { id, takenAt: iso(takenAt), sizeBytes };
}

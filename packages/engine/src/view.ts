import type { Numbers, Sandbox } from "@holdfast/contract";
import { viewLease } from "./lease.ts";
import type { SandboxRecord } from "./records.ts";
import { type Health, judge, NO_HEALTH } from "./status.ts";

const iso = (time: number | null): string | null => (time === null ? null : new Date(time).toISOString());

/** A sandbox as callers see it: what is recorded, and the status with its evidence. */
export function viewSandbox(
  record: SandboxRecord,
  health: Health | null,
  now: number,
  numbers: Numbers,
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
    createdAt: new Date(record.createdAt).toISOString(),
    lastActivityAt: new Date(record.lastActivityAt).toISOString(),
    endedAt: iso(record.endedAt),
    keptUntil: phase.name === "failed" ? iso(phase.keptUntil) : null,
    provenAt: iso(evidence.provenAt),
    proof: evidence.proof,
    lease: viewLease(record.lease),
    resources: spec.resources,
    lifecycle: spec.lifecycle,
    labels: spec.labels,
  };
}

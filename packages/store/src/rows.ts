/**
 * Converts records to rows and back. Records are checked in both directions: before writing, to detect bugs, and after
 * reading, to detect damaged rows.
 */
import { invariant } from "@holdfast/contract";
import type {
  AlertRecord,
  CheckpointSummary,
  DeliveryRecord,
  DriveRecord,
  ExecRecord,
  Instance,
  Lease,
  NewEvent,
  PreviewRecord,
  ProcessRecord,
  SandboxRecord,
  SavedCheckpoint,
  StoredEvent,
} from "@holdfast/engine";
import type { Insertable, Selectable } from "kysely";
import { UnreadableRecord } from "./errors.ts";
import {
  checkAlert,
  checkDelivery,
  checkDrive,
  checkEvent,
  checkExec,
  checkPreview,
  checkProcess,
  checkSandbox,
  checkSaved,
  checkSummary,
  isReadableLease,
} from "./shapes.ts";
import type {
  AlertTable,
  CheckpointTable,
  DeliveryTable,
  DriveTable,
  EventTable,
  ExecTable,
  PreviewTable,
  ProcessTable,
  SandboxTable,
} from "./tables.ts";

export type SandboxRow = Omit<Insertable<SandboxTable>, "position">;
export type ExecRow = Omit<Insertable<ExecTable>, "position">;
export type OutcomeRow = Omit<ExecRow, "sandbox_id" | "spec" | "digest" | "created_at">;
export type CheckpointRow = Omit<Insertable<CheckpointTable>, "position">;
export type ProcessRow = Omit<Insertable<ProcessTable>, "position">;
export type DriveRow = Omit<Insertable<DriveTable>, "position">;
export type PreviewRow = Omit<Insertable<PreviewTable>, "position">;
export type AlertRow = Omit<Insertable<AlertTable>, "position">;
export type DeliveryRow = Omit<Insertable<DeliveryTable>, "position">;
export type EventRow = Omit<Insertable<EventTable>, "seq">;

const json = (value: unknown): string => JSON.stringify(value);
const jsonOrNull = (value: unknown): string | null => (value === null ? null : JSON.stringify(value));
const parseOrNull = (text: string | null): unknown => (text === null ? null : JSON.parse(text));

function reading<Record>(table: string, id: string, read: () => Record): Record {
  try {
    return read();
  } catch (error) {
    throw new UnreadableRecord(table, id, error);
  }
}

function writeLease(lease: Lease): string {
  // Earlier versions of Holdfast reject a held lease without a boot id, but never read the boot id's value. The boot id
  // is stored as null, so that an earlier version can still read the row.
  if (lease.state === "held") return json({ ...lease, hostBootId: null });
  if (lease.state !== "quarantined") return json(lease);
  invariant(readLease(lease.raw).state === "quarantined", "only an unreadable lease is quarantined");
  return lease.raw;
}

/**
 * Reads a lease. An unreadable lease is kept and reported; it is never treated as no lease, because processes may exist
 * under it.
 */
function readLease(raw: string): Lease {
  try {
    const { hostBootId: _, ...lease } = JSON.parse(raw);
    return isReadableLease(lease) ? lease : { state: "quarantined", raw };
  } catch {
    return { state: "quarantined", raw };
  }
}

/** Stores an instance. The fields of the driver's opaque identity are stored in the same object as the other fields. */
function writeInstance(instance: Instance | null): string | null {
  if (instance === null) return null;
  const { identity, ...fields } = instance;
  invariant(
    Object.keys(identity).every((key) => !INSTANCE_FIELDS.has(key)),
    "an identity has no field of its instance",
  );
  return json({ ...fields, ...identity });
}

function readInstance(text: string | null): unknown {
  if (text === null) return null;
  const fields = Object.entries(JSON.parse(text));
  const own = fields.filter(([key]) => INSTANCE_FIELDS.has(key));
  const identity = fields.filter(([key]) => !INSTANCE_FIELDS.has(key));
  return { ...Object.fromEntries(own), identity: Object.fromEntries(identity) };
}

const INSTANCE_FIELDS: ReadonlySet<string> = new Set<keyof Instance>([
  "sandboxId",
  "generation",
  "keeperVersion",
  "keeperBootId",
]);

export function sandboxRow(record: SandboxRecord): SandboxRow {
  checkSandbox(record);
  const { name: phase, ...phaseData } = record.phase;
  return {
    id: record.id,
    name: record.name,
    name_held: record.nameHeld ? 1 : 0,
    phase,
    phase_data: json(phaseData),
    generation: record.generation,
    memory_since: record.memorySince,
    lease: writeLease(record.lease),
    instance: writeInstance(record.instance),
    spec: json(record.spec),
    created_at: record.createdAt,
    last_activity_at: record.lastActivityAt,
    transitioned_at: record.transitionedAt,
    ended_at: record.endedAt,
    owner: record.owner,
    execs_started: record.execsStarted,
    forked_from: jsonOrNull(record.forkedFrom),
    mounts: json(record.mounts),
    restarts: jsonOrNull(record.restarts),
    revision: record.revision,
  };
}

export function readSandbox(row: Selectable<SandboxTable>): SandboxRecord {
  return reading("sandbox", row.id, () =>
    checkSandbox({
      id: row.id,
      name: row.name,
      nameHeld: row.name_held === 1,
      phase: { name: row.phase, ...JSON.parse(row.phase_data) },
      generation: row.generation,
      memorySince: row.memory_since,
      lease: readLease(row.lease),
      instance: readInstance(row.instance),
      spec: JSON.parse(row.spec),
      createdAt: row.created_at,
      lastActivityAt: row.last_activity_at,
      transitionedAt: row.transitioned_at,
      endedAt: row.ended_at,
      owner: row.owner,
      execsStarted: row.execs_started,
      forkedFrom: readOrigin(row.forked_from),
      mounts: JSON.parse(row.mounts),
      restarts: parseOrNull(row.restarts),
      revision: row.revision,
    }),
  );
}

/**
 * Reads a sandbox's origin. Rows stored before named processes existed have no `processes`, so the default is an empty
 * list.
 */
function readOrigin(text: string | null): unknown {
  return text === null ? null : { processes: [], ...JSON.parse(text) };
}

export function execRow(record: ExecRecord): ExecRow {
  return {
    ...outcomeRow(record),
    sandbox_id: record.sandboxId,
    spec: json(record.spec),
    digest: record.digest,
    created_at: record.createdAt,
  };
}

/**
 * Returns the columns that are written when an exec ends. The spec is not among them, because it may be large and was
 * written by the insert.
 */
export function outcomeRow(record: ExecRecord): OutcomeRow {
  checkExec(record);
  return {
    id: record.id,
    generation: record.generation,
    status: record.status,
    exit_code: record.exitCode,
    signal: record.signal,
    cause: jsonOrNull(record.cause),
    dispatched: record.dispatched,
    output_end: record.outputEnd,
    started_at: record.startedAt,
    ended_at: record.endedAt,
  };
}

export function readExec(row: Selectable<ExecTable>): ExecRecord {
  return reading("exec", row.id, () =>
    checkExec({
      id: row.id,
      sandboxId: row.sandbox_id,
      generation: row.generation,
      // Specs stored before terminals or standby existed lack `tty`, `keepAwake` and `onWake`, so they get these
      // defaults.
      spec: { tty: null, keepAwake: true, onWake: null, ...JSON.parse(row.spec) },
      digest: row.digest,
      status: row.status,
      exitCode: row.exit_code,
      signal: row.signal,
      cause: parseOrNull(row.cause),
      dispatched: row.dispatched,
      outputEnd: row.output_end,
      createdAt: row.created_at,
      startedAt: row.started_at,
      endedAt: row.ended_at,
    }),
  );
}

export function checkpointRow(record: SavedCheckpoint): CheckpointRow {
  const { id, sandboxId, name, createdAt, ...rest } = checkSaved(record);
  const { keeperBootId, spec, sandboxName, execs, processes, ...summary } = rest;
  const content = json({ keeperBootId, spec, sandboxName, execs, processes });
  return { id, sandbox_id: sandboxId, name, summary: json(summary), content, created_at: createdAt };
}

type SummaryRow = Omit<Selectable<CheckpointTable>, "content">;

const summaryOf = (row: SummaryRow) => ({
  ...JSON.parse(row.summary),
  id: row.id,
  sandboxId: row.sandbox_id,
  name: row.name,
  createdAt: row.created_at,
});

export const readSummary = (row: SummaryRow): CheckpointSummary =>
  reading("checkpoint", row.id, () => checkSummary(summaryOf(row)));

export const readCheckpoint = (row: Selectable<CheckpointTable>): SavedCheckpoint =>
  reading("checkpoint", row.id, () =>
    checkSaved({ ...summaryOf(row), processes: [], ...JSON.parse(row.content) }),
  );

export function processRow(record: ProcessRecord): ProcessRow {
  const { id, sandboxId, name, spec, digest, createdAt, revision, ...state } = checkProcess(record);
  const plain = { id, name, digest, revision };
  return { ...plain, sandbox_id: sandboxId, spec: json(spec), state: json(state), created_at: createdAt };
}

export const readProcess = (row: Selectable<ProcessTable>): ProcessRecord =>
  reading("process", row.id, () =>
    checkProcess({
      ...JSON.parse(row.state),
      id: row.id,
      sandboxId: row.sandbox_id,
      name: row.name,
      spec: JSON.parse(row.spec),
      digest: row.digest,
      createdAt: row.created_at,
      revision: row.revision,
    }),
  );

export function previewRow(record: PreviewRecord): PreviewRow {
  const { id, sandboxId, name, ...content } = checkPreview(record);
  return { id, sandbox_id: sandboxId, name, content: json(content) };
}

export const readPreview = (row: Selectable<PreviewTable>): PreviewRecord =>
  reading("preview", row.id, () =>
    checkPreview({ ...JSON.parse(row.content), id: row.id, sandboxId: row.sandbox_id, name: row.name }),
  );

export function driveRow(record: DriveRecord): DriveRow {
  const { sizeMb, createdAt, labels, ...rest } = checkDrive(record);
  return { ...rest, size_mb: sizeMb, created_at: createdAt, labels: json(labels) };
}

export const readDrive = (row: Selectable<DriveTable>): DriveRecord =>
  reading("drive", row.id, () =>
    checkDrive({
      id: row.id,
      name: row.name,
      phase: row.phase,
      sizeMb: row.size_mb,
      labels: JSON.parse(row.labels),
      owner: row.owner,
      createdAt: row.created_at,
      revision: row.revision,
    }),
  );

export function alertRow(record: AlertRecord): AlertRow {
  const { id, key, firedAt, clearedAt, ...content } = checkAlert(record);
  return { id, key, content: json(content), fired_at: firedAt, cleared_at: clearedAt };
}

export const readAlert = (row: Selectable<AlertTable>): AlertRecord =>
  reading("alert", row.id, () =>
    checkAlert({
      ...JSON.parse(row.content),
      id: row.id,
      key: row.key,
      firedAt: row.fired_at,
      clearedAt: row.cleared_at,
    }),
  );

export function deliveryRow(record: DeliveryRecord): DeliveryRow {
  checkDelivery(record);
  return {
    id: record.id,
    alert_id: record.alert.id,
    state: record.state,
    alert: json(record.alert),
    attempts: record.attempts,
    created_at: record.createdAt,
    next_attempt_at: record.nextAttemptAt,
    delivered_at: record.deliveredAt,
    last_error: record.lastError,
  };
}

export const readDelivery = (row: Selectable<DeliveryTable>): DeliveryRecord =>
  reading("delivery", row.id, () =>
    checkDelivery({
      id: row.id,
      state: row.state,
      alert: JSON.parse(row.alert),
      attempts: row.attempts,
      createdAt: row.created_at,
      nextAttemptAt: row.next_attempt_at,
      deliveredAt: row.delivered_at,
      lastError: row.last_error,
    }),
  );

export function eventRow(event: NewEvent): EventRow {
  const { sandboxId = null, execId = null, driveId = null, generation = null, data = {} } = event;
  checkEvent({ ...event, seq: 0, sandboxId, execId, driveId, generation, data });
  return {
    at: event.at,
    type: event.type,
    sandbox_id: sandboxId,
    exec_id: execId,
    drive_id: driveId,
    generation,
    message: event.message.toWellFormed(),
    data: json(data),
  };
}

export function readEvent(row: Selectable<EventTable>): StoredEvent {
  return reading("event", String(row.seq), () =>
    checkEvent({
      seq: row.seq,
      at: row.at,
      type: row.type,
      sandboxId: row.sandbox_id,
      execId: row.exec_id,
      driveId: row.drive_id,
      generation: row.generation,
      message: row.message,
      data: JSON.parse(row.data),
    }),
  );
}

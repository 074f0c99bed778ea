import type { DatabaseSync } from "node:sqlite";
import {
  COUNTERS,
  type Counter,
  type ExecId,
  invariant,
  isTerminal,
  type SandboxId,
  unreachable,
} from "@holdfast/contract";
import { type Change, type Commit, type Idempotency, StoreConflict } from "@holdfast/engine";
import { type Kysely, sql } from "kysely";
import { oldAlerts, oldDeliveries, oldEvents, oldGone, oldKeys, type PruneOrder } from "./prune.ts";
import {
  type AlertRow,
  alertRow,
  type CheckpointRow,
  checkpointRow,
  type DeliveryRow,
  type DriveRow,
  deliveryRow,
  driveRow,
  type EventRow,
  type ExecRow,
  eventRow,
  execRow,
  type OutcomeRow,
  outcomeRow,
  type PreviewRow,
  type ProcessRow,
  previewRow,
  processRow,
  type SandboxRow,
  sandboxRow,
} from "./rows.ts";
import { prepare, uniqueViolation } from "./sqlite.ts";
import type { CounterTable, IdempotencyTable, Tables } from "./tables.ts";

/** The engine's errors for violated uniqueness constraints. Any other violation is a bug and is rethrown. */
const CONFLICTS: Readonly<Record<string, StoreConflict["reason"]>> = {
  "sandboxes.name": "name_taken",
  "execs.id": "exec_exists",
  "checkpoints.sandbox_id, checkpoints.name": "checkpoint_exists",
  "previews.sandbox_id, previews.name": "preview_exists",
  "drives.name": "drive_exists",
  "idempotency.scope, idempotency.key": "idempotency_key_used",
};

/**
 * Creates the function that writes one commit within the caller's transaction. If it throws, the caller rolls the
 * commit back.
 */
export function createWriter(database: DatabaseSync, db: Kysely<Tables>): (commit: Commit) => void {
  const statements = prepareStatements(database, db);
  return (commit) => {
    try {
      for (const change of commit.changes) apply(statements, change);
      for (const event of commit.events ?? []) statements.insertEvent.run(eventRow(event));
      for (const name of COUNTERS) count(statements, name, commit.counters?.[name] ?? 0);
    } catch (error) {
      const reason = CONFLICTS[uniqueViolation(error) ?? ""];
      throw reason === undefined ? error : new StoreConflict(reason);
    }
  };
}

type Statements = ReturnType<typeof prepareStatements>;

function apply(statements: Statements, change: Change): void {
  switch (change.kind) {
    case "sandbox.insert": {
      const { record, idempotency } = change;
      claimKey(statements, idempotency, record.id, record.createdAt);
      statements.insertSandbox.run(sandboxRow(record));
      return;
    }
    case "sandbox.update": {
      const { record, expectedRevision } = change;
      invariant(record.revision === expectedRevision + 1, "a revision grows by one");
      const row = { ...sandboxRow(record), expected_revision: expectedRevision };
      if (statements.updateSandbox.run(row) === 1) {
        if (record.phase.name === "gone") dropOwned(statements, record.id);
        return;
      }
      invariant(statements.findSandbox.get(record), `sandbox ${record.id} was inserted before its update`);
      throw new StoreConflict("stale_revision");
    }
    case "sandbox.touch":
      statements.touchSandbox.run(change);
      return;
    case "sandbox.scrap":
      statements.scrapSandbox.run(change);
      dropOwned(statements, change.id);
      return;
    case "exec.insert": {
      const { record, idempotency, execsStarted } = change;
      claimKey(statements, idempotency, record.id, record.createdAt);
      statements.insertExec.run(execRow(record));
      if (execsStarted !== undefined) statements.countExecs.run({ id: record.sandboxId, execsStarted });
      return;
    }
    case "exec.end": {
      const { record } = change;
      invariant(isTerminal(record.status), `exec ${record.id} ends with an outcome, not ${record.status}`);
      if (statements.endExec.run(outcomeRow(record)) === 1) return;
      invariant(statements.findExec.get(record), `exec ${record.id} was inserted before its end`);
      throw new StoreConflict("already_terminal");
    }
    case "exec.forget":
      for (const id of change.ids) forgetExec(statements, id);
      return;
    case "process.insert":
      statements.deleteNamesake.run(change.record);
      statements.insertProcess.run(processRow(change.record));
      return;
    case "process.update": {
      const { record, expectedRevision } = change;
      invariant(record.revision === expectedRevision + 1, "a revision grows by one");
      const row = { ...processRow(record), expected_revision: expectedRevision };
      if (statements.updateProcess.run(row) !== 1) throw new StoreConflict("stale_revision");
      return;
    }
    case "process.remove":
      statements.deleteProcess.run(change);
      return;
    case "checkpoint.insert":
      statements.insertCheckpoint.run(checkpointRow(change.record));
      return;
    case "checkpoint.remove":
      statements.deleteCheckpoint.run(change);
      return;
    case "drive.insert":
      statements.insertDrive.run(driveRow(change.record));
      return;
    case "drive.update": {
      const { record, expectedRevision } = change;
      invariant(record.revision === expectedRevision + 1, "a revision grows by one");
      const row = { ...driveRow(record), expected_revision: expectedRevision };
      if (statements.updateDrive.run(row) !== 1) throw new StoreConflict("stale_revision");
      return;
    }
    case "drive.remove":
      statements.deleteDrive.run(change);
      return;
    case "preview.put":
      statements.putPreview.run(previewRow(change.record));
      return;
    case "preview.remove":
      statements.deletePreview.run(change);
      return;
    case "alert.fire":
      statements.insertAlert.run(alertRow(change.record));
      return;
    case "alert.clear": {
      const isCleared = statements.clearAlert.run(alertRow(change.record)) === 1;
      invariant(isCleared, `alert ${change.record.id} fires before it clears`);
      return;
    }
    case "delivery.insert":
      statements.insertDelivery.run(deliveryRow(change.record));
      return;
    case "delivery.update":
      statements.updateDelivery.run(deliveryRow(change.record));
      return;
    case "prune":
      statements.pruneEvents.run(change);
      statements.pruneKeys.run(change);
      statements.pruneGone.run(change);
      statements.pruneAlerts.run(change);
      statements.pruneDeliveries.run(change);
      return;
    default:
      unreachable(change);
  }
}

/** Deletes the checkpoints, previews and processes of a deleted sandbox. */
function dropOwned(statements: Statements, id: SandboxId): void {
  statements.deleteCheckpointsOf.run({ id });
  statements.deletePreviewsOf.run({ id });
  statements.deleteProcessesOf.run({ id });
}

/** Forgets an exec and its idempotency key. Does nothing if the exec has no outcome yet. */
function forgetExec(statements: Statements, id: ExecId): void {
  if (statements.deleteExec.run({ id }) === 1) statements.deleteExecKeys.run({ target: id });
}

/**
 * Stores the idempotency key of a record. Must be called before the record itself is stored, so that a repeated request
 * is reported as a repetition and not as a name conflict.
 */
function claimKey(
  statements: Statements,
  idempotency: Idempotency | undefined,
  target: string,
  created_at: number,
): void {
  if (idempotency !== undefined) statements.insertKey.run({ ...idempotency, target, created_at });
}

function count(statements: Statements, name: Counter, value: number): void {
  if (value === 0) return;
  invariant(Number.isSafeInteger(value) && value > 0, `counter ${name} never decreases`);
  statements.addToCounter.run({ name, value });
}

function prepareStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    ...sandboxStatements(database, db),
    ...execStatements(database, db),
    ...checkpointStatements(database, db),
    ...previewStatements(database, db),
    ...processStatements(database, db),
    ...driveStatements(database, db),
    ...alertStatements(database, db),
    ...otherStatements(database, db),
    ...pruneStatements(database, db),
  };
}

function sandboxStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    insertSandbox: prepare<SandboxRow>(database, (slot) =>
      db.insertInto("sandboxes").values({ id: slot("id"), created_at: slot("created_at"), ...mutable(slot) }),
    ),
    updateSandbox: prepare<SandboxRow & { expected_revision: number }>(database, (slot) =>
      db
        .updateTable("sandboxes")
        // Another writer may meanwhile have stored a larger activity time or exec count. The update keeps the larger
        // value.
        .set({
          ...mutable(slot),
          last_activity_at: latest(slot("last_activity_at")),
          execs_started: most(slot("execs_started")),
        })
        .where("id", "=", slot("id"))
        .where("revision", "=", slot("expected_revision")),
    ),
    touchSandbox: prepare<{ id: string; at: number; execsStarted: number }>(database, (slot) =>
      db
        .updateTable("sandboxes")
        .set({ last_activity_at: latest(slot("at")), execs_started: most(slot("execsStarted")) })
        .where("id", "=", slot("id")),
    ),
    countExecs: prepare<{ id: string; execsStarted: number }>(database, (slot) =>
      db
        .updateTable("sandboxes")
        .set({ execs_started: most(slot("execsStarted")) })
        .where("id", "=", slot("id")),
    ),
    scrapSandbox: prepare<{ id: string; at: number }>(database, (slot) =>
      db
        .updateTable("sandboxes")
        .set({
          phase: sql.lit("gone"),
          phase_data: sql.lit('{"cause":null}'),
          lease: sql.lit('{"state":"none"}'),
          instance: null,
          name_held: sql.lit(0),
          ended_at: slot("at"),
          revision: sql<number>`revision + 1`,
        })
        .where("id", "=", slot("id")),
    ),
    findSandbox: prepare<{ id: string }, { id: string }>(database, (slot) =>
      db.selectFrom("sandboxes").select("id").where("id", "=", slot("id")),
    ),
  };
}

const latest = (at: number) =>
  sql<number>`case when last_activity_at > ${at} then last_activity_at else ${at} end`;

const most = (count: number) =>
  sql<number>`case when execs_started > ${count} then execs_started else ${count} end`;

/** Returns the columns of a sandbox that may change after its creation. */
function mutable(slot: <Name extends keyof SandboxRow>(name: Name) => SandboxRow[Name]) {
  return {
    name: slot("name"),
    name_held: slot("name_held"),
    phase: slot("phase"),
    phase_data: slot("phase_data"),
    generation: slot("generation"),
    memory_since: slot("memory_since"),
    lease: slot("lease"),
    instance: slot("instance"),
    spec: slot("spec"),
    last_activity_at: slot("last_activity_at"),
    transitioned_at: slot("transitioned_at"),
    ended_at: slot("ended_at"),
    owner: slot("owner"),
    forked_from: slot("forked_from"),
    mounts: slot("mounts"),
    execs_started: slot("execs_started"),
    restarts: slot("restarts"),
    revision: slot("revision"),
  };
}

function execStatements(database: DatabaseSync, db: Kysely<Tables>) {
  type Slots = <Name extends keyof OutcomeRow>(name: Name) => OutcomeRow[Name];
  const outcome = (slot: Slots) => ({
    status: slot("status"),
    exit_code: slot("exit_code"),
    signal: slot("signal"),
    cause: slot("cause"),
    dispatched: slot("dispatched"),
    output_end: slot("output_end"),
    generation: slot("generation"),
    started_at: slot("started_at"),
    ended_at: slot("ended_at"),
  });
  return {
    insertExec: prepare<ExecRow>(database, (slot) =>
      db.insertInto("execs").values({
        id: slot("id"),
        sandbox_id: slot("sandbox_id"),
        spec: slot("spec"),
        digest: slot("digest"),
        created_at: slot("created_at"),
        ...outcome(slot),
      }),
    ),
    endExec: prepare<OutcomeRow>(database, (slot) =>
      db.updateTable("execs").set(outcome(slot)).where("id", "=", slot("id")).where("ended_at", "is", null),
    ),
    deleteExec: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("execs").where("id", "=", slot("id")).where("ended_at", "is not", null),
    ),
    deleteExecKeys: prepare<{ target: string }>(database, (slot) =>
      db
        .deleteFrom("idempotency")
        .where("target", "=", slot("target"))
        .where("scope", ">=", sql.lit("exec:"))
        .where("scope", "<", sql.lit("exec;")),
    ),
    findExec: prepare<{ id: string }, { id: string }>(database, (slot) =>
      db.selectFrom("execs").select("id").where("id", "=", slot("id")),
    ),
  };
}

function checkpointStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    insertCheckpoint: prepare<CheckpointRow>(database, (slot) =>
      db.insertInto("checkpoints").values({
        id: slot("id"),
        sandbox_id: slot("sandbox_id"),
        name: slot("name"),
        summary: slot("summary"),
        content: slot("content"),
        created_at: slot("created_at"),
      }),
    ),
    deleteCheckpoint: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("checkpoints").where("id", "=", slot("id")),
    ),
    deleteCheckpointsOf: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("checkpoints").where("sandbox_id", "=", slot("id")),
    ),
  };
}

function previewStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    putPreview: prepare<PreviewRow>(database, (slot) =>
      db
        .insertInto("previews")
        .values({
          id: slot("id"),
          sandbox_id: slot("sandbox_id"),
          name: slot("name"),
          content: slot("content"),
        })
        .onConflict((conflict) => conflict.column("id").doUpdateSet({ content: slot("content") })),
    ),
    deletePreview: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("previews").where("id", "=", slot("id")),
    ),
    deletePreviewsOf: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("previews").where("sandbox_id", "=", slot("id")),
    ),
  };
}

function processStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    insertProcess: prepare<ProcessRow>(database, (slot) =>
      db.insertInto("processes").values({
        id: slot("id"),
        sandbox_id: slot("sandbox_id"),
        name: slot("name"),
        spec: slot("spec"),
        digest: slot("digest"),
        state: slot("state"),
        created_at: slot("created_at"),
        revision: slot("revision"),
      }),
    ),
    updateProcess: prepare<ProcessRow & { expected_revision: number }>(database, (slot) =>
      db
        .updateTable("processes")
        .set({ state: slot("state"), revision: slot("revision") })
        .where("id", "=", slot("id"))
        .where("revision", "=", slot("expected_revision")),
    ),
    deleteNamesake: prepare<{ sandboxId: string; name: string }>(database, (slot) =>
      db.deleteFrom("processes").where("sandbox_id", "=", slot("sandboxId")).where("name", "=", slot("name")),
    ),
    deleteProcess: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("processes").where("id", "=", slot("id")),
    ),
    deleteProcessesOf: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("processes").where("sandbox_id", "=", slot("id")),
    ),
  };
}

function driveStatements(database: DatabaseSync, db: Kysely<Tables>) {
  type Slots = <Name extends keyof DriveRow>(name: Name) => DriveRow[Name];
  const mutableDrive = (slot: Slots) => ({
    name: slot("name"),
    phase: slot("phase"),
    size_mb: slot("size_mb"),
    labels: slot("labels"),
    owner: slot("owner"),
    revision: slot("revision"),
  });
  return {
    insertDrive: prepare<DriveRow>(database, (slot) =>
      db
        .insertInto("drives")
        .values({ id: slot("id"), created_at: slot("created_at"), ...mutableDrive(slot) }),
    ),
    updateDrive: prepare<DriveRow & { expected_revision: number }>(database, (slot) =>
      db
        .updateTable("drives")
        .set(mutableDrive(slot))
        .where("id", "=", slot("id"))
        .where("revision", "=", slot("expected_revision")),
    ),
    deleteDrive: prepare<{ id: string }>(database, (slot) =>
      db.deleteFrom("drives").where("id", "=", slot("id")),
    ),
  };
}

function alertStatements(database: DatabaseSync, db: Kysely<Tables>) {
  type Slots = <Name extends keyof DeliveryRow>(name: Name) => DeliveryRow[Name];
  const progress = (slot: Slots) => ({
    state: slot("state"),
    attempts: slot("attempts"),
    next_attempt_at: slot("next_attempt_at"),
    delivered_at: slot("delivered_at"),
    last_error: slot("last_error"),
  });
  return {
    insertAlert: prepare<AlertRow>(database, (slot) =>
      db.insertInto("alerts").values({
        id: slot("id"),
        key: slot("key"),
        content: slot("content"),
        fired_at: slot("fired_at"),
        cleared_at: slot("cleared_at"),
      }),
    ),
    clearAlert: prepare<AlertRow>(database, (slot) =>
      db
        .updateTable("alerts")
        .set({ content: slot("content"), cleared_at: slot("cleared_at") })
        .where("id", "=", slot("id"))
        .where("cleared_at", "is", null),
    ),
    insertDelivery: prepare<DeliveryRow>(database, (slot) =>
      db.insertInto("deliveries").values({
        id: slot("id"),
        alert_id: slot("alert_id"),
        alert: slot("alert"),
        created_at: slot("created_at"),
        ...progress(slot),
      }),
    ),
    updateDelivery: prepare<DeliveryRow>(database, (slot) =>
      db.updateTable("deliveries").set(progress(slot)).where("id", "=", slot("id")),
    ),
  };
}

function pruneStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    pruneEvents: prepare<PruneOrder>(database, (slot) =>
      db.deleteFrom("events").where("seq", "in", oldEvents(db, orderOf(slot))),
    ),
    pruneKeys: prepare<PruneOrder>(database, (slot) =>
      db
        .deleteFrom("idempotency")
        .where("scope", "=", sql.lit("sandbox"))
        .where("key", "in", oldKeys(db, orderOf(slot))),
    ),
    pruneGone: prepare<PruneOrder>(database, (slot) =>
      db.deleteFrom("sandboxes").where("id", "in", oldGone(db, orderOf(slot))),
    ),
    pruneAlerts: prepare<PruneOrder>(database, (slot) =>
      db.deleteFrom("alerts").where("id", "in", oldAlerts(db, orderOf(slot))),
    ),
    pruneDeliveries: prepare<PruneOrder>(database, (slot) =>
      db.deleteFrom("deliveries").where("id", "in", oldDeliveries(db, orderOf(slot))),
    ),
  };
}

const orderOf = (slot: <Name extends keyof PruneOrder>(name: Name) => PruneOrder[Name]): PruneOrder => ({
  eventsBefore: slot("eventsBefore"),
  keysBefore: slot("keysBefore"),
  goneBefore: slot("goneBefore"),
  alertsBefore: slot("alertsBefore"),
  deliveriesBefore: slot("deliveriesBefore"),
  limit: slot("limit"),
});

function otherStatements(database: DatabaseSync, db: Kysely<Tables>) {
  return {
    insertEvent: prepare<EventRow>(database, (slot) =>
      db.insertInto("events").values({
        at: slot("at"),
        type: slot("type"),
        sandbox_id: slot("sandbox_id"),
        exec_id: slot("exec_id"),
        drive_id: slot("drive_id"),
        generation: slot("generation"),
        message: slot("message"),
        data: slot("data"),
      }),
    ),
    addToCounter: prepare<CounterTable>(database, (slot) =>
      db
        .updateTable("counters")
        .set({ value: sql<number>`value + ${slot("value")}` })
        .where("name", "=", slot("name")),
    ),
    insertKey: prepare<IdempotencyTable>(database, (slot) =>
      db.insertInto("idempotency").values({
        scope: slot("scope"),
        key: slot("key"),
        fingerprint: slot("fingerprint"),
        target: slot("target"),
        created_at: slot("created_at"),
      }),
    ),
  };
}

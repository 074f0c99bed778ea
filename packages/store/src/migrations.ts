import { COUNTERS, invariant } from "@holdfast/contract";
import { type Kysely, sql } from "kysely";
import type { Tables } from "./tables.ts";

type Up = (db: Kysely<Tables>) => Promise<void>;

/**
 * The history of the schema: version n is the n-th entry. Released migrations are never changed; new ones are added at
 * the end.
 */
const MIGRATIONS: readonly Up[] = [
  async (db) => {
    await createSandboxes(db);
    await createExecs(db);
    await createEvents(db);
    await createTheRest(db);
  },
  indexForgetting,
  ownSandboxes,
  keepMemory,
  keepCheckpoints,
  keepDrives,
  keepAlerts,
  keepPreviews,
  keepProcesses,
];

async function createSandboxes(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("sandboxes")
    .addColumn("position", "integer", (column) => column.primaryKey().autoIncrement())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("name", "text", (column) => column.notNull())
    .addColumn("name_held", "integer", (column) => column.notNull())
    .addColumn("phase", "text", (column) => column.notNull())
    .addColumn("phase_data", "text", (column) => column.notNull())
    .addColumn("generation", "integer", (column) => column.notNull())
    .addColumn("lease", "text", (column) => column.notNull())
    .addColumn("instance", "text")
    .addColumn("spec", "text", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addColumn("last_activity_at", "integer", (column) => column.notNull())
    .addColumn("transitioned_at", "integer", (column) => column.notNull())
    .addColumn("ended_at", "integer")
    .addColumn("revision", "integer", (column) => column.notNull())
    .execute();
  await db.schema
    .createIndex("sandboxes_name_held")
    .unique()
    .on("sandboxes")
    .column("name")
    .where(sql.ref("name_held"), "=", sql.lit(1))
    .execute();
  await db.schema
    .createIndex("sandboxes_live")
    .on("sandboxes")
    .column("position")
    .where(sql.ref("phase"), "<>", sql.lit("gone"))
    .execute();
}

/*
 * Creates the tables of execs and events. Every exec is written twice, with an event each time, and the cost of a
 * commit grows with the number of pages that it changes. Each of these tables therefore has only the indexes that its
 * readers need, and assigns rowids without SQLite's sequence table. A rowid may be reused after its exec was forgotten,
 * which is harmless because rowids only determine the order of a listing.
 */
async function createExecs(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("execs")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("sandbox_id", "text", (column) => column.notNull().references("sandboxes.id"))
    .addColumn("generation", "integer", (column) => column.notNull())
    .addColumn("spec", "text", (column) => column.notNull())
    .addColumn("digest", "text", (column) => column.notNull())
    .addColumn("status", "text", (column) => column.notNull())
    .addColumn("exit_code", "integer")
    .addColumn("signal", "text")
    .addColumn("cause", "text")
    .addColumn("dispatched", "text", (column) => column.notNull())
    .addColumn("output_end", "integer", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addColumn("started_at", "integer")
    .addColumn("ended_at", "integer")
    .execute();
  await db.schema.createIndex("execs_of_sandbox").on("execs").columns(["sandbox_id", "position"]).execute();
}

async function createEvents(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("events")
    .addColumn("seq", "integer", (column) => column.primaryKey())
    .addColumn("at", "integer", (column) => column.notNull())
    .addColumn("type", "text", (column) => column.notNull())
    .addColumn("sandbox_id", "text")
    .addColumn("exec_id", "text")
    .addColumn("generation", "integer")
    .addColumn("message", "text", (column) => column.notNull())
    .addColumn("data", "text", (column) => column.notNull())
    .execute();
  await db.schema
    .createIndex("events_of_sandbox")
    .on("events")
    .columns(["sandbox_id", "seq"])
    .where(sql.ref("sandbox_id"), "is not", null)
    .execute();
}

async function createTheRest(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("counters")
    .addColumn("name", "text", (column) => column.primaryKey().notNull())
    .addColumn("value", "integer", (column) => column.notNull())
    .execute();
  await db
    .insertInto("counters")
    .values(COUNTERS.map((name) => ({ name, value: 0 })))
    .execute();
  await db.schema
    .createTable("idempotency")
    .addColumn("scope", "text", (column) => column.notNull())
    .addColumn("key", "text", (column) => column.notNull())
    .addColumn("fingerprint", "text", (column) => column.notNull())
    .addColumn("target", "text", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addPrimaryKeyConstraint("idempotency_key", ["scope", "key"])
    .execute();
  await db.schema
    .createTable("api_keys")
    .addColumn("hash", "text", (column) => column.primaryKey().notNull())
    .addColumn("name", "text", (column) => column.notNull())
    .addColumn("last_four", "text", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .execute();
}

/**
 * Adds indexes for retention. They find old execs by the time of their end, and the idempotency keys of a resource by
 * the resource. Execs have no index by sandbox: queries by sandbox are too rare to justify an index that every exec
 * would have to update.
 */
async function indexForgetting(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createIndex("execs_ended")
    .on("execs")
    .column("ended_at")
    .where(sql.ref("ended_at"), "is not", null)
    .execute();
  await db.schema.createIndex("idempotency_target").on("idempotency").column("target").execute();
}

/**
 * Adds columns to sandboxes: the owner, the number of started execs, and the restarts. Also adds an index for pruning.
 */
async function ownSandboxes(db: Kysely<Tables>): Promise<void> {
  await db.schema.alterTable("sandboxes").addColumn("owner", "text").execute();
  await db.schema
    .alterTable("sandboxes")
    .addColumn("execs_started", "integer", (column) => column.notNull().defaultTo(0))
    .execute();
  await db.schema.alterTable("sandboxes").addColumn("restarts", "text").execute();
  await db.schema
    .createIndex("sandboxes_gone")
    .on("sandboxes")
    .column("ended_at")
    .where(sql.ref("phase"), "=", sql.lit("gone"))
    .execute();
}

/**
 * Adds the column `memory_since`: the generation in which a sandbox's processes were launched. A later generation may
 * have restored their memory from standby. In rows that are older than this migration, every generation began with a
 * launch, so the column gets the row's present generation.
 */
async function keepMemory(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .alterTable("sandboxes")
    .addColumn("memory_since", "integer", (column) => column.notNull().defaultTo(0))
    .execute();
  await sql`update sandboxes set memory_since = generation`.execute(db);
}

/** Adds the table of named checkpoints, and the origin of forked sandboxes. */
async function keepCheckpoints(db: Kysely<Tables>): Promise<void> {
  await db.schema.alterTable("sandboxes").addColumn("forked_from", "text").execute();
  await db.schema
    .createTable("checkpoints")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("sandbox_id", "text", (column) => column.notNull().references("sandboxes.id"))
    .addColumn("name", "text", (column) => column.notNull())
    .addColumn("summary", "text", (column) => column.notNull())
    .addColumn("content", "text", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addUniqueConstraint("checkpoints_name", ["sandbox_id", "name"])
    .execute();
}

/** Adds drives, their mounts in sandboxes, and their events. */
async function keepDrives(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .alterTable("sandboxes")
    .addColumn("mounts", "text", (column) => column.notNull().defaultTo("[]"))
    .execute();
  await db.schema.alterTable("events").addColumn("drive_id", "text").execute();
  await db.schema
    .createIndex("events_of_drive")
    .on("events")
    .columns(["drive_id", "seq"])
    .where(sql.ref("drive_id"), "is not", null)
    .execute();
  await db.schema
    .createTable("drives")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("name", "text", (column) => column.notNull().unique())
    .addColumn("phase", "text", (column) => column.notNull())
    .addColumn("size_mb", "integer")
    .addColumn("labels", "text", (column) => column.notNull())
    .addColumn("owner", "text")
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addColumn("revision", "integer", (column) => column.notNull())
    .execute();
}

/**
 * Adds alerts and their deliveries. Both get indexes, because the active alerts and the pending deliveries are queried
 * often and are few among many old rows.
 */
async function keepAlerts(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("alerts")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("key", "text", (column) => column.notNull())
    .addColumn("content", "text", (column) => column.notNull())
    .addColumn("fired_at", "integer", (column) => column.notNull())
    .addColumn("cleared_at", "integer")
    .execute();
  await db.schema.createIndex("alerts_cleared").on("alerts").columns(["cleared_at", "position"]).execute();
  await db.schema
    .createTable("deliveries")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("alert_id", "text", (column) => column.notNull())
    .addColumn("state", "text", (column) => column.notNull())
    .addColumn("alert", "text", (column) => column.notNull())
    .addColumn("attempts", "integer", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addColumn("next_attempt_at", "integer")
    .addColumn("delivered_at", "integer")
    .addColumn("last_error", "text")
    .execute();
  await db.schema.createIndex("deliveries_state").on("deliveries").columns(["state", "position"]).execute();
  await db.schema.createIndex("deliveries_of_alert").on("deliveries").column("alert_id").execute();
}

/** Adds previews: ports of sandboxes that can be reached without a key. */
async function keepPreviews(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("previews")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("sandbox_id", "text", (column) => column.notNull().references("sandboxes.id"))
    .addColumn("name", "text", (column) => column.notNull())
    .addColumn("content", "text", (column) => column.notNull())
    .addUniqueConstraint("previews_name", ["sandbox_id", "name"])
    .execute();
}

/** Adds named processes. All fields that change while a process exists are stored in one column, `state`. */
async function keepProcesses(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("processes")
    .addColumn("position", "integer", (column) => column.primaryKey())
    .addColumn("id", "text", (column) => column.notNull().unique())
    .addColumn("sandbox_id", "text", (column) => column.notNull().references("sandboxes.id"))
    .addColumn("name", "text", (column) => column.notNull())
    .addColumn("spec", "text", (column) => column.notNull())
    .addColumn("digest", "text", (column) => column.notNull())
    .addColumn("state", "text", (column) => column.notNull())
    .addColumn("created_at", "integer", (column) => column.notNull())
    .addColumn("revision", "integer", (column) => column.notNull())
    .addUniqueConstraint("processes_name", ["sandbox_id", "name"])
    .execute();
}

const VERSION_KEY = "schema_version";

/** Version of the schema that this version of Holdfast reads and writes. */
export const SCHEMA_VERSION = MIGRATIONS.length;

/** Migrates the schema, each step in one transaction with its version number. */
export async function migrate(db: Kysely<Tables>): Promise<void> {
  await db.schema
    .createTable("meta")
    .ifNotExists()
    .addColumn("key", "text", (column) => column.primaryKey().notNull())
    .addColumn("value", "text", (column) => column.notNull())
    .execute();
  const version = await schemaVersion(db);
  for (const [index, up] of MIGRATIONS.entries()) {
    if (index < version) continue;
    await db.transaction().execute(async (transaction) => {
      await up(transaction);
      const value = String(index + 1);
      await transaction
        .insertInto("meta")
        .values({ key: VERSION_KEY, value })
        .onConflict((conflict) => conflict.column("key").doUpdateSet({ value }))
        .execute();
    });
  }
}

/** Reads the version of a database's schema; 0 if it has none. Changes nothing. */
export async function schemaVersion(db: Kysely<Tables>): Promise<number> {
  const tables = await db.introspection.getTables();
  if (!tables.some(({ name }) => name === "meta")) return 0;
  const row = await db.selectFrom("meta").select("value").where("key", "=", VERSION_KEY).executeTakeFirst();
  const version = Number(row?.value ?? 0);
  invariant(
    Number.isSafeInteger(version) && version >= 0,
    `the schema version is a number, not ${row?.value}`,
  );
  return version;
}

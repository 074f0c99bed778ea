/**
 * Queries for records past their retention, oldest first and a limited number at a time. The same query is used for
 * counting and for deleting, so that the count equals what a deletion would delete.
 */
import type { Change } from "@holdfast/engine";
import { type Kysely, sql } from "kysely";
import type { Tables } from "./tables.ts";

export type PruneOrder = Omit<Extract<Change, { kind: "prune" }>, "kind">;

/**
 * Selects old events. Events are stored roughly in time order, so the oldest come first and need no index. The newest
 * event is always kept, because the next seq is derived from it: a reader who has already seen a seq would miss a new
 * event with the same seq.
 */
export const oldEvents = (db: Kysely<Tables>, { eventsBefore, limit }: PruneOrder) =>
  db
    .selectFrom((of) =>
      of.selectFrom("events").select(["seq", "at"]).orderBy("seq").limit(limit).as("oldest"),
    )
    .select("seq as key")
    .where("at", "<", eventsBefore)
    .where("seq", "<", (of) => of.selectFrom("events").select(({ fn }) => fn.max("seq").as("newest")));

/** Selects old idempotency keys, except those of sandboxes that still exist. */
export const oldKeys = (db: Kysely<Tables>, { keysBefore, limit }: PruneOrder) =>
  db
    .selectFrom("idempotency")
    .select("key")
    .where("scope", "=", "sandbox")
    .where("created_at", "<", keysBefore)
    .where("target", "not in", (of) =>
      of.selectFrom("sandboxes").select("id").where("phase", "<>", sql.lit("gone")),
    )
    .limit(limit);

/** Selects old records of deleted sandboxes. A record is kept while an exec refers to it. */
export const oldGone = (db: Kysely<Tables>, { goneBefore, limit }: PruneOrder) =>
  db
    .selectFrom("sandboxes")
    .select("id as key")
    .where("phase", "=", sql.lit("gone"))
    .where("ended_at", "<", goneBefore)
    .where(({ not, exists, selectFrom }) =>
      not(exists(selectFrom("execs").select("execs.id").whereRef("execs.sandbox_id", "=", "sandboxes.id"))),
    )
    .limit(limit);

/** Selects old alerts. Active alerts are never included. */
export const oldAlerts = (db: Kysely<Tables>, { alertsBefore, limit }: PruneOrder) =>
  db
    .selectFrom("alerts")
    .select("id as key")
    .where("cleared_at", "<", alertsBefore)
    .orderBy("cleared_at")
    .limit(limit);

/** Selects old deliveries. Pending deliveries are never included. */
export const oldDeliveries = (db: Kysely<Tables>, { deliveriesBefore, limit }: PruneOrder) =>
  db
    .selectFrom("deliveries")
    .select("id as key")
    .where("state", "in", ["delivered", "dead"])
    .where("created_at", "<", deliveriesBefore)
    .limit(limit);

/** What is past its time, oldest first and a bounded number at a time: the same for those who count it and who delete it. */
import type { Change } from "@holdfast/engine";
import { type Kysely, sql } from "kysely";
import type { Tables } from "./tables.ts";

export type PruneOrder = Omit<Extract<Change, { kind: "prune" }>, "kind">;

/**
 * Events are written in the order of time, near enough: the oldest are first, and need no index to be found. The newest
 * stays, however old it is: the next seq is counted from it, and one that came twice would be missed by who has seen it.
 */
export const oldEvents = (db: Kysely<Tables>, { eventsBefore, limit }: PruneOrder) =>
  db
    .selectFrom((of) =>
      of.selectFrom("events").select(["seq", "at"]).orderBy("seq").limit(limit).as("oldest"),
    )
    .select("seq as key")
    .where("at", "<", eventsBefore)
    .where("seq", "<", (of) => of.selectFrom("events").select(({ fn }) => fn.max("seq").as("newest")));

/** The key of a sandbox that is still there is still needed. */
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

/** The record of a sandbox stays as long as an exec refers to it. */
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

/** One that fires is never among them. */
export const oldAlerts = (db: Kysely<Tables>, { alertsBefore, limit }: PruneOrder) =>
  db
    .selectFrom("alerts")
    .select("id as key")
    .where("cleared_at", "<", alertsBefore)
    .orderBy("cleared_at")
    .limit(limit);

/** Nor one that is still to be delivered. */
export const oldDeliveries = (db: Kysely<Tables>, { deliveriesBefore, limit }: PruneOrder) =>
  db
    .selectFrom("deliveries")
    .select("id as key")
    .where("state", "in", ["delivered", "dead"])
    .where("created_at", "<", deliveriesBefore)
    .limit(limit);

import type { DatabaseSync } from "node:sqlite";
import {
  type CheckpointId,
  COUNTERS,
  type Counter,
  DELIVERY_STATES,
  type DeliveryId,
  type DeliveryState,
  type DriveId,
  type ExecId,
  invariant,
  type ProcessId,
  type SandboxId,
} from "@holdfast/contract";
import type {
  AlertRecord,
  CheckpointSummary,
  DeliveryFilter,
  DeliveryRecord,
  DriveRecord,
  EndedExecs,
  EventFilter,
  ExecRecord,
  PreviewRecord,
  ProcessRecord,
  SandboxFilter,
  SandboxRecord,
  Store,
  StoredEvent,
} from "@holdfast/engine";
import { invalidCursor } from "@holdfast/engine";
import { type Kysely, type Selectable, sql } from "kysely";
import { UnreadableRecord } from "./errors.ts";
import { oldAlerts, oldDeliveries, oldEvents, oldGone, oldKeys, type PruneOrder } from "./prune.ts";
import {
  readAlert,
  readCheckpoint,
  readDelivery,
  readDrive,
  readEvent,
  readExec,
  readPreview,
  readProcess,
  readSandbox,
  readSummary,
} from "./rows.ts";
import { prepare } from "./sqlite.ts";
import type {
  AlertTable,
  CheckpointTable,
  DeliveryTable,
  EventTable,
  ExecTable,
  IdempotencyTable,
  SandboxTable,
  Tables,
} from "./tables.ts";

type Reader = Omit<Store, "commit" | "secret">;

/**
 * Creates the store's reads. They see only committed data. Reading a single unreadable record throws. A listing reports
 * an unreadable record and skips it, so that one bad row does not hide the good ones.
 */
export function createReader(
  database: DatabaseSync,
  db: Kysely<Tables>,
  onUnreadable: (error: UnreadableRecord) => void,
): Reader {
  return {
    ...createFinders(database, db),
    ...createListings(db, onUnreadable),
    ...createReports(db),
    async counters() {
      const rows = await db.selectFrom("counters").selectAll().execute();
      const values = new Map(rows.map(({ name, value }) => [name, value]));
      return Object.fromEntries(COUNTERS.map((name) => [name, values.get(name) ?? 0])) as Record<
        Counter,
        number
      >;
    },
  };
}

/**
 * Creates lookups of single records. Their statements are compiled once, because every call on a sandbox starts with a
 * lookup.
 */
function createFinders(database: DatabaseSync, db: Kysely<Tables>) {
  const sandboxById = prepare<{ id: string }, Selectable<SandboxTable>>(database, (slot) =>
    db.selectFrom("sandboxes").selectAll().where("id", "=", slot("id")),
  );
  const sandboxByName = prepare<{ name: string }, Selectable<SandboxTable>>(database, (slot) =>
    db
      .selectFrom("sandboxes")
      .selectAll()
      .where("name", "=", slot("name"))
      .where("name_held", "=", sql.lit(1)),
  );
  const execById = prepare<{ id: string }, Selectable<ExecTable>>(database, (slot) =>
    db.selectFrom("execs").selectAll().where("id", "=", slot("id")),
  );
  const byKey = prepare<{ scope: string; key: string }, Selectable<IdempotencyTable>>(database, (slot) =>
    db
      .selectFrom("idempotency")
      .selectAll()
      .where("scope", "=", slot("scope"))
      .where("key", "=", slot("key")),
  );
  const checkpointById = prepare<{ id: string }, Selectable<CheckpointTable>>(database, (slot) =>
    db.selectFrom("checkpoints").selectAll().where("id", "=", slot("id")),
  );
  const deliveryById = prepare<{ id: string }, Selectable<DeliveryTable>>(database, (slot) =>
    db.selectFrom("deliveries").selectAll().where("id", "=", slot("id")),
  );
  return {
    async delivery(id: DeliveryId) {
      const row = deliveryById.get({ id });
      return row === undefined ? null : readDelivery(row);
    },
    async checkpoint(id: CheckpointId) {
      const row = checkpointById.get({ id });
      return row === undefined ? null : readCheckpoint(row);
    },
    async sandbox(id: SandboxId) {
      const row = sandboxById.get({ id });
      return row === undefined ? null : readSandbox(row);
    },
    async sandboxByName(name: string) {
      const row = sandboxByName.get({ name });
      return row === undefined ? null : readSandbox(row);
    },
    async exec(id: ExecId) {
      const row = execById.get({ id });
      return row === undefined ? null : readExec(row);
    },
    async idempotent(scope: string, key: string) {
      const row = byKey.get({ scope, key });
      return row === undefined ? null : { target: row.target, fingerprint: row.fingerprint };
    },
  };
}

function createListings(db: Kysely<Tables>, onUnreadable: (error: UnreadableRecord) => void) {
  const readable = <Row, Item>(rows: readonly Row[], read: (row: Row) => Item): Item[] =>
    rows.flatMap((row) => {
      try {
        return [read(row)];
      } catch (error) {
        if (!(error instanceof UnreadableRecord)) throw error;
        onUnreadable(error);
        return [];
      }
    });

  /**
   * Reads rows until a page is full and skips unreadable ones, so that a short page always means the end of the list.
   */
  const page = async <Row, Item>(
    limit: number,
    fetch: (after: Row | undefined, count: number) => Promise<Row[]>,
    read: (row: Row) => Item,
  ): Promise<Item[]> => {
    invariant(Number.isSafeInteger(limit) && limit > 0, "a listing has a limit");
    const items: Item[] = [];
    let last: Row | undefined;
    for (;;) {
      const wanted = limit - items.length;
      const rows = await fetch(last, wanted);
      items.push(...readable(rows, read));
      last = rows.at(-1);
      if (items.length === limit || rows.length < wanted) return items;
    }
  };

  return {
    async sandboxes(filter: SandboxFilter): Promise<SandboxRecord[]> {
      const after = filter.after === undefined ? undefined : await sandboxPosition(db, filter.after);
      const fetch = (last: Selectable<SandboxTable> | undefined, count: number) =>
        sandboxPage(db, filter, last?.position ?? after, count);
      return page(filter.limit, fetch, readSandbox);
    },

    async liveSandboxes(): Promise<SandboxRecord[]> {
      const rows = await db
        .selectFrom("sandboxes")
        .selectAll()
        .where("phase", "<>", sql.lit("gone"))
        .orderBy("position")
        .execute();
      return readable(rows, readSandbox);
    },

    async execs(
      sandboxId: SandboxId,
      filter: { of?: ProcessId | undefined; before?: ExecId | undefined; limit: number },
    ) {
      const { of } = filter;
      const before =
        filter.before === undefined ? undefined : await execPosition(db, sandboxId, filter.before);
      const fetch = (last: Selectable<ExecTable> | undefined, count: number) =>
        execPage(db, { sandboxId, of, before: last?.position ?? before, count });
      return page(filter.limit, fetch, readExec);
    },

    async checkpointIds(sandboxId: SandboxId): Promise<CheckpointId[]> {
      const rows = await db
        .selectFrom("checkpoints")
        .select("id")
        .where("sandbox_id", "=", sandboxId)
        .execute();
      return rows.map(({ id }) => id as CheckpointId);
    },

    async checkpoints(sandboxId: SandboxId): Promise<CheckpointSummary[]> {
      const rows = await db
        .selectFrom("checkpoints")
        .select(["position", "id", "sandbox_id", "name", "summary", "created_at"])
        .where("sandbox_id", "=", sandboxId)
        .orderBy("position")
        .execute();
      return readable(rows, readSummary);
    },

    async previews(): Promise<PreviewRecord[]> {
      const rows = await db.selectFrom("previews").selectAll().orderBy("position").execute();
      return readable(rows, readPreview);
    },

    async processes(): Promise<ProcessRecord[]> {
      const rows = await db.selectFrom("processes").selectAll().orderBy("position").execute();
      return readable(rows, readProcess);
    },

    async drives(): Promise<DriveRecord[]> {
      const rows = await db.selectFrom("drives").selectAll().orderBy("position").execute();
      return readable(rows, readDrive);
    },

    async alerts(filter: { state: "firing" | "cleared"; limit: number }): Promise<AlertRecord[]> {
      const fetch = (last: Selectable<AlertTable> | undefined, count: number) =>
        alertPage(db, filter.state, last, count);
      return page(filter.limit, fetch, readAlert);
    },

    async deliveries(filter: DeliveryFilter): Promise<DeliveryRecord[]> {
      const before = filter.before === undefined ? undefined : await deliveryPosition(db, filter.before);
      const fetch = (last: Selectable<DeliveryTable> | undefined, count: number) =>
        deliveryPage(db, filter, last?.position ?? before, count);
      return page(filter.limit, fetch, readDelivery);
    },

    async openExecs(): Promise<ExecRecord[]> {
      const rows = await db
        .selectFrom("execs")
        .selectAll()
        .where("ended_at", "is", null)
        .orderBy("position")
        .execute();
      return readable(rows, readExec);
    },

    async endedExecs(filter: { endedBefore: number; exceptOf: readonly SandboxId[]; limit: number }) {
      let query = db
        .selectFrom("execs")
        .select(["id", "sandbox_id", "output_end"])
        .where("ended_at", "<", filter.endedBefore)
        .orderBy("ended_at")
        .limit(filter.limit);
      if (filter.exceptOf.length > 0) query = query.where("sandbox_id", "not in", filter.exceptOf);
      const rows = await query.execute();
      return rows.map((row) => ({
        id: row.id as ExecId,
        sandboxId: row.sandbox_id as SandboxId,
        outputEnd: row.output_end,
      }));
    },

    async retainedExecs(sandboxId: SandboxId): Promise<{ id: ExecId; outputEnd: number }[]> {
      const kept: KeptRow[] = [];
      for (let rows: KeptRow[] | undefined; rows === undefined || rows.length === KEPT_AT_ONCE; ) {
        if (rows !== undefined) await new Promise(setImmediate);
        rows = await keptPage(db, sandboxId, kept.at(-1)?.position ?? 0);
        kept.push(...rows);
      }
      kept.sort((one, other) => Number(one.ended_at) - Number(other.ended_at));
      return kept.map(({ id, output_end }) => ({ id: id as ExecId, outputEnd: output_end }));
    },

    async events(filter: EventFilter): Promise<StoredEvent[]> {
      const bounded = await eventsAsked(db, filter);
      return page(
        filter.limit,
        (last, count) => eventRows(db, bounded, last?.seq ?? filter.after, count),
        readEvent,
      );
    },

    eventSpan: () => eventSpan(db),
  };
}

/** Creates the queries on which cleanup bases its decisions. */
function createReports(db: Kysely<Tables>) {
  return {
    async prunable(order: PruneOrder) {
      const [events, keys, gone, alerts, deliveries] = await Promise.all([
        oldEvents(db, order).execute(),
        oldKeys(db, order).execute(),
        oldGone(db, order).execute(),
        oldAlerts(db, order).execute(),
        oldDeliveries(db, order).execute(),
      ]);
      return {
        events: events.length,
        keys: keys.length,
        gone: gone.length,
        alerts: alerts.length,
        deliveries: deliveries.length,
      };
    },

    async deliveryCounts(): Promise<Record<DeliveryState, number>> {
      const rows = await db
        .selectFrom("deliveries")
        .select(({ fn }) => ["state", fn.countAll<number>().as("count")])
        .groupBy("state")
        .execute();
      const counts = new Map(rows.map(({ state, count }) => [state, count]));
      return Object.fromEntries(DELIVERY_STATES.map((state) => [state, counts.get(state) ?? 0])) as Record<
        DeliveryState,
        number
      >;
    },

    async execEnds(since: number, stepMs: number): Promise<EndedExecs[]> {
      const rows = await db
        .selectFrom("execs")
        .select(({ fn }) => [
          "sandbox_id",
          sql<number>`ended_at - ended_at % ${stepMs}`.as("at"),
          fn.countAll<number>().as("ended"),
          fn.sum<number>(sql`status = ${sql.lit("timed_out")}`).as("timedOut"),
        ])
        .where("ended_at", ">=", since)
        .groupBy(["at", "sandbox_id"])
        .orderBy("at")
        .execute();
      return rows.map(({ sandbox_id, ...counts }) => ({ sandboxId: sandbox_id as SandboxId, ...counts }));
    },

    async unreadable(): Promise<SandboxId[]> {
      const rows = await db
        .selectFrom("sandboxes")
        .selectAll()
        .where("phase", "<>", sql.lit("gone"))
        .execute();
      return rows.filter((row) => !isReadable(row, readSandbox)).map(({ id }) => id as SandboxId);
    },

    async unreadableDrives(): Promise<DriveId[]> {
      const rows = await db.selectFrom("drives").selectAll().execute();
      return rows.filter((row) => !isReadable(row, readDrive)).map(({ id }) => id as DriveId);
    },
  };
}

function isReadable<Row>(row: Row, read: (row: Row) => unknown): boolean {
  try {
    read(row);
    return true;
  } catch (error) {
    if (error instanceof UnreadableRecord) return false;
    throw error;
  }
}

/**
 * Returns the position of a record in its listing. An unknown cursor is an error, because an empty page would mean the
 * end of the list.
 */
async function sandboxPosition(db: Kysely<Tables>, id: SandboxId): Promise<number> {
  const row = await db.selectFrom("sandboxes").select("position").where("id", "=", id).executeTakeFirst();
  return row?.position ?? unknownCursor();
}

async function execPosition(db: Kysely<Tables>, sandboxId: SandboxId, id: ExecId): Promise<number> {
  const row = await db
    .selectFrom("execs")
    .select("position")
    .where("id", "=", id)
    .where("sandbox_id", "=", sandboxId)
    .executeTakeFirst();
  return row?.position ?? unknownCursor();
}

async function deliveryPosition(db: Kysely<Tables>, id: DeliveryId): Promise<number> {
  const row = await db.selectFrom("deliveries").select("position").where("id", "=", id).executeTakeFirst();
  return row?.position ?? unknownCursor();
}

function unknownCursor(): never {
  throw invalidCursor();
}

function sandboxPage(db: Kysely<Tables>, filter: SandboxFilter, after: number | undefined, count: number) {
  const { includeGone = false, labels = {} } = filter;
  let query = db.selectFrom("sandboxes").selectAll().orderBy("position").limit(count);
  if (!includeGone) query = query.where("phase", "<>", sql.lit("gone"));
  for (const [key, value] of Object.entries(labels)) {
    query = query.where(sql`spec -> 'labels' ->> ${key}`, "=", value);
  }
  if (after !== undefined) query = query.where("position", ">", after);
  return query.execute();
}

function execPage(
  db: Kysely<Tables>,
  page: {
    sandboxId: SandboxId;
    of: ProcessId | undefined;
    before: number | undefined;
    count: number;
  },
) {
  const { sandboxId, of, before, count } = page;
  let query = db
    .selectFrom("execs")
    .selectAll()
    .where("sandbox_id", "=", sandboxId)
    .orderBy("position", "desc")
    .limit(count);
  if (before !== undefined) query = query.where("position", "<", before);
  // The id of a run is the process's id, a hyphen and a number. The dot is the next character after the hyphen, so the
  // ids of all runs are between these two texts.
  if (of !== undefined) query = query.where("id", ">", `${of}-`).where("id", "<", `${of}.`);
  return query.execute();
}

/**
 * Reads a page of alerts, newest first: active alerts by the time they fired, cleared ones by the time they cleared.
 */
function alertPage(
  db: Kysely<Tables>,
  state: "firing" | "cleared",
  last: Selectable<AlertTable> | undefined,
  count: number,
) {
  let query = db.selectFrom("alerts").selectAll().limit(count);
  if (state === "firing") {
    query = query.where("cleared_at", "is", null).orderBy("position", "desc");
    return (last === undefined ? query : query.where("position", "<", last.position)).execute();
  }
  query = query.where("cleared_at", "is not", null).orderBy("cleared_at", "desc").orderBy("position", "desc");
  if (last !== undefined)
    query = query.where((of) =>
      of.or([
        of("cleared_at", "<", last.cleared_at),
        of.and([of("cleared_at", "=", last.cleared_at), of("position", "<", last.position)]),
      ]),
    );
  return query.execute();
}

function deliveryPage(
  db: Kysely<Tables>,
  { state, alertId }: DeliveryFilter,
  before: number | undefined,
  count: number,
) {
  let query = db.selectFrom("deliveries").selectAll().orderBy("position", "desc").limit(count);
  if (state !== undefined) query = query.where("state", "=", state);
  if (alertId !== undefined) query = query.where("alert_id", "=", alertId);
  if (before !== undefined) query = query.where("position", "<", before);
  return query.execute();
}

/**
 * Number of execs that are read at a time. A sandbox may have thousands of them, so they are read in index order, one
 * batch in each turn of the event loop.
 */
const KEPT_AT_ONCE = 500;

type KeptRow = Pick<Selectable<ExecTable>, "position" | "id" | "output_end" | "ended_at">;

function keptPage(db: Kysely<Tables>, sandboxId: SandboxId, after: number): Promise<KeptRow[]> {
  return db
    .selectFrom("execs")
    .select(["position", "id", "output_end", "ended_at"])
    .where("sandbox_id", "=", sandboxId)
    .where("position", ">", after)
    .where("ended_at", "is not", null)
    .orderBy("position")
    .limit(KEPT_AT_ONCE)
    .execute();
}

interface EventSpan {
  first: number;
  last: number;
}

/** Returns the first and last seq, by two lookups whose cost does not depend on the size of the table. */
async function eventSpan(db: Kysely<Tables>): Promise<EventSpan> {
  const end = (direction: "asc" | "desc") =>
    db.selectFrom("events").select("seq").orderBy("seq", direction).limit(1).executeTakeFirst();
  const [first, last] = await Promise.all([end("asc"), end("desc")]);
  return { first: first?.seq ?? 0, last: last?.seq ?? 0 };
}

/** A query for events: its conditions, the range to search, and whether an index covers it. */
interface EventsAsked extends EventFilter {
  span: EventSpan;
  indexed: boolean;
}

/**
 * Prepares a query for events. If the query asks for the events of one exec that is on record, only the events of the
 * exec's sandbox are searched, because these are indexed.
 */
async function eventsAsked(db: Kysely<Tables>, filter: EventFilter): Promise<EventsAsked> {
  const span = await eventSpan(db);
  const { execId, driveId } = filter;
  const sandboxId = filter.sandboxId ?? (execId === undefined ? undefined : await sandboxOf(db, execId));
  return { ...filter, sandboxId, span, indexed: sandboxId !== undefined || driveId !== undefined };
}

async function sandboxOf(db: Kysely<Tables>, execId: ExecId): Promise<SandboxId | undefined> {
  const row = await db.selectFrom("execs").select("sandbox_id").where("id", "=", execId).executeTakeFirst();
  return row?.sandbox_id as SandboxId | undefined;
}

/** If no index covers a query, events are scanned in batches of this size, one in each turn of the event loop. */
const EVENTS_AT_ONCE = 10_000;

async function eventRows(
  db: Kysely<Tables>,
  asked: EventsAsked,
  after: number | undefined,
  count: number,
): Promise<Selectable<EventTable>[]> {
  const { span, order, indexed } = asked;
  if (indexed) return eventPage(db, asked, rangeOf(asked, after), count);
  const rows: Selectable<EventTable>[] = [];
  const range = rangeOf(asked, after);
  const { above = span.first - 1, below = span.last + 1 } = range;
  for (let done = 0; above + done < below - 1 && rows.length < count; done += EVENTS_AT_ONCE) {
    if (done > 0) await new Promise(setImmediate);
    const part =
      order === "newest"
        ? { above: Math.max(above, below - done - EVENTS_AT_ONCE - 1), below: below - done }
        : { above: above + done, below: Math.min(below, above + done + EVENTS_AT_ONCE + 1) };
    rows.push(...(await eventPage(db, asked, part, count - rows.length)));
  }
  return rows;
}

/** The limits of a range of seqs, both exclusive. */
interface SeqRange {
  above?: number | undefined;
  below?: number | undefined;
}

const rangeOf = ({ order }: EventsAsked, after: number | undefined): SeqRange =>
  order === "newest" ? { below: after } : { above: after };

function eventPage(db: Kysely<Tables>, asked: EventsAsked, { above, below }: SeqRange, count: number) {
  const { sandboxId, execId, driveId, types, since, until, order } = asked;
  let query = db
    .selectFrom("events")
    .selectAll()
    .orderBy("seq", order === "newest" ? "desc" : "asc")
    .limit(count);
  if (above !== undefined) query = query.where("seq", ">", above);
  if (below !== undefined) query = query.where("seq", "<", below);
  if (sandboxId !== undefined) query = query.where("sandbox_id", "=", sandboxId);
  if (driveId !== undefined) query = query.where("drive_id", "=", driveId);
  if (execId !== undefined) query = query.where("exec_id", "=", execId);
  if (types !== undefined) query = query.where("type", "in", types);
  if (since !== undefined) query = query.where("at", ">=", since);
  if (until !== undefined) query = query.where("at", "<", until);
  return query.execute();
}

import { statSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { type ExecId, newCheckpointId, newExecId, newSandboxId, type SandboxId } from "@holdfast/contract";
import type {
  AlertRecord,
  Change,
  DeliveryRecord,
  DriveRecord,
  ExecRecord,
  PreviewRecord,
  ProcessRecord,
  SandboxRecord,
  SavedCheckpoint,
} from "@holdfast/engine";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { NewerDatabase, UnreadableRecord } from "./errors.ts";
import { openStore } from "./store.ts";
import {
  anyAlert,
  anyCheckpoint,
  anyDelivery,
  anyDrive,
  anyExec,
  anyPreviewOf,
  anyProcess,
  anySandbox,
  ended,
  sampleAlert,
  sampleCheckpoint,
  sampleDelivery,
  sampleDrive,
  sampleExec,
  sampleProcess,
  sampleSandbox,
  summaryOf,
} from "./testing/samples.ts";
import { temporaryStore } from "./testing/store.ts";

const insert = (record: SandboxRecord): Change => ({ kind: "sandbox.insert", record });
const update = (record: SandboxRecord): Change => ({
  kind: "sandbox.update",
  record: { ...record, revision: record.revision + 1 },
  expectedRevision: record.revision,
});

/** Writes to the database directly, bypassing the store. */
function tamper(path: string, sql: string, ...values: string[]): void {
  const database = new DatabaseSync(path);
  database.prepare(sql).run(...values);
  database.close();
}

const UNTIL_100 = {
  eventsBefore: 100,
  keysBefore: 100,
  goneBefore: 100,
  alertsBefore: 100,
  deliveriesBefore: 100,
  limit: 9,
};

/** Reverts a database to the schema before drives, except for its version number. */
function dropDriveSchema(path: string): void {
  tamper(path, "DROP TABLE previews");
  tamper(path, "DROP TABLE processes");
  tamper(path, "DROP TABLE alerts");
  tamper(path, "DROP TABLE deliveries");
  tamper(path, "DROP TABLE drives");
  tamper(path, "DROP INDEX events_of_drive");
  tamper(path, "ALTER TABLE events DROP COLUMN drive_id");
  tamper(path, "ALTER TABLE sandboxes DROP COLUMN mounts");
}

describe("records", () => {
  test("any sandbox is read as it was written", async () => {
    const { store } = await temporaryStore();
    await fc.assert(
      fc.asyncProperty(anySandbox, async (record) => {
        await store.commit({ changes: [insert(record)] });
        expect(await store.sandbox(record.id)).toEqual(record);
        await store.commit({ changes: [update(record)] });
        expect(await store.sandbox(record.id)).toEqual({ ...record, revision: record.revision + 1 });
      }),
      { numRuns: 150 },
    );
  });

  test("any exec is read as it was written", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await fc.assert(
      fc.asyncProperty(anyExec(sandbox.id), async (record) => {
        await store.commit({ changes: [{ kind: "exec.insert", record }] });
        expect(await store.exec(record.id)).toEqual(record);
      }),
      { numRuns: 150 },
    );
  });

  test("a missing record is null", async () => {
    const { store } = await temporaryStore();
    expect(await store.sandbox(newSandboxId())).toBeNull();
    expect(await store.sandboxByName("nobody")).toBeNull();
    expect(await store.exec(newExecId())).toBeNull();
    expect(await store.idempotent("sandbox", "k")).toBeNull();
  });

  test("a touch only moves the last activity forward, and an update does not undo it", async () => {
    const { store } = await temporaryStore();
    const record = sampleSandbox();
    await store.commit({ changes: [insert(record)] });
    await store.commit({ changes: [{ kind: "sandbox.touch", id: record.id, at: 5_000, execsStarted: 7 }] });
    await store.commit({ changes: [{ kind: "sandbox.touch", id: record.id, at: 4_000, execsStarted: 3 }] });
    await store.commit({ changes: [update(record)] });
    expect(await store.sandbox(record.id)).toMatchObject({ lastActivityAt: 5_000, execsStarted: 7 });
  });

  test("records past their retention are pruned oldest first, except those still referred to", async () => {
    const { store } = await temporaryStore();
    const gone = { phase: { name: "gone", cause: null }, nameHeld: false, endedAt: 10 } as const;
    const [live, empty, used] = [sampleSandbox(), sampleSandbox(gone), sampleSandbox(gone)];
    const key = (name: string) => ({ scope: "sandbox", key: name, fingerprint: "f" });
    await store.commit({
      changes: [
        { kind: "sandbox.insert", record: live, idempotency: key("live") },
        { kind: "sandbox.insert", record: empty, idempotency: key("empty") },
        { kind: "sandbox.insert", record: used, idempotency: key("used") },
        { kind: "exec.insert", record: ended(sampleExec(used.id)) },
      ],
      events: [1, 2, 900].map((at) => ({ at, type: "sandbox.created", message: String(at) }) as const),
    });
    const order = { ...UNTIL_100, keysBefore: 5_000, limit: 2 };
    expect(await store.prunable(order)).toEqual({ events: 2, keys: 2, gone: 1, alerts: 0, deliveries: 0 });
    await store.commit({ changes: [{ kind: "prune", ...order }] });
    expect((await store.events({ limit: 10 })).map(({ at }) => at)).toEqual([900]);
    expect(await store.sandbox(empty.id)).toBeNull();
    expect(await store.sandbox(used.id)).not.toBeNull();
    expect(await store.idempotent("sandbox", "live")).not.toBeNull();
    expect(await store.idempotent("sandbox", "empty")).toBeNull();
    expect(await store.prunable(order)).toEqual({ events: 0, keys: 0, gone: 0, alerts: 0, deliveries: 0 });
  });

  test.each<[string, Partial<SandboxRecord>]>([
    ["running without an instance", { phase: { name: "running" } }],
    ["gone with a name", { phase: { name: "gone", cause: null }, endedAt: 1 }],
    ["gone without an end", { phase: { name: "gone", cause: null }, nameHeld: false }],
    ["quarantined though readable", { lease: { state: "quarantined", raw: '{"state":"none"}' } }],
    ["with an unknown phase", { phase: { name: "dancing" } as never }],
    ["with a fractional time", { createdAt: 0.5 }],
  ])("a sandbox %s is not written", async (_, changes) => {
    const { store } = await temporaryStore();
    const record = sampleSandbox(changes);
    await expect(store.commit({ changes: [insert(record)] })).rejects.toThrow(/invariant|sandbox/);
    expect(await store.sandbox(record.id)).toBeNull();
  });

  test("an ended exec without an end time is not written", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = sampleExec(sandbox.id, { status: "lost" });
    const commit = store.commit({ changes: [insert(sandbox), { kind: "exec.insert", record }] });
    await expect(commit).rejects.toThrow("exactly if its status is terminal");
    expect(await store.sandbox(sandbox.id)).toBeNull();
  });
});

describe("conflicts", () => {
  test("a name is held by one sandbox at a time, and free once released", async () => {
    const { store } = await temporaryStore();
    const first = sampleSandbox({ name: "web" });
    const second = sampleSandbox({ name: "web" });
    await store.commit({ changes: [insert(first)] });
    await expect(store.commit({ changes: [insert(second)] })).rejects.toMatchObject({ reason: "name_taken" });
    await store.commit({ changes: [update({ ...first, nameHeld: false })] });
    await store.commit({ changes: [insert(second)] });
    expect((await store.sandboxByName("web"))?.id).toBe(second.id);
    const again = { ...first, nameHeld: true, revision: 2 };
    await expect(store.commit({ changes: [update(again)] })).rejects.toMatchObject({ reason: "name_taken" });
  });

  test("an update that expects another revision is refused", async () => {
    const { store } = await temporaryStore();
    const record = sampleSandbox();
    await store.commit({ changes: [insert(record)] });
    await store.commit({ changes: [update({ ...record, generation: 1 })] });
    const late = store.commit({ changes: [update({ ...record, generation: 9 })] });
    await expect(late).rejects.toMatchObject({ reason: "stale_revision" });
    expect(await store.sandbox(record.id)).toMatchObject({ generation: 1, revision: 2 });
  });

  test("an exec ends once, and a second outcome changes nothing", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const exec = sampleExec(sandbox.id);
    await store.commit({ changes: [insert(sandbox), { kind: "exec.insert", record: exec }] });
    expect(await store.openExecs()).toEqual([exec]);
    const outcome = ended(exec, { exitCode: 3, outputEnd: 77 });
    await store.commit({ changes: [{ kind: "exec.end", record: outcome }] });
    const second = store.commit({ changes: [{ kind: "exec.end", record: ended(exec, { status: "lost" }) }] });
    await expect(second).rejects.toMatchObject({ reason: "already_terminal" });
    expect(await store.exec(exec.id)).toEqual(outcome);
    expect(await store.openExecs()).toEqual([]);
  });

  test("an exec id is used once", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = sampleExec(sandbox.id);
    await store.commit({ changes: [insert(sandbox), { kind: "exec.insert", record }] });
    const again = store.commit({ changes: [{ kind: "exec.insert", record }] });
    await expect(again).rejects.toMatchObject({ reason: "exec_exists" });
  });

  test("a repeated request is reported as such, before its name conflict", async () => {
    const { store } = await temporaryStore();
    const idempotency = { scope: "sandbox", key: "k", fingerprint: "f" };
    const first = sampleSandbox({ name: "web" });
    const second = sampleSandbox({ name: "web" });
    await store.commit({ changes: [{ kind: "sandbox.insert", record: first, idempotency }] });
    const again = store.commit({ changes: [{ kind: "sandbox.insert", record: second, idempotency }] });
    await expect(again).rejects.toMatchObject({ reason: "idempotency_key_used" });
    expect(await store.idempotent("sandbox", "k")).toEqual({ target: first.id, fingerprint: "f" });
    expect(await store.idempotent("exec:x", "k")).toBeNull();
  });

  test("a conflict rolls back its whole commit and none of those written with it", async () => {
    const { store } = await temporaryStore();
    const holder = sampleSandbox({ name: "web" });
    await store.commit({ changes: [insert(holder)] });
    const [before, between, after] = [sampleSandbox(), sampleSandbox(), sampleSandbox()];
    const commit = (record: SandboxRecord, more: Change[] = []) =>
      store.commit({
        changes: [insert(record), ...more],
        events: [{ at: 1, type: "sandbox.created", sandboxId: record.id, message: "made" }],
        counters: { created: 1 },
      });
    const outcomes = await Promise.allSettled([
      commit(before),
      commit(between, [insert(sampleSandbox({ name: "web" }))]),
      commit(after),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(await store.sandbox(between.id)).toBeNull();
    const events = await store.events({ limit: 10 });
    expect(events.map(({ sandboxId }) => sandboxId)).toEqual([before.id, after.id]);
    expect((await store.counters()).created).toBe(2);
  });
});

describe("previews", () => {
  const put = (record: PreviewRecord): Change => ({ kind: "preview.put", record });

  test("any preview is read as it was last written", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await fc.assert(
      fc.asyncProperty(anyPreviewOf(sandbox.id), async (record) => {
        await store.commit({ changes: [put(record)] });
        expect(await store.previews()).toEqual([record]);
        const without = { ...record, tokens: [] };
        await store.commit({ changes: [put(without)] });
        expect(await store.previews()).toEqual([without]);
        await store.commit({ changes: [{ kind: "preview.remove", id: record.id }] });
        expect(await store.previews()).toEqual([]);
      }),
      { numRuns: 50 },
    );
  });

  test.each(["sandbox.update", "sandbox.scrap"] as const)(
    "are deleted with their sandbox: %s",
    async (kind) => {
      const { store } = await temporaryStore();
      const [one, other] = [sampleSandbox(), sampleSandbox()];
      const [mine, theirs] = fc.sample(anyPreviewOf(one.id), 1).concat(fc.sample(anyPreviewOf(other.id), 1));
      if (mine === undefined || theirs === undefined) throw new Error("no samples");
      await store.commit({ changes: [insert(one), insert(other), put(mine), put(theirs)] });
      const phase = { name: "gone", cause: null } as const;
      const gone = { ...one, phase, nameHeld: false, endedAt: 9 };
      await store.commit({
        changes: [kind === "sandbox.update" ? update(gone) : { kind, id: one.id, at: 9 }],
      });
      expect(await store.previews()).toEqual([theirs]);
    },
  );

  test("a name belongs to one preview of a sandbox", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const [one, other] = fc.sample(anyPreviewOf(sandbox.id), 2);
    if (one === undefined || other === undefined) throw new Error("no samples");
    await store.commit({ changes: [insert(sandbox), put(one)] });
    const taken = store.commit({ changes: [put({ ...other, name: one.name })] });
    await expect(taken).rejects.toMatchObject({ reason: "preview_exists" });
  });

  test("the signing secret is created once, and differs between stores", async () => {
    const { store, path } = await temporaryStore();
    await store.close();
    const again = await openStore({ path });
    expect(again.secret).toBe(store.secret);
    expect(again.secret).toMatch(/^[\w-]{43}$/);
    await again.close();
    expect((await temporaryStore()).store.secret).not.toBe(store.secret);
  });
});

describe("checkpoints", () => {
  const keep = (...records: SavedCheckpoint[]): Change[] =>
    records.map((record) => ({ kind: "checkpoint.insert", record }));

  test("any checkpoint is read as it was written, by its id and in the list of its sandbox", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await fc.assert(
      fc.asyncProperty(anyCheckpoint(sandbox.id), async (record) => {
        await store.commit({ changes: keep(record) });
        expect(await store.checkpoint(record.id)).toEqual(record);
        expect((await store.checkpoints(sandbox.id)).at(-1)).toEqual(summaryOf(record));
        expect(await store.checkpointIds(sandbox.id)).toContain(record.id);
        // The checkpoint is removed so that its name can be used again.
        await store.commit({ changes: [{ kind: "checkpoint.remove", id: record.id }] });
      }),
      { numRuns: 100 },
    );
  });

  test("deleting a checkpoint that was deleted, or never existed, is a no-op", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = sampleCheckpoint(sandbox);
    const remove: Change = { kind: "checkpoint.remove", id: record.id };
    expect(await store.checkpoint(newCheckpointId())).toBeNull();
    await store.commit({ changes: [insert(sandbox), ...keep(record)] });
    for (let times = 0; times < 2; times += 1) {
      await store.commit({ changes: [remove] });
      expect(await store.checkpoint(record.id)).toBeNull();
      expect(await store.checkpoints(sandbox.id)).toEqual([]);
    }
    await store.commit({ changes: keep(record) });
    expect(await store.checkpoint(record.id)).toEqual(record);
  });

  test("are listed oldest first, per sandbox", async () => {
    const { store } = await temporaryStore();
    const [one, other] = [sampleSandbox(), sampleSandbox()];
    const mine = ["c", "a", "b"].map((name) => sampleCheckpoint(one, { name, createdAt: 5 }));
    await store.commit({ changes: [insert(one), insert(other), ...keep(...mine, sampleCheckpoint(other))] });
    expect((await store.checkpoints(one.id)).map(({ name }) => name)).toEqual(["c", "a", "b"]);
    expect(await store.checkpointIds(other.id)).toHaveLength(1);
  });

  test("a name belongs to one checkpoint of a sandbox, and can be used in another sandbox", async () => {
    const { store } = await temporaryStore();
    const [one, other] = [sampleSandbox(), sampleSandbox()];
    const first = sampleCheckpoint(one);
    await store.commit({ changes: [insert(one), insert(other), ...keep(first, sampleCheckpoint(other))] });
    // The conflict also undoes the other change of the same commit.
    const both = store.commit({ changes: [update(one), ...keep(sampleCheckpoint(one))] });
    await expect(both).rejects.toMatchObject({ reason: "checkpoint_exists" });
    expect(await store.sandbox(one.id)).toEqual(one);
    expect(await store.checkpointIds(one.id)).toEqual([first.id]);
  });

  test.each(["sandbox.update", "sandbox.scrap"] as const)(
    "are deleted with their sandbox: %s",
    async (kind) => {
      const { store } = await temporaryStore();
      const [one, other] = [sampleSandbox(), sampleSandbox()];
      const theirs = sampleCheckpoint(other);
      await store.commit({ changes: [insert(one), insert(other), ...keep(sampleCheckpoint(one), theirs)] });
      await store.commit({ changes: [update({ ...one, phase: { name: "deleting", cause: null } })] });
      expect(await store.checkpointIds(one.id)).toHaveLength(1);
      const phase = { name: "gone", cause: null } as const;
      const gone = { ...one, revision: one.revision + 1, phase, nameHeld: false, endedAt: 9 };
      await store.commit({
        changes: [kind === "sandbox.update" ? update(gone) : { kind, id: one.id, at: 9 }],
      });
      expect(await store.checkpointIds(one.id)).toEqual([]);
      expect(await store.checkpointIds(other.id)).toEqual([theirs.id]);
      // The sandbox's record can be pruned, because no record refers to it any more.
      await store.commit({
        changes: [{ kind: "prune", ...UNTIL_100 }],
      });
      expect(await store.sandbox(one.id)).toBeNull();
    },
  );

  test("an unreadable checkpoint is not listed, but its id is known", async () => {
    const reports: string[] = [];
    const { store, path } = await temporaryStore({ onUnreadable: ({ table }) => reports.push(table) });
    const sandbox = sampleSandbox();
    const [bent, fine] = [sampleCheckpoint(sandbox), sampleCheckpoint(sandbox, { name: "after" })];
    await store.commit({ changes: [insert(sandbox), ...keep(bent, fine)] });
    tamper(path, "UPDATE checkpoints SET summary = '{}' WHERE id = ?", bent.id);
    await expect(store.checkpoint(bent.id)).rejects.toThrow(UnreadableRecord);
    expect(await store.checkpoints(sandbox.id)).toEqual([summaryOf(fine)]);
    expect((await store.checkpointIds(sandbox.id)).sort()).toEqual([bent.id, fine.id].sort());
    expect(reports).toEqual(["checkpoint"]);
  });

  test("a checkpoint of a missing sandbox, or an invalid one, is not stored", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await expect(store.commit({ changes: keep(sampleCheckpoint(sandbox)) })).rejects.toThrow();
    await store.commit({ changes: [insert(sandbox)] });
    const odd = sampleCheckpoint(sandbox, { sizeBytes: 0.5 });
    await expect(store.commit({ changes: keep(odd) })).rejects.toThrow(/invariant|checkpoint/);
  });
});

describe("processes", () => {
  const put = (...records: ProcessRecord[]): Change[] =>
    records.map((record) => ({ kind: "process.insert", record }));
  const change = (record: ProcessRecord, to: Partial<ProcessRecord>): Change => ({
    kind: "process.update",
    record: { ...record, ...to, revision: record.revision + 1 },
    expectedRevision: record.revision,
  });

  test("any process is read as it was written", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await fc.assert(
      fc.asyncProperty(anyProcess(sandbox.id), async (record) => {
        await store.commit({ changes: put(record) });
        expect(await store.processes()).toEqual([record]);
        await store.commit({ changes: [{ kind: "process.remove", id: record.id }] });
        expect(await store.processes()).toEqual([]);
      }),
      { numRuns: 100 },
    );
  });

  test("a process replaces the one with its name in its sandbox, and no other", async () => {
    const { store } = await temporaryStore();
    const [one, other] = [sampleSandbox(), sampleSandbox()];
    const [web, job, theirs] = [
      sampleProcess(one.id),
      sampleProcess(one.id, { name: "job" }),
      sampleProcess(other.id),
    ];
    await store.commit({ changes: [insert(one), insert(other), ...put(web, job, theirs)] });
    const next = sampleProcess(one.id);
    await store.commit({ changes: put(next) });
    expect(await store.processes()).toEqual([job, theirs, next]);
  });

  test("is updated only at the expected revision, together with its related changes or not at all", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = sampleProcess(sandbox.id);
    const run = sampleExec(sandbox.id);
    await store.commit({ changes: [insert(sandbox), ...put(record)] });
    const late = change({ ...record, revision: 4 }, { run: 9 });
    const both = store.commit({ changes: [{ kind: "exec.insert", record: run }, late] });
    await expect(both).rejects.toMatchObject({ reason: "stale_revision" });
    expect(await store.exec(run.id)).toBeNull();
    await store.commit({ changes: [change(record, { run: 2, restarts: 1 })] });
    expect(await store.processes()).toEqual([{ ...record, run: 2, restarts: 1, revision: 1 }]);
  });

  test.each(["sandbox.update", "sandbox.scrap"] as const)(
    "are deleted with their sandbox: %s",
    async (kind) => {
      const { store } = await temporaryStore();
      const [one, other] = [sampleSandbox(), sampleSandbox()];
      const theirs = sampleProcess(other.id);
      await store.commit({ changes: [insert(one), insert(other), ...put(sampleProcess(one.id), theirs)] });
      const gone = { ...one, phase: { name: "gone", cause: null }, nameHeld: false, endedAt: 9 } as const;
      await store.commit({
        changes: [kind === "sandbox.update" ? update(gone) : { kind, id: one.id, at: 9 }],
      });
      expect(await store.processes()).toEqual([theirs]);
    },
  );

  test("an unreadable process is skipped and reported, and its name can be taken", async () => {
    const reports: string[] = [];
    const { store, path } = await temporaryStore({ onUnreadable: ({ table }) => reports.push(table) });
    const sandbox = sampleSandbox();
    const bent = sampleProcess(sandbox.id);
    await store.commit({ changes: [insert(sandbox), ...put(bent)] });
    tamper(path, "UPDATE processes SET state = '{}' WHERE id = ?", bent.id);
    expect(await store.processes()).toEqual([]);
    expect(reports).toEqual(["process"]);
    const next = sampleProcess(sandbox.id);
    await store.commit({ changes: put(next) });
    expect(await store.processes()).toEqual([next]);
  });

  test("a process that is over and has a pending request, or was seen before it ran, is not stored", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    const end = { state: "exited", cause: null, at: 1 } as const;
    const seen = { state: "ready", how: "port", run: 2, generation: 1, at: 1 } as const;
    for (const odd of [{ end, order: { do: "stop" } as const }, { seen }])
      await expect(store.commit({ changes: put(sampleProcess(sandbox.id, odd)) })).rejects.toThrow(
        /invariant/,
      );
  });

  test("its runs are listed separately from other execs, newest first and page by page", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const { id: of } = sampleProcess(sandbox.id);
    const ids = [`${of}-1`, "other", `${of}-2`, `${of.slice(0, -1)}`, `${of}-10`] as ExecId[];
    const execs = ids.map((id) => sampleExec(sandbox.id, { id }));
    await store.commit({
      changes: [insert(sandbox), ...execs.map((record) => ({ kind: "exec.insert", record }) as const)],
    });
    const listed = async (page: { before?: ExecId; limit: number }) =>
      (await store.execs(sandbox.id, { of, ...page })).map(({ id }) => id);
    expect(await listed({ limit: 9 })).toEqual([`${of}-10`, `${of}-2`, `${of}-1`]);
    expect(await listed({ limit: 1, before: `${of}-10` as ExecId })).toEqual([`${of}-2`]);
  });
});

describe("drives", () => {
  const make = (record: DriveRecord): Change => ({ kind: "drive.insert", record });
  const change = (record: DriveRecord): Change => ({
    kind: "drive.update",
    record: { ...record, revision: record.revision + 1 },
    expectedRevision: record.revision,
  });

  test("any drive is read as it was written, until it is deleted", async () => {
    const { store } = await temporaryStore();
    await fc.assert(
      fc.asyncProperty(anyDrive, async (record) => {
        await store.commit({ changes: [make(record)] });
        expect(await store.drives()).toEqual([record]);
        await store.commit({ changes: [change(record)] });
        expect(await store.drives()).toEqual([{ ...record, revision: record.revision + 1 }]);
        await store.commit({ changes: [{ kind: "drive.remove", id: record.id }] });
        expect(await store.drives()).toEqual([]);
      }),
      { numRuns: 100 },
    );
  });

  test("a name belongs to one drive, and an update needs the expected revision", async () => {
    const { store } = await temporaryStore();
    const first = sampleDrive({ name: "data" });
    await store.commit({ changes: [make(first)] });
    const second = store.commit({ changes: [make(sampleDrive({ name: "data" }))] });
    await expect(second).rejects.toMatchObject({ reason: "drive_exists" });
    await store.commit({ changes: [change({ ...first, phase: "ready" })] });
    const late = store.commit({ changes: [change({ ...first, phase: "deleting" })] });
    await expect(late).rejects.toMatchObject({ reason: "stale_revision" });
    expect(await store.drives()).toMatchObject([{ phase: "ready" }]);
  });

  test("an unreadable drive is skipped in the list, but its id is known", async () => {
    const { store, path } = await temporaryStore({ onUnreadable: () => undefined });
    const [bent, fine] = [sampleDrive(), sampleDrive()];
    await store.commit({ changes: [make(bent), make(fine)] });
    tamper(path, "UPDATE drives SET phase = 'odd' WHERE id = ?", bent.id);
    expect(await store.drives()).toEqual([fine]);
    expect(await store.unreadableDrives()).toEqual([bent.id]);
  });

  test("events of a drive are found by its id", async () => {
    const { store } = await temporaryStore();
    const { id } = sampleDrive();
    const event = { at: 1, type: "drive.created", message: "made" } as const;
    await store.commit({
      changes: [],
      events: [
        { ...event, driveId: id },
        { ...event, message: "other" },
      ],
    });
    expect(await store.events({ driveId: id, limit: 10 })).toMatchObject([{ driveId: id, message: "made" }]);
  });
});

describe("alerts and deliveries", () => {
  const fire = (record: AlertRecord): Change => ({ kind: "alert.fire", record });
  const clear = (record: AlertRecord, clearedAt: number): Change => ({
    kind: "alert.clear",
    record: { ...record, clearedAt },
  });
  const send = (record: DeliveryRecord): Change => ({ kind: "delivery.insert", record });

  test("any alert or delivery is read as it was last written", async () => {
    const { store } = await temporaryStore();
    await fc.assert(
      fc.asyncProperty(anyAlert, anyDelivery, anyDelivery, async (alert, first, then) => {
        await store.commit({ changes: [fire(alert), send(first)] });
        expect(await store.alerts({ state: "firing", limit: 1 })).toEqual([alert]);
        expect(await store.delivery(first.id)).toEqual(first);
        const { id, alert: about, createdAt } = first;
        const changed = { ...then, id, alert: about, createdAt };
        await store.commit({
          changes: [clear(alert, alert.firedAt), { kind: "delivery.update", record: changed }],
        });
        expect(await store.alerts({ state: "firing", limit: 1 })).toEqual([]);
        expect(await store.delivery(id)).toEqual(changed);
      }),
      { numRuns: 100 },
    );
  });

  test("active and cleared alerts are listed separately, newest first", async () => {
    const { store } = await temporaryStore();
    const [a, b, c, d] = ["a", "b", "c", "d"].map((key) => sampleAlert({ key })) as [
      AlertRecord,
      AlertRecord,
      AlertRecord,
      AlertRecord,
    ];
    await store.commit({ changes: [a, b, c, d].map(fire) });
    await store.commit({ changes: [clear(c, 5_000), clear(a, 6_000)] });
    const keys = async (state: "firing" | "cleared", limit = 9) =>
      (await store.alerts({ state, limit })).map(({ key }) => key);
    expect(await keys("firing")).toEqual(["d", "b"]);
    expect(await keys("cleared")).toEqual(["a", "c"]);
    expect(await keys("cleared", 1)).toEqual(["a"]);
  });

  test("an alert clears once", async () => {
    const { store } = await temporaryStore();
    const alert = sampleAlert();
    await store.commit({ changes: [fire(alert)] });
    await store.commit({ changes: [clear(alert, 2_000)] });
    await expect(store.commit({ changes: [clear(alert, 3_000)] })).rejects.toThrow("fires before it clears");
  });

  test("deliveries are found by state and alert, page by page, and counted", async () => {
    const { store } = await temporaryStore();
    const alert = sampleAlert();
    const pending = [1, 2, 3].map(() => sampleDelivery());
    const dead = sampleDelivery({ state: "dead", nextAttemptAt: null, alert });
    await store.commit({ changes: [...pending, dead].map(send) });
    const found = async (filter: Parameters<typeof store.deliveries>[0]) =>
      (await store.deliveries(filter)).map(({ id }) => [...pending, dead].findIndex((one) => one.id === id));
    expect(await found({ limit: 9 })).toEqual([3, 2, 1, 0]);
    expect(await found({ state: "pending", limit: 2 })).toEqual([2, 1]);
    expect(await found({ state: "pending", before: pending[1]?.id, limit: 2 })).toEqual([0]);
    expect(await found({ alertId: alert.id, limit: 9 })).toEqual([3]);
    expect(await store.deliveryCounts()).toEqual({ pending: 3, delivered: 0, dead: 1 });
    await expect(store.deliveries({ before: sampleDelivery().id, limit: 1 })).rejects.toMatchObject({
      code: "invalid_request",
    });
  });

  test.each<[string, Partial<DeliveryRecord>]>([
    ["pending without a next attempt", { nextAttemptAt: null }],
    ["dead with a next attempt", { state: "dead" }],
    ["delivered without a time", { state: "delivered", nextAttemptAt: null }],
  ])("a delivery that is %s is not written", async (_, changes) => {
    const { store } = await temporaryStore();
    await expect(store.commit({ changes: [send(sampleDelivery(changes))] })).rejects.toThrow("invariant");
  });

  test("active alerts and pending deliveries are never pruned", async () => {
    const { store } = await temporaryStore();
    const [firing, cleared, recent] = [sampleAlert(), sampleAlert(), sampleAlert()];
    const settled = { nextAttemptAt: null, createdAt: 50 } as const;
    await store.commit({
      changes: [
        ...[firing, cleared, recent].map(fire),
        ...[clear(cleared, 99), clear(recent, 100)],
        send(sampleDelivery({ createdAt: 50 })),
        send(sampleDelivery({ ...settled, state: "dead" })),
        send(sampleDelivery({ ...settled, state: "delivered", deliveredAt: 60 })),
        send(sampleDelivery({ ...settled, state: "dead", createdAt: 100 })),
      ],
    });
    expect(await store.prunable(UNTIL_100)).toMatchObject({ alerts: 1, deliveries: 2 });
    await store.commit({ changes: [{ kind: "prune", ...UNTIL_100 }] });
    expect(await store.alerts({ state: "firing", limit: 9 })).toEqual([firing]);
    expect((await store.alerts({ state: "cleared", limit: 9 })).map(({ id }) => id)).toEqual([recent.id]);
    expect(await store.deliveryCounts()).toEqual({ pending: 1, delivered: 0, dead: 1 });
  });

  test("an unreadable alert hides none of the others", async () => {
    const reports: string[] = [];
    const { store, path } = await temporaryStore({ onUnreadable: ({ table }) => reports.push(table) });
    const alerts = [sampleAlert(), sampleAlert()];
    const deliveries = [sampleDelivery(), sampleDelivery()];
    await store.commit({ changes: [...alerts.map(fire), ...deliveries.map(send)] });
    tamper(path, "UPDATE alerts SET content = '{}' WHERE id = ?", alerts[1]?.id ?? "");
    tamper(path, "UPDATE deliveries SET alert = '{' WHERE id = ?", deliveries[1]?.id ?? "");
    expect(await store.alerts({ state: "firing", limit: 1 })).toEqual([alerts[0]]);
    expect(await store.deliveries({ limit: 1 })).toEqual([deliveries[0]]);
    expect(reports).toEqual(["alert", "delivery"]);
  });

  test("ended execs are counted by sandbox and time step, in order", async () => {
    const { store } = await temporaryStore();
    const [one, other] = [sampleSandbox(), sampleSandbox()];
    const end = (sandboxId: SandboxId, endedAt: number, status: ExecRecord["status"] = "exited"): Change => ({
      kind: "exec.insert",
      record: ended(sampleExec(sandboxId), { endedAt, status }),
    });
    await store.commit({
      changes: [
        ...[insert(one), insert(other), { kind: "exec.insert", record: sampleExec(one.id) } as const],
        ...[end(one.id, 2_500, "timed_out"), end(one.id, 1_999), end(one.id, 2_001)],
        ...[end(other.id, 2_999, "timed_out"), end(one.id, 999, "timed_out")],
      ],
    });
    const found = await store.execEnds(1_000, 1_000);
    expect(found.map(({ at }) => at)).toEqual([1_000, 2_000, 2_000]);
    expect(found).toEqual(
      expect.arrayContaining([
        { at: 1_000, sandboxId: one.id, ended: 1, timedOut: 0 },
        { at: 2_000, sandboxId: one.id, ended: 2, timedOut: 1 },
        { at: 2_000, sandboxId: other.id, ended: 1, timedOut: 1 },
      ]),
    );
  });
});

describe("deleting ended execs", () => {
  test("ended execs are found by the time of their end, oldest first, with sandboxes excluded on request", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const open = sampleExec(sandbox.id);
    const execs = [50, 10, 30, 10, 20].map((endedAt) => ended(sampleExec(sandbox.id), { endedAt }));
    const changes = [...execs, open].map((record): Change => ({ kind: "exec.insert", record }));
    await store.commit({ changes: [insert(sandbox), ...changes] });
    const found = async (endedBefore: number, limit: number, exceptOf: SandboxId[] = []) =>
      (await store.endedExecs({ endedBefore, exceptOf, limit })).map(({ id }) =>
        execs.findIndex((exec) => exec.id === id),
      );
    expect(await found(50, 10)).toEqual([1, 3, 4, 2]);
    expect(await found(50, 2)).toEqual([1, 3]);
    expect(await found(10, 10)).toEqual([]);
    expect(await found(1_000, 10, [sandbox.id])).toEqual([]);
  });

  test("the ended execs of a sandbox are listed by end, oldest first, however many", async () => {
    const { store } = await temporaryStore();
    const [one, other] = [sampleSandbox(), sampleSandbox()];
    const ends = Array.from({ length: 1_201 }, (_, index) => 2_000 - index);
    const execs = ends.map((endedAt) => ended(sampleExec(one.id), { endedAt, outputEnd: endedAt }));
    const strangers = [sampleExec(one.id), ended(sampleExec(other.id))];
    const changes = [...execs, ...strangers].map((record): Change => ({ kind: "exec.insert", record }));
    await store.commit({ changes: [insert(one), insert(other), ...changes] });
    const expected = execs.toReversed().map(({ id, outputEnd }) => ({ id, outputEnd }));
    expect(await store.retainedExecs(one.id)).toEqual(expected);
    expect(await store.retainedExecs(newSandboxId())).toEqual([]);
  });

  test("a deleted exec is gone with its idempotency key, and both can be used again", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const [gone, kept] = [ended(sampleExec(sandbox.id)), ended(sampleExec(sandbox.id))];
    const scope = `exec:${sandbox.id}`;
    const start = (record: ExecRecord, key: string): Change => ({
      kind: "exec.insert",
      record,
      idempotency: { scope, key, fingerprint: "f" },
    });
    await store.commit({ changes: [insert(sandbox), start(gone, "g"), start(kept, "k")] });
    await store.commit({ changes: [{ kind: "exec.forget", ids: [gone.id, newExecId()] }] });
    expect(await store.exec(gone.id)).toBeNull();
    expect(await store.idempotent(scope, "g")).toBeNull();
    expect(await store.exec(kept.id)).toEqual(kept);
    expect(await store.idempotent(scope, "k")).toMatchObject({ target: kept.id });
    await store.commit({ changes: [start(gone, "g")] });
    expect(await store.exec(gone.id)).toEqual(gone);
  });

  test("an exec without an outcome is never deleted, nor is the idempotency key of a sandbox with an exec's id", async () => {
    const { store } = await temporaryStore();
    const sandbox = sampleSandbox();
    const [open, done] = [
      sampleExec(sandbox.id),
      ended(sampleExec(sandbox.id, { id: sandbox.id as string as ExecId })),
    ];
    const idempotency = { key: "k", fingerprint: "f" };
    const scope = `exec:${sandbox.id}`;
    await store.commit({
      changes: [
        { kind: "sandbox.insert", record: sandbox, idempotency: { ...idempotency, scope: "sandbox" } },
        { kind: "exec.insert", record: open, idempotency: { ...idempotency, scope } },
        { kind: "exec.insert", record: done },
      ],
    });
    await store.commit({ changes: [{ kind: "exec.forget", ids: [open.id, done.id] }] });
    expect(await store.exec(open.id)).toEqual(open);
    expect(await store.idempotent(scope, "k")).not.toBeNull();
    expect(await store.exec(done.id)).toBeNull();
    expect(await store.idempotent("sandbox", "k")).not.toBeNull();
  });
});

describe("events and counters", () => {
  test("events are found by sandbox, exec, type and position, in order", async () => {
    const { store } = await temporaryStore();
    const owner = sampleSandbox();
    const run = sampleExec(owner.id);
    const [one, two, execId] = [owner.id, newSandboxId(), run.id];
    await store.commit({
      changes: [
        { kind: "sandbox.insert", record: owner },
        { kind: "exec.insert", record: run },
      ],
      events: [
        { at: 1, type: "server.started", message: "up" },
        { at: 2, type: "sandbox.created", sandboxId: one, message: "a", data: { n: [1, "x"] } },
        { at: 3, type: "exec.started", sandboxId: one, execId, generation: 4, message: "b" },
        { at: 4, type: "sandbox.created", sandboxId: two, message: "c" },
      ],
    });
    const messages = async (filter: Parameters<typeof store.events>[0]) =>
      (await store.events(filter)).map(({ message }) => message);
    expect(await messages({ limit: 3 })).toEqual(["up", "a", "b"]);
    expect(await messages({ sandboxId: one, limit: 10 })).toEqual(["a", "b"]);
    expect(await messages({ execId, limit: 10 })).toEqual(["b"]);
    expect(await messages({ types: ["sandbox.created"], limit: 10 })).toEqual(["a", "c"]);
    expect(await messages({ types: [], limit: 10 })).toEqual([]);
    const [second] = await store.events({ after: 1, limit: 1 });
    expect(second).toEqual({
      seq: 2,
      at: 2,
      type: "sandbox.created",
      sandboxId: one,
      execId: null,
      driveId: null,
      generation: null,
      message: "a",
      data: { n: [1, "x"] },
    });
  });

  test("counters add up over restarts", async () => {
    const { store, path } = await temporaryStore();
    expect(await store.counters()).toEqual({
      created: 0,
      terminated: 0,
      failed: 0,
      execsStarted: 0,
      execsEnded: 0,
    });
    await Promise.all(
      Array.from({ length: 50 }, () => store.commit({ changes: [], counters: { created: 2 } })),
    );
    await store.close();
    const { store: reopened } = await temporaryStore({ path });
    expect((await reopened.counters()).created).toBe(100);
    await expect(reopened.commit({ changes: [], counters: { created: -1 } })).rejects.toThrow(
      "never decreases",
    );
  });
});

describe("listings", () => {
  test("sandboxes are listed in creation order, page by page, without deleted ones", async () => {
    const { store } = await temporaryStore();
    const records = Array.from({ length: 7 }, (_, index) => sampleSandbox({ createdAt: 100 - index }));
    records[3] = sampleSandbox({ phase: { name: "gone", cause: null }, nameHeld: false, endedAt: 9 });
    await store.commit({ changes: records.map(insert) });
    const ids = records.map(({ id }) => id);
    const live = ids.filter((_, index) => index !== 3);
    const first = await store.sandboxes({ limit: 4 });
    expect(first.map(({ id }) => id)).toEqual(live.slice(0, 4));
    const rest = await store.sandboxes({ limit: 4, after: first.at(-1)?.id });
    expect(rest.map(({ id }) => id)).toEqual(live.slice(4));
    expect((await store.sandboxes({ limit: 9, includeGone: true })).map(({ id }) => id)).toEqual(ids);
    expect((await store.liveSandboxes()).map(({ id }) => id)).toEqual(live);
  });

  test("labels filter, whatever characters their keys contain", async () => {
    const { store } = await temporaryStore();
    const labelled = (labels: Record<string, string>) => {
      const record = sampleSandbox();
      return { ...record, spec: { ...record.spec, labels } };
    };
    const records = [labelled({ "a.b/c-d": "1", "0": "x" }), labelled({ "a.b/c-d": "2" }), labelled({})];
    await store.commit({ changes: records.map(insert) });
    const found = async (labels: Record<string, string>) =>
      (await store.sandboxes({ labels, limit: 9 })).map(({ id }) =>
        records.findIndex((record) => record.id === id),
      );
    expect(await found({ "a.b/c-d": "1" })).toEqual([0]);
    expect(await found({ "a.b/c-d": "1", "0": "x" })).toEqual([0]);
    expect(await found({ "a.b/c-d": "1", "0": "y" })).toEqual([]);
    expect(await found({ "\"quoted' key": "1" })).toEqual([]);
  });

  test("execs of a sandbox are listed newest first, page by page", async () => {
    const { store } = await temporaryStore();
    const [mine, other] = [sampleSandbox(), sampleSandbox()];
    const execs = Array.from({ length: 5 }, () => sampleExec(mine.id));
    const changes = [...execs, sampleExec(other.id)].map(
      (record): Change => ({ kind: "exec.insert", record }),
    );
    await store.commit({ changes: [insert(mine), insert(other), ...changes] });
    const newest = execs.map(({ id }) => id).reverse();
    const first = await store.execs(mine.id, { limit: 2 });
    expect(first.map(({ id }) => id)).toEqual(newest.slice(0, 2));
    const rest = await store.execs(mine.id, { limit: 9, before: first.at(-1)?.id });
    expect(rest.map(({ id }) => id)).toEqual(newest.slice(2));
  });

  test("an unknown cursor is refused, not taken for the end", async () => {
    const { store } = await temporaryStore();
    const [mine, other] = [sampleSandbox(), sampleSandbox()];
    const theirs = sampleExec(other.id);
    await store.commit({ changes: [insert(mine), insert(other), { kind: "exec.insert", record: theirs }] });
    const refused = { code: "invalid_request", message: "The cursor is not valid." };
    await expect(store.sandboxes({ limit: 9, after: sampleSandbox().id })).rejects.toMatchObject(refused);
    for (const before of [sampleExec(mine.id).id, theirs.id]) {
      await expect(store.execs(mine.id, { limit: 9, before })).rejects.toMatchObject(refused);
    }
    expect(await store.sandboxes({ limit: 9, after: other.id })).toEqual([]);
  });
});

describe("unreadable rows", () => {
  test.each(["", "null", "{", '{"state":"borrowed"}', '{"state":"held","generation":"three"}'])(
    "a lease stored as %j is quarantined, and kept as it is by later updates",
    async (raw) => {
      const { store, path } = await temporaryStore();
      const record = sampleSandbox();
      await store.commit({ changes: [insert(record)] });
      tamper(path, "UPDATE sandboxes SET lease = ?", raw);
      const read = await store.sandbox(record.id);
      expect(read).toEqual({ ...record, lease: { state: "quarantined", raw } });
      if (read !== null) await store.commit({ changes: [update(read)] });
      expect(await store.liveSandboxes()).toMatchObject([
        { revision: 2, lease: { state: "quarantined", raw } },
      ]);
    },
  );

  test("a bad row is an error when read alone, and is skipped and reported in listings", async () => {
    const reports: string[] = [];
    const { store, path } = await temporaryStore({ onUnreadable: ({ id }) => reports.push(id) });
    const records = Array.from({ length: 5 }, () => sampleSandbox());
    await store.commit({ changes: records.map(insert) });
    const [first, bad, ...others] = records.map(({ id }) => id);
    tamper(path, "UPDATE sandboxes SET spec = '{' WHERE id = ?", bad ?? "");
    await expect(store.sandbox(bad ?? newSandboxId())).rejects.toThrow(UnreadableRecord);
    const page = await store.sandboxes({ limit: 3 });
    expect(page.map(({ id }) => id)).toEqual([first, ...others.slice(0, 2)]);
    expect((await store.liveSandboxes()).length).toBe(4);
    expect(reports).toEqual([bad, bad]);
  });

  test("bad execs and events do not stop a listing either", async () => {
    const reports: string[] = [];
    const { store, path } = await temporaryStore({ onUnreadable: ({ table }) => reports.push(table) });
    const sandbox = sampleSandbox();
    await store.commit({
      changes: [insert(sandbox), { kind: "exec.insert", record: sampleExec(sandbox.id) }],
      events: [{ at: 1, type: "sandbox.created", message: "made" }],
    });
    tamper(path, "UPDATE execs SET status = 'exited'");
    tamper(path, "UPDATE events SET data = '[]'");
    expect(await store.openExecs()).toEqual([]);
    expect(await store.execs(sandbox.id, { limit: 5 })).toEqual([]);
    expect(await store.events({ limit: 5 })).toEqual([]);
    expect(reports).toEqual(["exec", "exec", "event"]);
  });
});

describe("the database", () => {
  test("keeps its installation id, and its file is readable only by its owner", async () => {
    const { store, path } = await temporaryStore();
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(statSync(`${path}-wal`).mode & 0o777).toBe(0o600);
    await store.close();
    const { store: reopened } = await temporaryStore({ path });
    expect(reopened.installation).toBe(store.installation);
    expect(reopened.installation).toMatch(/^[0-9a-z]{8}$/);
  });

  test("of a newer version is refused and left unchanged", async () => {
    const { store, path } = await temporaryStore();
    await store.close();
    tamper(path, "UPDATE meta SET value = '999' WHERE key = 'schema_version'");
    await expect(openStore({ path })).rejects.toThrow(NewerDatabase);
    await expect(openStore({ path })).rejects.toThrow("999");
  });

  test("of the first version is migrated, and its execs have no terminal", async () => {
    const { store, path } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = ended(sampleExec(sandbox.id));
    await store.commit({ changes: [insert(sandbox), { kind: "exec.insert", record }] });
    await store.close();
    dropDriveSchema(path);
    tamper(path, "DROP INDEX execs_ended");
    tamper(path, "DROP INDEX idempotency_target");
    tamper(path, "DROP INDEX sandboxes_gone");
    tamper(path, "DROP TABLE checkpoints");
    for (const column of ["owner", "execs_started", "restarts", "memory_since", "forked_from"])
      tamper(path, `ALTER TABLE sandboxes DROP COLUMN ${column}`);
    tamper(path, "UPDATE execs SET spec = json_remove(spec, '$.tty', '$.keepAwake', '$.onWake')");
    tamper(path, "UPDATE meta SET value = '1' WHERE key = 'schema_version'");
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.exec(record.id)).toEqual(record);
    expect(await reopened.sandbox(sandbox.id)).toEqual(sandbox);
    const found = await reopened.endedExecs({ endedBefore: 9_999, exceptOf: [], limit: 2 });
    expect(found).toEqual([{ id: record.id, sandboxId: sandbox.id, outputEnd: record.outputEnd }]);
  });

  test("of the version before named checkpoints is migrated, and can store them", async () => {
    const { store, path } = await temporaryStore();
    const sandbox = sampleSandbox();
    const record = sampleExec(sandbox.id);
    await store.commit({ changes: [insert(sandbox), { kind: "exec.insert", record }] });
    await store.close();
    dropDriveSchema(path);
    tamper(path, "DROP TABLE checkpoints");
    tamper(path, "ALTER TABLE sandboxes DROP COLUMN forked_from");
    tamper(path, "UPDATE meta SET value = '4' WHERE key = 'schema_version'");
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.sandbox(sandbox.id)).toEqual(sandbox);
    expect(await reopened.openExecs()).toEqual([record]);
    const saved = sampleCheckpoint(sandbox);
    await reopened.commit({ changes: [{ kind: "checkpoint.insert", record: saved }] });
    expect(await reopened.checkpoints(sandbox.id)).toEqual([summaryOf(saved)]);
  });

  test("of the version before drives is migrated, and can store them", async () => {
    const { store, path } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await store.close();
    dropDriveSchema(path);
    tamper(path, "UPDATE meta SET value = '5' WHERE key = 'schema_version'");
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.sandbox(sandbox.id)).toEqual(sandbox);
    const record = sampleDrive();
    await reopened.commit({ changes: [{ kind: "drive.insert", record }] });
    expect(await reopened.drives()).toEqual([record]);
  });

  test("of the version before alerts is migrated, and can store them", async () => {
    const { store, path } = await temporaryStore();
    const sandbox = sampleSandbox();
    await store.commit({ changes: [insert(sandbox)] });
    await store.close();
    tamper(path, "DROP TABLE previews");
    tamper(path, "DROP TABLE processes");
    tamper(path, "DROP TABLE alerts");
    tamper(path, "DROP TABLE deliveries");
    tamper(path, "UPDATE meta SET value = '6' WHERE key = 'schema_version'");
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.sandbox(sandbox.id)).toEqual(sandbox);
    const record = sampleAlert();
    await reopened.commit({ changes: [{ kind: "alert.fire", record }] });
    expect(await reopened.alerts({ state: "firing", limit: 9 })).toEqual([record]);
  });

  test("of the version before processes is migrated, and can store them", async () => {
    const { store, path } = await temporaryStore();
    const origin = {
      ...{ sandboxId: newSandboxId(), sandboxName: "source", checkpointId: newCheckpointId() },
      ...{ kind: "memory" as const, generation: 1, keeperBootId: null, execs: [], processes: [] },
    };
    const sandbox = sampleSandbox({ forkedFrom: origin });
    const saved = sampleCheckpoint(sandbox);
    await store.commit({ changes: [insert(sandbox), { kind: "checkpoint.insert", record: saved }] });
    await store.close();
    tamper(path, "DROP TABLE processes");
    tamper(path, "UPDATE sandboxes SET forked_from = json_remove(forked_from, '$.processes')");
    tamper(path, "UPDATE checkpoints SET content = json_remove(content, '$.processes')");
    tamper(path, "UPDATE meta SET value = '8' WHERE key = 'schema_version'");
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.sandbox(sandbox.id)).toEqual(sandbox);
    expect(await reopened.checkpoint(saved.id)).toEqual(saved);
    const record = sampleProcess(sandbox.id);
    await reopened.commit({ changes: [{ kind: "process.insert", record }] });
    expect(await reopened.processes()).toEqual([record]);
  });

  test("in memory works like one on disk", async () => {
    const { store } = await temporaryStore({ path: ":memory:" });
    const record = sampleSandbox();
    await store.commit({ changes: [insert(record)], outlives: "server" });
    expect(await store.sandboxByName(record.name)).toEqual(record);
    await store.close();
  });

  test("accepts no commit after close, and loses none accepted before", async () => {
    const { store, path } = await temporaryStore();
    const record = sampleSandbox();
    const commit = store.commit({ changes: [insert(record)] });
    await store.close();
    await commit;
    await expect(store.commit({ changes: [] })).rejects.toMatchObject({ code: "shutting_down" });
    const { store: reopened } = await temporaryStore({ path });
    expect(await reopened.sandbox(record.id)).toEqual(record);
  });
});

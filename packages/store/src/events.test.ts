import { newDriveId, newSandboxId } from "@holdfast/contract";
import type { EventFilter, NewEvent } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { sampleExec, sampleSandbox } from "./testing/samples.ts";
import { temporaryStore } from "./testing/store.ts";

const event = (at: number, facts: Partial<NewEvent> = {}): NewEvent => ({
  at,
  type: "audit.done",
  message: String(at),
  ...facts,
});

/** Creates a store with these events, and a function that returns the messages of a query. */
async function holding(events: readonly NewEvent[]) {
  const { store } = await temporaryStore();
  await store.commit({ changes: [], events });
  const found = async (filter: Omit<EventFilter, "limit"> & { limit?: number }) =>
    (await store.events({ limit: 1_000, ...filter })).map(({ message }) => message);
  return { store, found };
}

describe("events by time", () => {
  test("are those from one time (inclusive) to another (exclusive)", async () => {
    const { found } = await holding([event(10), event(20), event(30)]);
    expect(await found({ since: 20 })).toEqual(["20", "30"]);
    expect(await found({ until: 20 })).toEqual(["10"]);
    expect(await found({ since: 10, until: 30 })).toEqual(["10", "20"]);
  });

  test("are complete where the clock was set back", async () => {
    const { found } = await holding([event(100), event(50), event(110)]);
    expect(await found({ since: 60 })).toEqual(["100", "110"]);
    expect(await found({ until: 60 })).toEqual(["50"]);
  });
});

describe("events in reverse order", () => {
  test("start with the newest, and continue after a cursor", async () => {
    const { found } = await holding([1, 2, 3, 4].map((at) => event(at)));
    expect(await found({ order: "newest", limit: 3 })).toEqual(["4", "3", "2"]);
    expect(await found({ order: "newest", after: 3 })).toEqual(["2", "1"]);
  });

  test("can be limited to one sandbox", async () => {
    const sandboxId = newSandboxId();
    const { found } = await holding([event(1, { sandboxId }), event(2), event(3, { sandboxId })]);
    expect(await found({ order: "newest", sandboxId })).toEqual(["3", "1"]);
    expect(await found({ order: "newest", sandboxId, after: 3 })).toEqual(["1"]);
  });
});

describe("events without a matching index", () => {
  /** Positions far apart, some at the boundary between two scanned batches. */
  const rare = [0, 5_000, 9_999, 10_000, 15_000, 19_999, 24_000];
  const many = Array.from({ length: 25_000 }, (_, at) =>
    event(at, rare.includes(at) ? { type: "sweep.done" } : {}),
  );

  test("are found however far apart they are, in either order and page by page", async () => {
    const { found } = await holding(many);
    const types = ["sweep.done"] as const;
    const texts = rare.map(String);
    expect(await found({ types })).toEqual(texts);
    expect(await found({ types, order: "newest" })).toEqual(texts.toReversed());
    expect(await found({ types, limit: 2 })).toEqual(texts.slice(0, 2));
    expect(await found({ types, after: 10_001 })).toEqual(["15000", "19999", "24000"]);
    expect(await found({ types, order: "newest", after: 5_002 })).toEqual(["5000", "0"]);
    expect(await found({ since: 24_998 })).toEqual(["24998", "24999"]);
  });

  test("do not block other work while they are searched", async () => {
    const { found } = await holding(many);
    let turns = 0;
    const turn = () => {
      turns += 1;
      next = setImmediate(turn);
    };
    let next = setImmediate(turn);
    await found({ types: ["sandbox.oom"] });
    clearImmediate(next);
    expect(turns).toBeGreaterThan(0);
  });
});

test("an exec's events are found after its record was deleted", async () => {
  const { store } = await temporaryStore();
  const sandbox = sampleSandbox();
  const exec = sampleExec(sandbox.id, { status: "exited", exitCode: 0, endedAt: 5, dispatched: "yes" });
  await store.commit({
    changes: [
      { kind: "sandbox.insert", record: sandbox },
      { kind: "exec.insert", record: exec },
    ],
    events: [event(1, { sandboxId: sandbox.id, execId: exec.id }), event(2, { sandboxId: sandbox.id })],
  });
  const before = await store.events({ execId: exec.id, limit: 10 });
  expect(before.map(({ message }) => message)).toEqual(["1"]);
  await store.commit({ changes: [{ kind: "exec.forget", ids: [exec.id] }] });
  expect(await store.exec(exec.id)).toBeNull();
  expect(await store.events({ execId: exec.id, limit: 10 })).toEqual(before);
});

describe("the retained timeline", () => {
  const prune = (eventsBefore: number) =>
    ({
      kind: "prune",
      eventsBefore,
      keysBefore: 0,
      goneBefore: 0,
      alertsBefore: 0,
      deliveriesBefore: 0,
      limit: 100,
    }) as const;

  test("has a first and a last seq, or neither", async () => {
    const { store } = await temporaryStore();
    expect(await store.eventSpan()).toEqual({ first: 0, last: 0 });
    await store.commit({ changes: [], events: [event(1), event(2), event(3)] });
    expect(await store.eventSpan()).toEqual({ first: 1, last: 3 });
    await store.commit({ changes: [prune(3)] });
    expect(await store.eventSpan()).toEqual({ first: 3, last: 3 });
  });

  test("keeps its newest event however old it is, so that no seq is used twice", async () => {
    const { store, found } = await holding([event(1), event(2, { driveId: newDriveId() })]);
    await store.commit({ changes: [prune(1_000)] });
    expect(await found({})).toEqual(["2"]);
    await store.commit({ changes: [], events: [event(3)] });
    expect((await store.events({ after: 2, limit: 10 })).map(({ seq }) => seq)).toEqual([3]);
  });
});

import { type EventType, HoldfastError, NUMBERS, type Numbers, type SandboxId } from "@holdfast/contract";
import { type OpenedStore, openStore } from "@holdfast/store";
import { afterEach, describe, expect, it } from "vitest";
import { systemClock } from "../lib/clock.ts";
import type { EventPage, EventQuery } from "../ports/api.ts";
import type { NewEvent, Store } from "../ports/index.ts";
import { codeOf, eventually } from "../testing/test-engine.ts";
import { AnnouncingStore } from "./announcing-store.ts";
import { Timeline } from "./timeline.ts";

const stores: OpenedStore[] = [];
const leaving: AbortController[] = [];
afterEach(async () => {
  for (const controller of leaving.splice(0)) controller.abort();
  for (const store of stores.splice(0)) await store.close();
});

const sandboxId = "sbx_0000000000000001" as SandboxId;
const other = "sbx_0000000000000002" as SandboxId;

/** A timeline over a real store, and a function that writes to it. */
async function feeding(numbers: Partial<Numbers> = {}, wrap: (store: Store) => Store = (store) => store) {
  const store = await openStore({ path: ":memory:", onUnreadable: () => undefined });
  stores.push(store);
  const stopping = new AbortController();
  const news = new AnnouncingStore(wrap(store));
  const feed = new Timeline(news, {
    clock: systemClock,
    numbers: { ...NUMBERS, streamKeepaliveMs: 100, ...numbers },
    stopping: stopping.signal,
    registry: {
      idOf: async (ref) => {
        if (ref === "box") return sandboxId;
        throw new HoldfastError("sandbox_not_found");
      },
    },
    drives: {
      find: () => {
        throw new HoldfastError("drive_not_found");
      },
    },
  });
  let told = 0;
  const tell = async (facts: Partial<NewEvent> = {}, count = 1): Promise<void> => {
    const events = Array.from({ length: count }, () => {
      told += 1;
      return { at: Date.now(), type: "audit.done" as EventType, message: String(told), ...facts };
    });
    await news.store.commit({ changes: [], events });
  };
  return { feed, store, tell, stopping };
}

/** A follower that collects everything it receives. */
function follow(feed: Timeline, query: EventQuery = {}) {
  const left = new AbortController();
  leaving.push(left);
  const pages: EventPage[] = [];
  const over = (async () => {
    for await (const page of feed.follow(query, left.signal)) pages.push(page);
  })();
  over.catch(() => undefined);
  const seqs = () => pages.flatMap(({ events }) => events.map(({ seq }) => seq));
  const begun = () => eventually(() => expect(pages.length).toBeGreaterThan(0));
  return { pages, seqs, over, left, begun };
}

const upTo = (last: number, first = 1) =>
  Array.from({ length: last - first + 1 }, (_, index) => first + index);

describe("a follower", () => {
  it("without a cursor gets every new event once, immediately", async () => {
    const { feed, tell } = await feeding({ streamKeepaliveMs: 60_000 });
    await tell({}, 3);
    const follower = follow(feed);
    await follower.begun();
    expect(follower.pages[0]).toEqual({ events: [], cursor: "3" });
    for (let round = 0; round < 20; round++) await tell({}, 1 + (round % 3));
    await eventually(() => expect(follower.seqs()).toEqual(upTo(3 + 39, 4)));
  });

  it("gets the events after its cursor, then new ones, without gap or repetition", async () => {
    const { feed, tell } = await feeding();
    await tell({}, 1_500);
    const follower = follow(feed, { cursor: "100" });
    await tell({}, 1_500);
    await eventually(() => expect(follower.seqs()).toHaveLength(2_900));
    expect(follower.seqs()).toEqual(upTo(3_000, 101));
  });

  it("that reconnects with any of its cursors continues as if it had never left", async () => {
    const { feed, tell } = await feeding();
    const first = follow(feed, { ref: "box", cursor: "0" });
    await tell({ sandboxId });
    await tell({ sandboxId: other }, 5);
    // Filtered-out events move the cursor as well.
    await eventually(() => expect(first.pages.at(-1)?.cursor).toBe("6"));
    await tell({ sandboxId });
    await eventually(() => expect(first.seqs()).toEqual([1, 7]));
    for (const { cursor } of [...first.pages]) {
      const again = follow(feed, { ref: "box", cursor });
      const missing = first.seqs().filter((seq) => seq > Number(cursor));
      await eventually(() => expect(again.seqs()).toEqual(missing));
    }
  });

  it("immediately gets an event that is committed between its read and its wait", async () => {
    let between: (() => Promise<void>) | null = null;
    const late = (store: Store): Store => ({
      ...store,
      events: async (filter) => {
        const found = await store.events(filter);
        const act = between;
        between = null;
        await act?.();
        return found;
      },
    });
    const { feed, tell } = await feeding({ streamKeepaliveMs: 60_000 }, late);
    const follower = follow(feed);
    await follower.begun();
    await tell();
    await eventually(() => expect(follower.seqs()).toEqual([1]));
    between = () => tell();
    await tell();
    await eventually(() => expect(follower.seqs()).toEqual([1, 2, 3]));
  });

  it("gets only events that match its filter, from memory and from the store", async () => {
    const { feed, tell } = await feeding();
    const facts = [
      { sandboxId },
      { sandboxId: other },
      { sandboxId, type: "sandbox.oom" as EventType },
      { at: 5 },
      {},
    ];
    for (const fact of facts) await tell(fact);
    const queries: [EventQuery, number[]][] = [
      [{ ref: "box" }, [1, 3]],
      [{ types: ["sandbox.oom"] }, [3]],
      [{ since: 6 }, [1, 2, 3, 5]],
      [{ ref: "box", types: ["audit.done"] }, [1]],
    ];
    const followers = queries.map(([query]) => follow(feed, { cursor: "0", ...query }));
    for (const [index, follower] of followers.entries())
      await eventually(() => expect(follower.seqs()).toEqual(queries[index]?.[1]));
    for (const fact of facts) await tell(fact);
    for (const [index, follower] of followers.entries()) {
      const once = queries[index]?.[1] ?? [];
      const twice = [...once, ...once.map((seq) => seq + facts.length)];
      await eventually(() => expect(follower.seqs()).toEqual(twice));
    }
  });

  it("begins at `since` without a cursor, and ends after `until`", async () => {
    const { feed, tell } = await feeding();
    await tell({ at: 10 });
    await tell({ at: 20 });
    await tell({ at: 30 });
    const past = follow(feed, { since: 20, until: 30 });
    await past.over;
    expect(past.seqs()).toEqual([2]);
    const until = Date.now() + 200;
    const soon = follow(feed, { until });
    await soon.begun();
    await tell({ at: until - 1 });
    await tell({ at: until + 1 });
    await soon.over;
    expect(soon.seqs()).toEqual([4]);
  });

  it("gets keepalives while nothing happens", async () => {
    const { feed } = await feeding({ streamKeepaliveMs: 20 });
    const follower = follow(feed);
    await eventually(() => expect(follower.pages.length).toBeGreaterThan(3));
    expect(follower.seqs()).toEqual([]);
  });

  it("that stalls reads on from the store, and delays no other", async () => {
    const { feed, tell } = await feeding();
    const slow = feed.follow({ cursor: "0" }, new AbortController().signal);
    await slow.next();
    const quick = follow(feed);
    await quick.begun();
    // Far more events than the tail holds in memory.
    for (let round = 0; round < 30; round++) await tell({}, 100);
    await eventually(() => expect(quick.seqs()).toEqual(upTo(3_000)));
    const seen: number[] = [];
    while (seen.length < 3_000) {
      const step = await slow.next();
      if (step.done) break;
      seen.push(...step.value.events.map(({ seq }) => seq));
    }
    await slow.return();
    expect(seen).toEqual(upTo(3_000));
  });

  it("shares reads of the store with other followers that are up to date", async () => {
    let reads = 0;
    const counting = (store: Store): Store => ({
      ...store,
      events: (filter) => {
        reads += 1;
        return store.events(filter);
      },
    });
    const { feed, tell } = await feeding({ streamKeepaliveMs: 60_000 }, counting);
    const followers = Array.from({ length: 50 }, () => follow(feed));
    for (const follower of followers) await follower.begun();
    reads = 0;
    await tell();
    for (const follower of followers) await eventually(() => expect(follower.seqs()).toEqual([1]));
    expect(reads).toBeLessThan(5);
  });

  it("is rejected beyond the limit, and admitted when another has left", async () => {
    const { feed } = await feeding({ eventFollowersMax: 2 });
    const [one, two] = [follow(feed), follow(feed)];
    await one.begun();
    await two.begun();
    await expect(follow(feed).over).rejects.toMatchObject({ code: "too_many_readers" });
    one.left.abort(new Error("left"));
    await expect(one.over).rejects.toThrow("left");
    await follow(feed).begun();
  });

  it("ends when the engine stops", async () => {
    const { feed, stopping } = await feeding({ streamKeepaliveMs: 60_000 });
    const follower = follow(feed);
    await follower.begun();
    stopping.abort(new HoldfastError("shutting_down"));
    await expect(follower.over).rejects.toMatchObject({ code: "shutting_down" });
  });
});

describe("a cursor that can't be served", () => {
  const prune = {
    kind: "prune",
    keysBefore: 0,
    goneBefore: 0,
    alertsBefore: 0,
    deliveriesBefore: 0,
    limit: 100,
  } as const;

  it("because its events were deleted is rejected with the oldest available cursor, never skipped", async () => {
    const { feed, tell, store } = await feeding();
    await tell({ at: 10 }, 5);
    await tell({ at: 1_000 }, 5);
    await store.commit({ changes: [{ ...prune, eventsBefore: 100 }] });
    const dropped = { code: "events_dropped", floor: "5" };
    await expect(feed.list({ cursor: "4", limit: 10 })).rejects.toMatchObject(dropped);
    await expect(follow(feed, { cursor: "4" }).over).rejects.toMatchObject(dropped);
    expect((await feed.list({ cursor: "5", limit: 10 })).items.map(({ seq }) => seq)).toEqual(upTo(10, 6));
    const whole = follow(feed, { cursor: "0" });
    await eventually(() => expect(whole.seqs()).toEqual(upTo(10, 6)));
    // A listing from new to old can't miss an event: older ones are deleted.
    expect((await feed.list({ cursor: "4", order: "newest", limit: 10 })).items).toEqual([]);
  });

  it("because its events are deleted during the read ends the stream", async () => {
    const { feed, tell, store } = await feeding();
    await tell({ at: 10 }, 500);
    const slow = feed.follow({ cursor: "1" }, new AbortController().signal);
    await slow.next();
    await slow.next();
    await tell({ at: 1_000 });
    await store.commit({ changes: [{ ...prune, eventsBefore: 100, limit: 1_000 }] });
    await expect(slow.next()).rejects.toMatchObject({ code: "events_dropped" });
  });

  it("because it is ahead of the timeline or malformed is rejected", async () => {
    const { feed, tell } = await feeding();
    await tell();
    for (const cursor of ["2", "x", "-1", "1.5", ""]) {
      await expect(feed.list({ cursor, limit: 10 })).rejects.toMatchObject({ code: "invalid_request" });
      await expect(follow(feed, { cursor }).over).rejects.toMatchObject({ code: "invalid_request" });
    }
  });
});

describe("a deleted sandbox", () => {
  it("is found by its id only, as long as it has events", async () => {
    const { feed, tell } = await feeding();
    await tell({ sandboxId: other });
    expect((await feed.list({ ref: other, limit: 10 })).items).toHaveLength(1);
    expect(await codeOf(feed.list({ ref: "gone", limit: 10 }))).toBe("sandbox_not_found");
    expect(await codeOf(feed.list({ ref: "sbx_0000000000000009", limit: 10 }))).toBe("sandbox_not_found");
  });
});

import { HoldfastError } from "@holdfast/contract";
import type { EngineApi, EventPage, EventQuery } from "@holdfast/engine";
import { describe, expect, test } from "vitest";
import { anEvent, serve, until } from "../testing/double.ts";

const NDJSON = { headers: { accept: "application/x-ndjson" } };
const SSE = { headers: { accept: "text/event-stream" } };

const page = (cursor: number, ...seqs: number[]): EventPage => ({
  cursor: String(cursor),
  events: seqs.map((seq) => anEvent({ seq })),
});

/** An engine whose timeline consists of these pages, followed by silence until its reader disconnects. */
function timeline(pages: readonly EventPage[], { ends = false } = {}) {
  const asked: EventQuery[] = [];
  const state = { taken: 0, isOver: false };
  async function* followEvents(query: EventQuery, signal: AbortSignal) {
    asked.push(query);
    try {
      for (const each of pages) {
        yield each;
        state.taken += 1;
      }
      if (!ends)
        await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    } finally {
      state.isOver = true;
    }
  }
  return { followEvents, asked, state };
}

async function linesOf(response: Response): Promise<Record<string, unknown>[]> {
  const text = await response.text();
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line));
}

describe("a list of events", () => {
  const listing = () => {
    const asked: unknown[] = [];
    const events: EngineApi["events"] = async (filter) => {
      asked.push(filter);
      return { items: [anEvent()], nextCursor: null };
    };
    return { events, asked };
  };

  test("accepts every filter", async () => {
    const { events, asked } = listing();
    await using server = await serve({ events });
    const query =
      "exec=exe_1&drive=data&type=sandbox.oom,exec.ended&type=audit.done&since=2026-01-01T00:00:00Z&until=2026-01-02&order=newest&limit=7&cursor=12";
    expect((await server.fetch(`/v1/events?sandbox=box&${query}`)).status).toBe(200);
    expect((await server.fetch(`/v1/sandboxes/box/events?${query}`)).status).toBe(200);
    const wanted = {
      ref: "box",
      execId: "exe_1",
      drive: "data",
      types: ["sandbox.oom", "exec.ended", "audit.done"],
      since: Date.UTC(2026, 0, 1),
      until: Date.UTC(2026, 0, 2),
      order: "newest",
      limit: 7,
      cursor: "12",
    };
    expect(asked).toEqual([wanted, wanted]);
  });

  test.each([
    "since=yesterday",
    "since=2026-01-01T00:00:00",
    "until=2026-13-01",
    "since=",
    "type=nothing",
    "order=random",
    "exec=../x",
  ])("with %s is refused, naming the invalid field", async (query) => {
    await using server = await serve({ events: async () => expect.unreachable() });
    const response = await server.fetch(`/v1/events?${query}`);
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as { error: { message: string } };
    expect(error.message).toContain(query.split("=", 1)[0]);
  });

  test("accepts a time with any offset", async () => {
    const { events, asked } = listing();
    await using server = await serve({ events });
    await server.fetch("/v1/events?since=2026-01-01T02:00:00%2B02:00&until=2026-01-01T00:00:00.5Z");
    expect(asked).toMatchObject([{ since: Date.UTC(2026, 0, 1), until: Date.UTC(2026, 0, 1) + 500 }]);
  });

  test("names no host path, and stays valid JSON where one was quoted", async () => {
    const message = 'can\'t open "/srv/state/x y"';
    const events = async () => ({
      items: [anEvent({ message, data: { deep: [message] } })],
      nextCursor: null,
    });
    await using server = await serve({ events }, { hostPaths: ["/srv/state"] });
    const { items } = (await (await server.fetch("/v1/events")).json()) as { items: unknown[] };
    const clean = 'can\'t open "<host path> y"';
    expect(items).toMatchObject([{ message: clean, data: { deep: [clean] } }]);
  });
});

describe("the timeline as a stream", () => {
  test("is one record per line, each with the cursor after it", async () => {
    const { followEvents } = timeline([page(3), page(9, 4, 5), page(12)], { ends: true });
    await using server = await serve({ followEvents });
    const response = await server.fetch("/v1/events", NDJSON);
    expect(response.headers.get("content-type")).toBe("application/x-ndjson; charset=utf-8");
    expect(await linesOf(response)).toEqual([
      { type: "start", cursor: "3" },
      { type: "event", cursor: "4", event: anEvent({ seq: 4 }) },
      { type: "event", cursor: "5", event: anEvent({ seq: 5 }) },
      { type: "keepalive", cursor: "12" },
      { type: "end", error: null },
    ]);
  });

  test("is server-sent events with the seq as id and the type as event", async () => {
    const { followEvents } = timeline([page(3), page(4, 4), page(6)], { ends: true });
    await using server = await serve({ followEvents });
    const response = await server.fetch("/v1/sandboxes/box/events", SSE);
    expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
    expect((await response.text()).split("\n\n").map((block) => block.split("\n"))).toEqual([
      ["id: 3", "event: start", 'data: {"type":"start","cursor":"3"}'],
      ["id: 4", "event: sandbox.ready", `data: ${JSON.stringify(anEvent({ seq: 4 }))}`],
      ["id: 6", "event: keepalive", 'data: {"type":"keepalive","cursor":"6"}'],
      ["event: end", 'data: {"type":"end","error":null}'],
      [""],
    ]);
  });

  test("resumes from the cursor, or preferably from the last id that a browser has received", async () => {
    const { followEvents, asked } = timeline([page(3)], { ends: true });
    await using server = await serve({ followEvents });
    await (await server.fetch("/v1/events?cursor=2", NDJSON)).text();
    const headers = { ...SSE.headers, "last-event-id": "7" };
    await (await server.fetch("/v1/events?cursor=2&type=sandbox.oom&sandbox=box", { headers })).text();
    expect(asked).toMatchObject([{ cursor: "2" }, { cursor: "7", types: ["sandbox.oom"], ref: "box" }]);
  });

  test("that cannot start is an error response", async () => {
    // biome-ignore lint/correctness/useYield: it fails before there is anything to give.
    async function* followEvents(): AsyncGenerator<EventPage> {
      throw new HoldfastError("events_dropped", { floor: "41" });
    }
    await using server = await serve({ followEvents });
    const response = await server.fetch("/v1/events?cursor=2", NDJSON);
    expect(response.status).toBe(410);
    expect(await response.json()).toMatchObject({ error: { code: "events_dropped", floor: "41" } });
    const backwards = await server.fetch("/v1/events?order=newest", NDJSON);
    expect(backwards.status).toBe(400);
  });

  test("that fails later reports it in its last record", async () => {
    async function* followEvents(): AsyncGenerator<EventPage> {
      yield page(3);
      throw new HoldfastError("events_dropped", { floor: "41" });
    }
    await using server = await serve({ followEvents });
    const records = await linesOf(await server.fetch("/v1/events", NDJSON));
    expect(records).toMatchObject([
      { type: "start" },
      { type: "end", error: { code: "events_dropped", floor: "41" } },
    ]);
  });

  test("ends at its maximum age without an end record, so that its reader reconnects", async () => {
    async function* followEvents(): AsyncGenerator<EventPage> {
      for (let cursor = 1; ; cursor++) {
        yield page(cursor);
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    }
    await using server = await serve({ followEvents }, { numbers: { streamMaxMs: 100 } });
    const records = await linesOf(await server.fetch("/v1/events", NDJSON));
    expect(records.at(-1)).toMatchObject({ type: "keepalive" });
  });

  test("releases its slot when its reader leaves, and when the server closes", async () => {
    const left = timeline([page(3)]);
    await using server = await serve(left);
    const leaving = new AbortController();
    const response = await server.fetch("/v1/events", { ...NDJSON, signal: leaving.signal });
    await response.body?.getReader().read();
    leaving.abort();
    await until(() => left.state.isOver);

    const open = timeline([page(3)]);
    await using closing = await serve(open);
    const streamed = await closing.fetch("/v1/events", NDJSON);
    const closed = closing.app.close();
    expect(await linesOf(streamed)).toMatchObject([
      { type: "start" },
      { type: "end", error: { code: "shutting_down" } },
    ]);
    await closed;
    expect(open.state.isOver).toBe(true);
  });

  test("is read at the reader's pace, and ended if the reader stalls", async () => {
    const big = anEvent({ message: "x".repeat(65_536) });
    const pages = Array.from({ length: 2_000 }, (_, at) => ({ cursor: String(at), events: [big] }));
    const flood = timeline(pages);
    await using server = await serve(flood, { numbers: { httpStallMs: 1_000 } });
    const response = await server.fetch("/v1/events", NDJSON);
    for (let seen = -1; seen !== flood.state.taken; ) {
      seen = flood.state.taken;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    expect(flood.state.taken).toBeLessThan(pages.length);
    await until(() => flood.state.isOver);
    await response.body?.cancel().catch(() => undefined);
  });
});

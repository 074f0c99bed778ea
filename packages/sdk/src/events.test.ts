import { describe, expect, it } from "vitest";
import { type Event, EventsDroppedError, type FollowOptions } from "./index.ts";
import { failure, useBench } from "./testing/bench.ts";
import { anError, anEvent, drop, json, lines, refuse } from "./testing/faulty-server.ts";

const bench = useBench();
const NONE = { items: [], nextCursor: null };
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}${url.search}`);
const cursors = () => bench.server.seen.map(({ url }) => url.searchParams.get("cursor"));

const start = (cursor: number) => ({ type: "start", cursor: String(cursor) });
const event = (seq: number) => ({ type: "event", cursor: String(seq), event: anEvent({ seq }) });
const keepalive = (cursor: number) => ({ type: "keepalive", cursor: String(cursor) });
const END = { type: "end", error: null };
const ending = (status: number, code: string, facts: object = {}) => ({
  type: "end",
  error: anError(status, code, facts),
});

async function followed(options: FollowOptions = {}): Promise<number[]> {
  const seqs: number[] = [];
  for await (const { seq } of bench.holdfast.events.follow(options)) seqs.push(seq);
  return seqs;
}

describe("a list of events", () => {
  it("supports every filter", async () => {
    bench.server.answer(json(200, NONE));
    await bench.holdfast.events.list({
      sandbox: "box",
      drive: "data",
      exec: "exe_1",
      types: ["exec.ended", "sandbox.oom"],
      since: new Date(Date.UTC(2026, 0, 1)),
      until: "2026-01-02T00:00:00+01:00",
      order: "newest",
      limit: 3,
      cursor: "9",
    });
    expect(requests()).toEqual([
      "GET /v1/events?sandbox=box&drive=data&exec=exe_1&type=exec.ended&type=sandbox.oom&since=2026-01-01T00%3A00%3A00.000Z&until=2026-01-02T00%3A00%3A00%2B01%3A00&order=newest&limit=3&cursor=9",
    ]);
  });

  it("of a sandbox handle is filtered by its id", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, NONE));
    await box.events({ types: ["sandbox.oom"] });
    expect(requests()).toEqual(["GET /v1/events?sandbox=sbx_0000000000000000&type=sandbox.oom"]);
  });
});

describe("following", () => {
  it("yields each event once, across connections that break, end early, or end within a record", async () => {
    const half = JSON.stringify(event(4)).slice(0, 20);
    bench.server.answer(
      lines([start(1), event(2)], "cut"),
      drop,
      lines([start(2), event(3)]),
      (_, response) => {
        response.writeHead(200, { "content-type": "application/x-ndjson" });
        response.write(`${JSON.stringify(start(3))}\n${half}`, () => response.socket?.destroy());
      },
      refuse(503, "starting"),
      lines([start(3), event(4), END]),
    );
    expect(await followed({ cursor: "1" })).toEqual([2, 3, 4]);
    expect(cursors()).toEqual(["1", "2", "2", "3", "3", "3"]);
  });

  it("resumes at its start if nothing was received, and at a keepalive's position", async () => {
    bench.server.answer(
      lines([start(7)], "cut"),
      lines([start(7), keepalive(12)], "cut"),
      lines([start(12), END]),
    );
    expect(await followed({ sandbox: "box", types: ["sandbox.oom"] })).toEqual([]);
    expect(requests()).toEqual([
      "GET /v1/events?sandbox=box&type=sandbox.oom",
      "GET /v1/events?sandbox=box&type=sandbox.oom&cursor=7",
      "GET /v1/events?sandbox=box&type=sandbox.oom&cursor=12",
    ]);
    expect(bench.server.seen[0]?.headers.accept).toBe("application/x-ndjson");
  });

  it("reports when it starts and when the connection is lost", async () => {
    bench.server.answer(lines([start(1)], "cut"), drop, lines([start(1), END]));
    const states: string[] = [];
    await followed({ onConnection: (state) => states.push(state) });
    expect(states).toEqual(["open", "lost", "open"]);
  });

  it("resumes after a server shutdown", async () => {
    bench.server.answer(
      lines([start(1), event(2), ending(503, "shutting_down")]),
      lines([start(2), event(3), END]),
    );
    expect(await followed({ cursor: "1" })).toEqual([2, 3]);
  });

  it("ends at `until`, or with the reason of the caller's signal", async () => {
    bench.server.answer(lines([start(1), event(2), END]));
    expect(await followed({ until: new Date() })).toEqual([2]);
    bench.server.answer(lines([start(1), event(2)], "silence"));
    const leaving = new AbortController();
    const seen: Event[] = [];
    const reading = (async () => {
      for await (const each of bench.holdfast.events.follow({ signal: leaving.signal })) {
        seen.push(each);
        leaving.abort(new Error("enough"));
      }
    })();
    await expect(reading).rejects.toThrow("enough");
    expect(seen).toHaveLength(1);
  });

  it("gives up on a server that only sends a start, or is unreachable for too long", async () => {
    bench.server.answer(lines([start(1)]));
    expect((await failure(followed())).code).toBe("connection");
  }, 30_000);

  it("throws if events were dropped, with the oldest complete cursor, or skips to it", async () => {
    const dropped = refuse(410, "events_dropped", { floor: "40" });
    bench.server.answer(dropped);
    const error = await failure(followed({ cursor: "3" }));
    expect(error).toBeInstanceOf(EventsDroppedError);
    expect((error as EventsDroppedError).floor).toBe("40");

    bench.server.answer(dropped, lines([start(40), event(41), END]));
    expect(await followed({ cursor: "3", onDropped: "skip" })).toEqual([41]);

    bench.server.answer(
      lines([start(3), event(4), ending(410, "events_dropped", { floor: "40" })]),
      lines([start(40), event(41), END]),
    );
    expect(await followed({ cursor: "3", onDropped: "skip" })).toEqual([4, 41]);
  });

  it("throws errors that are not retryable immediately", async () => {
    bench.server.answer(refuse(404, "sandbox_not_found"));
    expect((await failure(followed({ sandbox: "nobody" }))).code).toBe("sandbox_not_found");
    bench.server.answer(json(200, NONE));
    expect((await failure(followed())).code).toBe("unexpected_response");
    bench.server.answer((_, response) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      response.end("nonsense\n");
    });
    expect((await failure(followed())).code).toBe("unexpected_response");
  });
});

import { describe, expect, it } from "vitest";
import { failure, useBench } from "./testing/bench.ts";
import { drop, json } from "./testing/faulty-server.ts";

const bench = useBench();
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}${url.search}`);
const NONE = { items: [], nextCursor: null };
const SANDBOX = "/v1/sandboxes/sbx_0000000000000000";

describe("the activity of a sandbox", () => {
  it("is requested by its id, with a retry after a lost response", async () => {
    const box = await bench.box();
    bench.server.answer(drop, json(200, { at: "now" }));
    expect(await box.resources()).toEqual({ at: "now" });
    await box.diagnose();
    await box.diagnose({ windowMs: 500 });
    await box.story({ limit: 9 });
    expect(requests()).toEqual([
      `GET ${SANDBOX}/resources`,
      `GET ${SANDBOX}/resources`,
      `GET ${SANDBOX}/diagnosis`,
      `GET ${SANDBOX}/diagnosis?windowMs=500`,
      `GET ${SANDBOX}/logs?limit=9`,
    ]);
  });

  it("is returned for all sandboxes in one response", async () => {
    bench.server.answer(json(200, { at: "now", items: [{ name: "box" }] }));
    expect(await bench.holdfast.sandboxes.usage()).toEqual([{ name: "box" }]);
    expect(requests()).toEqual(["GET /v1/resources"]);
  });
});

describe("a restart", () => {
  it("resolves with the new state, and is never retried", async () => {
    const box = await bench.box();
    bench.server.answer(json(200, { ...box.info, generation: 7 }));
    expect((await box.restart()).generation).toBe(7);
    expect(box.info.generation).toBe(7);
    bench.server.answer(drop);
    const { code, dispatched } = await failure(box.restart());
    expect({ code, dispatched }).toEqual({ code: "connection", dispatched: "unknown" });
    expect(requests()).toEqual([`POST ${SANDBOX}/restart`, `POST ${SANDBOX}/restart`]);
  });
});

describe("alerts", () => {
  it("list firing or all alerts; deliveries can be listed and retried", async () => {
    bench.server.answer(json(200, NONE));
    await bench.holdfast.alerts.list();
    await bench.holdfast.alerts.list({ cleared: true });
    await bench.holdfast.alerts.deliveries({ state: "dead", limit: 5, cursor: "c" });
    await bench.holdfast.alerts.retry("dlv/1");
    expect(requests()).toEqual([
      "GET /v1/alerts",
      "GET /v1/alerts?cleared=true",
      "GET /v1/alerts/deliveries?state=dead&limit=5&cursor=c",
      "POST /v1/alerts/deliveries/dlv%2F1/retry",
    ]);
  });
});

describe("the server's log", () => {
  it("supports every filter", async () => {
    bench.server.answer(json(200, NONE));
    await bench.holdfast.logs({
      sandbox: "box",
      drive: "data",
      exec: "exe_1",
      request: "req_1",
      level: "warn",
      text: "a b",
      since: new Date(Date.UTC(2026, 0, 1)),
      limit: 2,
      cursor: "1.2",
    });
    expect(requests()).toEqual([
      "GET /v1/logs?sandbox=box&drive=data&exec=exe_1&request=req_1&level=warn&text=a%20b&limit=2&cursor=1.2&since=2026-01-01T00%3A00%3A00.000Z",
    ]);
  });
});

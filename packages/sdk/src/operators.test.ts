import { describe, expect, it } from "vitest";
import { failure, useBench } from "./testing/bench.ts";
import { drop, json } from "./testing/faulty-server.ts";

const bench = useBench();
const requests = () => bench.server.seen.map(({ method, url }) => `${method} ${url.pathname}${url.search}`);
const NONE = { items: [], nextCursor: null };
const SANDBOX = "/v1/sandboxes/sbx_0000000000000000";

describe("what a sandbox is doing", () => {
  it("is asked for by its id, also again where the answer was lost", async () => {
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

  it("is one answer for all of them", async () => {
    bench.server.answer(json(200, { at: "now", items: [{ name: "box" }] }));
    expect(await bench.holdfast.sandboxes.usage()).toEqual([{ name: "box" }]);
    expect(requests()).toEqual(["GET /v1/resources"]);
  });
});

describe("a restart", () => {
  it("resolves with the sandbox as it is then, and is never repeated by itself", async () => {
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
  it("are those that fire, or all; their deliveries can be listed and sent again", async () => {
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
  it("is asked for by all that it can be filtered by", async () => {
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

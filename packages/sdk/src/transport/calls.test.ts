import { describe, expect, it } from "vitest";
import { ConflictError, ConnectionError, Holdfast, NotFoundError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { anExec, aSandbox, drop, FaultyServer, json, refuse, truncate } from "../testing/faulty-server.ts";
import { Calls } from "./calls.ts";
import { HttpTransport } from "./http.ts";

const bench = useBench();

describe("a call", () => {
  it("is retried after a 503, but not after other errors", async () => {
    const box = await bench.box();
    bench.server.answer(
      refuse(503, "link_lost", { dispatched: "unknown" }),
      refuse(503, "capacity"),
      json(200, anExec()),
    );
    await box.exec("true");
    expect(bench.server.seen).toHaveLength(3);
    bench.server.seen.length = 0;
    bench.server.answer(refuse(409, "wrong_state"));
    expect(await failure(box.exec("true"))).toBeInstanceOf(ConflictError);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("that is not idempotent is retried only if it was not dispatched", async () => {
    const run = await bench.run();
    bench.server.answer(drop);
    expect(await failure(run.signal("SIGINT"))).toMatchObject({ code: "connection", dispatched: "unknown" });
    expect(bench.server.seen).toHaveLength(1);
    bench.server.seen.length = 0;
    bench.server.answer(refuse(503, "link_lost", { dispatched: "unknown" }));
    expect(await failure(run.signal("SIGINT"))).toBeInstanceOf(UnavailableError);
    expect(bench.server.seen).toHaveLength(1);
    bench.server.seen.length = 0;
    bench.server.answer(refuse(503, "link_lost", { dispatched: "no" }), json(200, anExec()));
    await run.signal("SIGINT");
    expect(bench.server.seen).toHaveLength(2);
  });

  it("creates with the same idempotency key on every attempt", async () => {
    bench.server.answer(drop, refuse(503, "shutting_down"), json(201, aSandbox()));
    await bench.holdfast.sandboxes.create({ image: "host" });
    const keys = bench.server.seen.map(({ headers }) => headers["idempotency-key"]);
    expect(keys).toHaveLength(3);
    expect(new Set(keys).size).toBe(1);
    expect(keys[0]).toBeTruthy();
  });

  it("survives a restart of the server", async () => {
    const box = await bench.box();
    const { port } = bench.server;
    await bench.server.stop();
    setTimeout(async () => {
      bench.server = await FaultyServer.start(port);
      bench.server.answer(json(200, anExec({ exitCode: 5 })));
    }, 1_500);
    expect((await box.exec("true")).exitCode).toBe(5);
  });

  it("that waited long still has its whole outage budget when the server goes away", async () => {
    const patience = { outageMs: 400, strangerMs: 400, busyMs: 400 };
    const transport = new HttpTransport();
    const calls = new Calls({
      url: bench.server.url,
      apiKey: "x",
      timeoutMs: 5_000,
      transport,
      patience,
    });
    const dropLate: typeof drop = (_, response) => void setTimeout(() => response.socket?.destroy(), 600);
    bench.server.answer(dropLate, drop, drop, json(200, { well: true }));
    const call = { method: "GET", path: "/v1/stats", idempotent: true } as const;
    expect(await calls.json(call)).toEqual({ well: true });
    calls.close();
  });

  it("gives up soon on a server that never answered, and reports that nothing was dispatched", async () => {
    const { url } = bench.server;
    await bench.server.stop();
    const error = await failure(new Holdfast({ url, apiKey: "x" }).sandboxes.list());
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ code: "connection", dispatched: "no", retryable: true, method: "GET" });
    expect(error.hint).toContain("npm start");
    bench.server = await FaultyServer.start();
  });

  it("without a response ends at its timeout", async () => {
    bench.server.answer(() => {});
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 50 });
    expect(await failure(hasty.stats())).toMatchObject({ code: "timeout", dispatched: "unknown" });
    hasty.close();
  });

  it("that finds a dead connection does not reuse other idle connections", async () => {
    const hasty = new Holdfast({ url: bench.server.url, apiKey: "x", timeoutMs: 1_000, outageMs: 9_000 });
    const ports: (number | undefined)[] = [];
    const note: typeof drop = (_, response) => void ports.push(response.socket?.remotePort);
    let arrived: () => void = () => {};
    const both = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    bench.server.answer(async (request, response) => {
      note(request, response);
      if (ports.length === 2) arrived();
      await both;
      return json(200, {})(request, response);
    });
    await Promise.all([hasty.stats(), hasty.stats()]);
    const kept = ports.splice(0);
    bench.server.answer(note, (request, response) => {
      note(request, response);
      return json(200, {})(request, response);
    });
    await hasty.stats();
    expect(kept).toContain(ports[0]);
    expect(kept).not.toContain(ports[1]);
    hasty.close();
  });

  it("copies everything from the server's response to its error", async () => {
    bench.server.answer(
      refuse(404, "sandbox_not_found", {
        sandboxId: "sbx_x",
        operation: "getSandbox",
        cause: { code: "a", message: "b" },
      }),
    );
    const error = await failure(bench.holdfast.sandboxes.get("nobody"));
    expect(error).toBeInstanceOf(NotFoundError);
    expect(error).toMatchObject({
      name: "NotFoundError",
      code: "sandbox_not_found",
      message: "said sandbox_not_found",
      hint: "do better",
      status: 404,
      method: "GET",
      url: `${bench.server.url}/v1/sandboxes/nobody`,
      requestId: "req_1",
      sandboxId: "sbx_x",
      operation: "getSandbox",
      cause: { code: "a", message: "b" },
    });
    expect(error.body).toContain("do better");
  });

  it("distinguishes responses of other servers from Holdfast's", async () => {
    bench.server.answer((_, response) => void response.writeHead(404).end("<h1>nginx</h1>"));
    expect(await failure(bench.holdfast.sandboxes.get("x"))).toMatchObject({
      code: "unexpected_response",
      body: "<h1>nginx</h1>",
    });
  });

  it("uses the caller's fetch, with the same retries", async () => {
    const viaFetch = new Holdfast({ url: bench.server.url, apiKey: "x", fetch: globalThis.fetch });
    bench.server.answer(json(200, aSandbox()), drop, truncate(anExec()), json(200, anExec({ exitCode: 9 })));
    const box = await viaFetch.sandboxes.get("box");
    expect((await box.exec("true")).exitCode).toBe(9);
    expect(bench.server.seen).toHaveLength(4);
  });
});

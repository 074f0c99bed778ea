import { describe, expect, it } from "vitest";
import { AuthenticationError, ConnectionError, Holdfast, ServerError, UnavailableError } from "../index.ts";
import { failure, useBench } from "../testing/bench.ts";
import { type Answer, anError, aSandbox, drop, json } from "../testing/faulty-server.ts";

const bench = useBench();
const base = "/v1/sandboxes/sbx_0000000000000000/ports/3000";
const port = async () => (await bench.box()).port(3000);

/** Answers as the program in the sandbox. */
const says =
  (status: number, body: string, headers: Record<string, string> = {}): Answer =>
  (_, response) => {
    response.writeHead(status, headers);
    response.end(body);
  };

/** Answers with an error of Holdfast itself, marked with its header. */
const refuse =
  (status: number, code: string, facts: object = {}): Answer =>
  ({ method }, response) => {
    const text = JSON.stringify({ error: anError(status, code, facts) });
    response.writeHead(status, { "content-type": "application/json", "x-holdfast-error": code });
    response.end(method === "HEAD" ? undefined : text);
  };

describe("a port of a sandbox", () => {
  it("has a URL for callers with the key", async () => {
    const inside = await port();
    expect(inside.number).toBe(3000);
    expect(inside.url()).toBe(`${bench.server.url}${base}/`);
    expect(inside.url("/a b?x=1")).toBe(`${bench.server.url}${base}/a%20b?x=1`);
    expect(bench.server.seen).toHaveLength(0);
  });

  it("is requested with the key in a separate header, and forwards the program's Authorization", async () => {
    const inside = await port();
    bench.server.answer(says(201, "made", { "x-own": "1" }));
    const response = await inside.fetch("/things?x=%41", {
      method: "POST",
      body: "hello",
      headers: { authorization: "Basic own" },
    });
    expect([response.status, response.headers.get("x-own"), await response.text()]).toEqual([
      201,
      "1",
      "made",
    ]);
    const [seen] = bench.server.seen;
    expect(seen).toMatchObject({
      method: "POST",
      headers: { "x-holdfast-key": "hf_test", authorization: "Basic own" },
    });
    expect(`${seen?.url.pathname}${seen?.url.search}`).toBe(`${base}/things?x=%41`);
    expect(String(seen?.body)).toBe("hello");
  });

  it.each(["/../../../stats", "../../x", "/%2e%2e/3001/", "/a/../../3001"])(
    "rejects the path %s, which would reach the API with the key",
    async (path) => {
      const inside = await port();
      await expect(inside.fetch(path)).rejects.toThrow("leads outside the port");
      expect(() => inside.url(path)).toThrow("leads outside the port");
      expect(bench.server.seen).toHaveLength(0);
    },
  );

  it.each([404, 500, 502, 503])("returns a response with status %i unchanged", async (status) => {
    const inside = await port();
    bench.server.answer(says(status, JSON.stringify({ error: anError(status, "port_closed") })));
    const response = await inside.fetch("/");
    expect(response.status).toBe(status);
    await response.text();
    expect(bench.server.seen).toHaveLength(1);
  });

  it("returns redirects without following them, so that the key is not sent there", async () => {
    const inside = await port();
    bench.server.answer(says(302, "", { location: `${bench.server.url}/elsewhere` }));
    const response = await inside.fetch("/");
    expect([response.status, response.headers.get("location")]).toEqual([
      302,
      `${bench.server.url}/elsewhere`,
    ]);
    expect(bench.server.seen).toHaveLength(1);
  });

  it("streams both bodies", async () => {
    const inside = await port();
    const more = Promise.withResolvers<void>();
    bench.server.answer(async (_, response) => {
      response.write("first");
      await more.promise;
      response.end("second");
    });
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const piece of ["a", "b", "c"]) controller.enqueue(Buffer.from(piece));
        controller.close();
      },
    });
    const response = await inside.fetch("/", { method: "PUT", body });
    const reader = response.body?.getReader();
    const next = async () => Buffer.from((await reader?.read())?.value ?? []).toString();
    expect(await next()).toBe("first");
    more.resolve();
    expect(await next()).toBe("second");
    expect(String(bench.server.seen[0]?.body)).toBe("abc");
  });
});

describe("a failure to reach a port", () => {
  it.each([
    [502, "port_closed", ServerError],
    [502, "port_cut", ServerError],
    [504, "port_silent", ServerError],
    [401, "unauthorized", AuthenticationError],
    [429, "too_many_streams", UnavailableError],
  ])("is a typed error: %i %s", async (status, code, Class) => {
    const inside = await port();
    bench.server.answer(refuse(status, code, { dispatched: "unknown" }));
    const error = await failure(inside.fetch("/", { method: "POST", body: "x" }));
    expect(error).toBeInstanceOf(Class);
    expect(error).toMatchObject({ code, status, dispatched: "unknown", requestId: "req_1" });
    expect(bench.server.seen).toHaveLength(1);
  });

  it("is also reported for HEAD, which has no body", async () => {
    const inside = await port();
    bench.server.answer(refuse(502, "port_closed"));
    expect(await failure(inside.fetch("/", { method: "HEAD" }))).toMatchObject({
      code: "port_closed",
      status: 502,
    });
  });

  it("is retried if harmless, and thrown otherwise", async () => {
    const inside = await port();
    bench.server.answer(drop, refuse(503, "wake_timeout", { dispatched: "unknown" }), says(200, "ok"));
    expect(await (await inside.fetch("/")).text()).toBe("ok");
    expect(bench.server.seen).toHaveLength(3);
    bench.server.seen.length = 0;
    bench.server.answer(drop, says(200, "ok"));
    const error = await failure(inside.fetch("/", { method: "POST", body: "x" }));
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error.dispatched).toBe("unknown");
    expect(bench.server.seen).toHaveLength(1);
  });

  it("does not send a stream twice", async () => {
    const inside = await port();
    bench.server.answer(refuse(503, "wake_timeout"), says(200, "ok"));
    const body = new Blob(["x"]).stream();
    expect((await failure(inside.fetch("/", { method: "POST", body }))).code).toBe("wake_timeout");
    expect(bench.server.seen).toHaveLength(1);
  });

  it("does not hide invalid arguments, which throw as with fetch", async () => {
    const inside = await port();
    await expect(inside.fetch("/", { method: "GET", body: "x" })).rejects.toBeInstanceOf(TypeError);
    expect(bench.server.seen).toHaveLength(0);
  });

  it("stops waiting when the signal fires", async () => {
    const inside = await port();
    bench.server.answer(() => {});
    await expect(inside.fetch("/", { signal: AbortSignal.timeout(30) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });
});

it("ports use the caller's fetch", async () => {
  const asked: string[] = [];
  const own: typeof fetch = (input, init) => {
    asked.push(String(input));
    return fetch(input, init);
  };
  const holdfast = new Holdfast({ url: bench.server.url, apiKey: "hf_test", fetch: own });
  bench.server.answer(json(200, aSandbox()), says(200, "ok"));
  const box = await holdfast.sandboxes.get("box");
  await (await box.port(3000).fetch("x")).text();
  expect(asked.at(-1)).toBe(`${bench.server.url}${base}/x`);
});

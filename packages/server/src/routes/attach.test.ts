import { createConnection, type Socket } from "node:net";
import { HoldfastError } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { UNSENT_BYTES } from "../streams/attached-socket.ts";
import { anExec, aStats, authorized, KEY, serve, type TestServer, until } from "../testing/double.ts";
import { Echo } from "../testing/echo.ts";
import { FLOOD_RECORD_BYTES, Flood } from "../testing/flood.ts";
import type { Frame } from "../testing/frames.ts";
import { attach, socketUrl } from "../testing/viewer.ts";

const path = "/v1/execs/exe_1/attach";
const urlOf = (server: TestServer, query = "") => socketUrl(server.url, path + query);
const keyProtocol = (key: string) => `holdfast.key.${Buffer.from(key).toString("base64url")}`;
const text = (frames: readonly Frame[]) =>
  Buffer.concat(frames.map((frame) => (frame.kind === "json" ? Buffer.alloc(0) : frame.data)));

/** Opens a connection and requests an upgrade. */
function upgrade(server: TestServer, headers: Record<string, string> = {}, to = path): Socket {
  const { hostname, port } = new URL(server.url);
  const socket = createConnection(Number(port), hostname);
  const lines = Object.entries({
    host: "a",
    connection: "Upgrade",
    upgrade: "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    ...headers,
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.write(`GET ${to} HTTP/1.1\r\n${lines.join("")}\r\n`);
  return socket;
}

/** Returns the whole response, up to the end of the connection. */
async function answerTo(socket: Socket): Promise<string> {
  let answer = "";
  for await (const chunk of socket) answer += chunk;
  return answer;
}

/** Returns the response up to the end of its headers; the rest is not read. */
async function headersTo(socket: Socket): Promise<string> {
  let answer = "";
  for await (const chunk of socket.iterator({ destroyOnReturn: false })) {
    answer += chunk;
    if (answer.includes("\r\n\r\n")) break;
  }
  return answer;
}

describe("a caller may attach", () => {
  test("with a key in its header", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    await until(() => viewer.records.length === 1);
    expect(viewer.records).toEqual([
      { type: "start", cursor: "exe_1.k.0", exec: anExec({ status: "running" }) },
    ]);
    expect(viewer.socket.protocol).toBe("");
  });

  test("from a browser with the key as subprotocol, which the response does not repeat", async () => {
    await using server = await serve({ execs: new Echo().execs });
    using viewer = await attach(urlOf(server), { protocols: ["holdfast.v1", keyProtocol(KEY)] });
    expect(viewer.socket.protocol).toBe("holdfast.v1");
    await until(() => viewer.records.length === 1);
  });

  test.each([
    ["no key", {}],
    ["a wrong key", { authorization: "Bearer nope" }],
    ["a wrong key as subprotocol", { "sec-websocket-protocol": `holdfast.v1, ${keyProtocol("nope")}` }],
    ["an empty key", { "sec-websocket-protocol": "holdfast.v1, holdfast.key." }],
    ["a cookie", { cookie: `key=${KEY}` }],
  ])("%s is a plain 401 before the upgrade", async (_name, headers) => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    const socket = upgrade(server, headers);
    const answer = await answerTo(socket);
    expect(answer).toMatch(/^HTTP\/1\.1 401 /);
    expect(answer).toContain('"code":"unauthorized"');
    expect(echo.readers).toBe(0);
  });

  test("but a key as subprotocol is accepted only for sockets", async () => {
    await using server = await serve({ execs: { get: async () => anExec() } });
    const headers = { "sec-websocket-protocol": `holdfast.v1, ${keyProtocol(KEY)}` };
    expect((await fetch(`${server.url}/v1/execs/exe_1`, { headers })).status).toBe(401);
  });
});

describe("requests that are not for a socket", () => {
  test("a request for the path without an upgrade gets an error that says so", async () => {
    await using server = await serve({});
    const response = await server.fetch(path);
    expect(response.status).toBe(400);
    expect(await response.text()).toContain("WebSocket");
  });

  test.each([
    ["another path", { upgrade: "websocket" }, "/v1/execs/exe_1"],
    ["another protocol", { upgrade: "h2c" }, "/v1/execs/exe_1"],
  ])("an upgrade to %s is served as a plain request", async (_name, headers, to) => {
    await using server = await serve({ execs: { get: async () => anExec() } });
    const socket = upgrade(server, { ...authorized, ...headers }, to);
    expect(await headersTo(socket)).toMatch(/^HTTP\/1\.1 200 /);
    socket.destroy();
  });

  test("an invalid query is a plain 400 before the upgrade", async () => {
    await using server = await serve({});
    const answer = await answerTo(upgrade(server, authorized, `${path}?stream=stdin`));
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer).toContain("query/stream");
  });
});

describe("an attached caller", () => {
  test("receives the echo of its input, and the end", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    for (const key of ["l", "s", "\n"]) viewer.socket.send(Buffer.from(key));
    await until(() => text(viewer.frames).toString() === "ls\n");
    await until(() => viewer.records.length === 4);
    expect(viewer.records.slice(1)).toEqual([1, 2, 3].map((offset) => ({ type: "accepted", offset })));
    expect(viewer.frames.at(-1)).toMatchObject({ kind: "stdout", offset: 3, timeUs: 1_000 });
    echo.end();
    expect(await viewer.closed).toMatchObject({ code: 1000 });
    expect(viewer.records.at(-1)).toEqual({ type: "end", cursor: "exe_1.k.3", exec: anExec() });
    expect(echo.calls).toEqual(["l", "s", "\n"].map((key) => ["stdin", null, key, false]));
  });

  test("shares the exec with others, each from its own cursor", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using first = await attach(urlOf(server));
    first.socket.send(Buffer.from("hello"));
    await until(() => text(first.frames).toString() === "hello");
    using second = await attach(urlOf(server, "?cursor=exe_1.k.2"));
    second.socket.send(Buffer.from("!"));
    await until(() => text(first.frames).toString() === "hello!");
    await until(() => text(second.frames).toString() === "llo!");
  });

  test("resizes and signals, in the requested order", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(JSON.stringify({ type: "resize", cols: 120, rows: 40 }));
    viewer.socket.send(Buffer.from("x"));
    viewer.socket.send(JSON.stringify({ type: "signal", signal: "SIGINT" }));
    await until(() => echo.calls.length === 3);
    expect(echo.calls).toEqual([
      ["resize", 120, 40],
      ["stdin", null, "x", false],
      ["signal", "SIGINT"],
    ]);
  });

  test("writes by offset until everything was accepted, and closes stdin", async () => {
    const echo = new Echo();
    echo.takes = 2;
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    const data = Buffer.from("abcde").toString("base64");
    viewer.socket.send(JSON.stringify({ type: "stdin", data, offset: 0, end: true }));
    await until(() => viewer.records.length === 2);
    expect(viewer.records[1]).toEqual({ type: "accepted", offset: 5 });
    expect(echo.calls).toEqual([
      ["stdin", 0, "ab", true],
      ["stdin", 2, "cd", true],
      ["stdin", 4, "e", true],
    ]);
  });

  test("is not read while the exec accepts nothing, and all of its input arrives in order", async () => {
    const written: string[] = [];
    const held = Promise.withResolvers<void>();
    await using server = await serve({
      execs: {
        output: new Echo().execs.output as never,
        writeStdin: async (_id, { data }) => {
          await held.promise;
          written.push(Buffer.from(data).toString());
          return { accepted: written.length };
        },
      },
    });
    using viewer = await attach(urlOf(server));
    const messages = Array.from({ length: 400 }, (_, index) => `${index}:`.padEnd(65_536, "x"));
    for (const message of messages) viewer.socket.send(Buffer.from(message));
    let unsent = -1;
    while (unsent !== viewer.socket.bufferedAmount) {
      unsent = viewer.socket.bufferedAmount;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    expect(unsent).toBeGreaterThan(1_000_000);
    held.resolve();
    await until(() => written.length === messages.length);
    expect(written).toEqual(messages);
  });

  test("detaches, and the exec keeps running", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(JSON.stringify({ type: "detach" }));
    expect(await viewer.closed).toMatchObject({ code: 1000 });
    expect(viewer.records.map(({ type }) => type)).toEqual(["start"]);
    await until(() => echo.readers === 0);
    expect(echo.calls).toEqual([]);
  });

  test("that disconnects stops reading", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    const viewer = await attach(urlOf(server));
    await until(() => echo.readers === 1);
    viewer.socket.close();
    await until(() => echo.readers === 0);
    expect(server.lines.filter(({ level }) => level === "error")).toEqual([]);
  });

  test("is counted while it is connected, and so are the bytes sent to it", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs, stats: async () => aStats() });
    const metrics = async () => (await server.fetch("/metrics")).text();
    const viewer = await attach(urlOf(server));
    echo.write(Buffer.from("hello"));
    await until(() => viewer.frames.length === 1);
    expect(await metrics()).toContain("holdfast_attached_sockets 1");
    expect(await metrics()).toContain('holdfast_output_bytes_total{format="attach"} 5');
    echo.end();
    await viewer.closed;
    await until(() => echo.readers === 0);
    await expect.poll(metrics, { timeout: 15_000 }).toContain("holdfast_attached_sockets 0");
  });
});

describe("errors while attached", () => {
  test.each([
    ["output_dropped", 4410],
    ["exec_not_found", 4404],
    ["too_many_readers", 4429],
    ["link_lost", 4503],
  ] as const)("%s is reported, and the socket closed with its code", async (code, close) => {
    await using server = await serve({
      execs: {
        // biome-ignore lint/correctness/useYield: it fails before it has anything to yield
        output: async function* () {
          throw new HoldfastError(code, { floor: "exe_1.k.5" });
        },
      },
    });
    using viewer = await attach(urlOf(server));
    expect(await viewer.closed).toEqual({ code: close, reason: code });
    expect(viewer.records).toMatchObject([
      { type: "error", error: { code, floor: "exe_1.k.5", operation: "attachExec" } },
    ]);
  });

  test.each([
    ["no JSON", "{nope"],
    ["no object", "7"],
    ["an unknown type", '{"type":"format"}'],
    ["a type that is a property of every object", '{"type":"constructor"}'],
    ["an invalid terminal size", '{"type":"resize","cols":0,"rows":1}'],
    ["an unknown field", '{"type":"detach","now":true}'],
    ["invalid base64", '{"type":"stdin","data":"*"}'],
  ])("%s ends the attachment", async (_name, message) => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(message);
    viewer.socket.send(Buffer.from("never"));
    expect(await viewer.closed).toEqual({ code: 1008, reason: "invalid_request" });
    expect(viewer.records.at(-1)).toMatchObject({ type: "error", error: { code: "invalid_request" } });
    expect(echo.calls).toEqual([]);
    await until(() => echo.readers === 0);
  });

  test("a message beyond 1 MiB ends the attachment", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(Buffer.alloc(1_048_577));
    expect(await viewer.closed).toMatchObject({ code: 1009 });
    expect(echo.calls).toEqual([]);
    await until(() => echo.readers === 0);
  });

  test("a caller's own mistake is reported and does not end the attachment", async () => {
    const echo = new Echo();
    echo.refusal = new HoldfastError("wrong_state");
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(JSON.stringify({ type: "resize", cols: 1, rows: 1 }));
    viewer.socket.send(Buffer.from("x"));
    await until(() => viewer.records.length === 3);
    expect(viewer.records.slice(1)).toMatchObject([
      { type: "error", of: "resize", error: { code: "wrong_state" } },
      { type: "error", of: "stdin", error: { code: "wrong_state" } },
    ]);
    echo.end();
    expect(await viewer.closed).toMatchObject({ code: 1000 });
  });

  test("a partially written input ends the attachment, so that later input does not follow a gap", async () => {
    const echo = new Echo();
    echo.refusal = new HoldfastError("link_lost", { dispatched: "unknown" });
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(Buffer.from("x"));
    viewer.socket.send(Buffer.from("y"));
    expect(await viewer.closed).toEqual({ code: 4503, reason: "link_lost" });
    expect(viewer.records.at(-1)).toMatchObject({ type: "error", error: { dispatched: "unknown" } });
    await until(() => echo.readers === 0);
  });

  test("an unexpected error is reported as internal, and logged", async () => {
    const echo = new Echo();
    echo.refusal = new Error("the password is hunter2");
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    viewer.socket.send(Buffer.from("x"));
    expect(await viewer.closed).toEqual({ code: 4500, reason: "internal" });
    expect(JSON.stringify(viewer.records)).not.toContain("hunter2");
    expect(server.lines.filter(({ level }) => level === "error")).toHaveLength(1);
  });

  test("a stream that stops before its end is reported as cut", async () => {
    await using server = await serve({
      execs: {
        output: async function* () {
          yield { type: "keepalive", cursor: "exe_1.k.0" };
        },
      },
    });
    using viewer = await attach(urlOf(server));
    expect(await viewer.closed).toMatchObject({ code: 1012 });
  });
});

describe("a shutdown", () => {
  test("disconnects attached callers, who know from where to resume", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    using viewer = await attach(urlOf(server));
    echo.write(Buffer.from("a"));
    await until(() => viewer.frames.length === 1);
    await server.app.close();
    expect(await viewer.closed).toMatchObject({ code: 1012 });
    expect(viewer.records.map(({ type }) => type)).toEqual(["start"]);
    expect(echo.readers).toBe(0);
  });

  test("waits neither for a peer that never confirms nor for one that takes nothing", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs });
    const socket = upgrade(server, authorized);
    await headersTo(socket);
    echo.write(Buffer.alloc(20_000_000));
    await until(() => echo.readers === 1);
    const closing = server.app.close();
    const late = new Promise((resolve) => setTimeout(() => resolve("late"), 15_000).unref());
    expect(await Promise.race([closing.then(() => "closed"), late])).toBe("closed");
    await until(() => echo.readers === 0);
    socket.destroy();
  });
});

describe("a peer that is gone, or slow", () => {
  test("is disconnected if it answers no ping, with or without FIN", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs }, { numbers: { streamKeepaliveMs: 50 } });
    const socket = upgrade(server, authorized);
    await headersTo(socket);
    await until(() => echo.readers === 1);
    await until(() => echo.readers === 0);
    expect(server.wedged).toHaveLength(1);
    socket.destroy();
  });

  test("stays connected if it answers, however quiet the exec is", async () => {
    const echo = new Echo();
    await using server = await serve({ execs: echo.execs }, { numbers: { streamKeepaliveMs: 50 } });
    using viewer = await attach(urlOf(server));
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    expect(viewer.socket.readyState).toBe(WebSocket.OPEN);
    expect(echo.readers).toBe(1);
  });

  test("is buffered for only a little while if it takes nothing, then disconnected", async () => {
    const flood = new Flood();
    await using server = await serve(
      { execs: { output: flood.output } },
      { numbers: { streamKeepaliveMs: 50, httpStallMs: 3_000 } },
    );
    const sockets: Socket[] = [];
    server.app.server.on("connection", (socket) => sockets.push(socket));
    const socket = upgrade(server, authorized);
    await headersTo(socket);
    await flood.held();
    expect(flood.isOver).toBe(false);
    expect(sockets).toHaveLength(1);
    expect(sockets[0]?.writableLength).toBeGreaterThan(0);
    expect(sockets[0]?.writableLength).toBeLessThanOrEqual(UNSENT_BYTES + 2 * FLOOD_RECORD_BYTES);
    await until(() => flood.isOver);
    expect(server.wedged).toHaveLength(1);
    socket.destroy();
  });
});

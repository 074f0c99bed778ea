import { once } from "node:events";
import {
  Agent,
  request as ask,
  createServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { Duplex } from "node:stream";
import { HoldfastError, NUMBERS, type PreviewInfo, type SandboxId } from "@holdfast/contract";
import type { EngineApi, Grant, PortConnection } from "@holdfast/engine";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Adapter } from "../http/adapter.ts";
import { Metrics } from "../telemetry/metrics.ts";
import {
  aSandbox,
  aStats,
  authorized,
  type EngineDouble,
  KEY,
  serve as serveApp,
  type TestServer,
} from "../testing/double.ts";
import { PortProxy } from "./port-proxy.ts";
import { checkPreviewHeaders } from "./preview-headers.ts";

/** Declares a key header and token places, as an adapter for another platform does. */
const OTHER: Adapter = {
  name: "other",
  routes: () => {},
  keyHeaders: ["x-other-authorization"],
  previewTokens: { parameters: ["other_token"], headers: ["x-other-preview-token"] },
};
const serve: typeof serveApp = (engine, options) => serveApp(engine, { ...options, adapters: [OTHER] });

const sandbox = aSandbox();
const HOST = `3000-${sandbox.id}.localhost`;
const RIGHT = `hfp_0123456789abcdef_${"A".repeat(43)}`;

const PREVIEW: PreviewInfo = {
  id: "prv_0123456789abcdef",
  name: "web",
  sandboxId: sandbox.id,
  port: 3000,
  public: false,
  createdAt: "2025-01-01T00:00:00.000Z",
  expiresAt: null,
};

interface Inside {
  /** A program that listens on port 3000 of the sandbox. */
  program: Server;
  connections: Socket[];
  settled: number;
  engine: EngineDouble;
  /** Revokes the token. */
  revoke(): void;
  isPublic: boolean;
  grantPort: number;
  /** Headers that the preview sets. */
  headers: Grant["headers"];
}

async function inside(handle: (request: IncomingMessage, response: ServerResponse) => void): Promise<Inside> {
  const program = createServer(handle);
  program.listen(0, "127.0.0.1");
  await once(program, "listening");
  onTestFinished(() => {
    program.closeAllConnections();
    program.close();
    for (const each of found.connections) each.destroy();
  });
  const revoked = new AbortController();
  const grant = (): Grant => ({
    previewId: "prv_0123456789abcdef" as Grant["previewId"],
    sandboxId: sandbox.id as SandboxId,
    port: found.grantPort,
    expiresAt: Date.now() + 60_000,
    headers: found.headers,
    signal: revoked.signal,
  });
  const reach = async (_ref: string, port: number, signal: AbortSignal): Promise<PortConnection> => {
    if (port !== 3000) throw new HoldfastError("port_closed", { sandboxId: sandbox.id, dispatched: "no" });
    const socket = connect((program.address() as AddressInfo).port, "127.0.0.1");
    await once(socket, "connect");
    socket.on("error", () => undefined);
    signal.addEventListener("abort", () => socket.destroy());
    if (signal.aborted) socket.destroy();
    found.connections.push(socket);
    const settled = () => {
      found.settled += 1;
    };
    return { sandboxId: sandbox.id as SandboxId, bytes: socket, settled, used: () => undefined };
  };
  const found: Inside = {
    program,
    connections: [],
    settled: 0,
    isPublic: false,
    grantPort: 3000,
    headers: { request: {}, response: {} },
    revoke: () => revoked.abort(new HoldfastError("preview_denied")),
    engine: {
      sandboxes: {
        get: async (ref) => {
          if (ref === sandbox.id || ref === sandbox.name) return sandbox;
          throw new HoldfastError("sandbox_not_found");
        },
      },
      ports: { connect: reach },
      previews: {
        admit: (token) => {
          if (token === RIGHT && !revoked.signal.aborted) return grant();
          throw new HoldfastError("preview_denied");
        },
        admitPublic: (id) => (found.isPublic && id === PREVIEW.id ? grant() : null),
        admitPublicPort: () => (found.isPublic ? grant() : null),
        headersOf: (id) => (id === PREVIEW.id ? found.headers : { request: {}, response: {} }),
        byId: (id) => (id === PREVIEW.id ? PREVIEW : null),
      },
    },
  };
  return found;
}

interface Heard {
  status: number;
  headers: IncomingMessage["headers"];
  text: string;
  isWhole: boolean;
}

/** Sends a request like `fetch`, but with host and path exactly as given. */
function hear(
  server: TestServer,
  {
    path = "/",
    host,
    ...options
  }: { path?: string; host?: string; method?: string; body?: string; headers?: Record<string, string> },
): Promise<Heard> {
  const { port } = new URL(server.url);
  const { body, headers = {}, method = "GET" } = options;
  return new Promise((resolve, reject) => {
    const request = ask(
      {
        host: "127.0.0.1",
        port,
        path,
        method,
        headers: { ...(host ? { host } : {}), ...headers },
        agent: false,
      },
      (response) => {
        let text = "";
        response.on("data", (chunk) => {
          text += chunk;
        });
        response.on("close", () =>
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            text,
            isWhole: response.complete,
          }),
        );
        response.on("error", () => undefined);
      },
    );
    request.on("error", reject);
    request.end(body);
  });
}

const echo = (request: IncomingMessage, response: ServerResponse) => {
  let body = "";
  request.on("data", (chunk) => {
    body += chunk;
  });
  request.on("end", () => {
    const { method, url, headers } = request;
    response.writeHead(201, { "x-program": "yes", "content-type": "application/json" });
    response.end(JSON.stringify({ method, url, headers, body }));
  });
};

describe("below a path of the API", () => {
  test("the program receives the request unchanged, except for the key", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const path = "/v1/sandboxes/demo/ports/3000/a%2Fb/../c?x=%41&y";
    const heard = await hear(server, {
      path,
      method: "PUT",
      body: "hello",
      headers: { ...authorized, "content-type": "text/x-own", cookie: "a=b", "content-length": "5" },
    });
    expect(heard).toMatchObject({ status: 201, headers: { "x-program": "yes" }, isWhole: true });
    const { headers, ...rest } = JSON.parse(heard.text);
    expect(rest).toEqual({ method: "PUT", url: "/a%2Fb/../c?x=%41&y", body: "hello" });
    expect(headers).toMatchObject({
      host: "localhost:3000",
      cookie: "a=b",
      "content-type": "text/x-own",
      "x-forwarded-prefix": "/v1/sandboxes/demo/ports/3000",
    });
    expect(JSON.stringify(headers)).not.toContain(KEY);
  });

  test("the program's Authorization header is passed on if the key has its own header", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const heard = await hear(server, {
      path: "/v1/sandboxes/demo/ports/3000/",
      headers: { "x-holdfast-key": KEY, authorization: "Basic own" },
    });
    const { headers } = JSON.parse(heard.text);
    expect(headers.authorization).toBe("Basic own");
    expect(JSON.stringify(headers)).not.toContain(KEY);
  });

  test("a key sent twice is removed from both headers, and tokens are never passed on", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine, { keys: ["hf_other"] });
    const heard = await hear(server, {
      path: `/v1/sandboxes/demo/ports/3000/x?holdfast_token=${RIGHT}`,
      headers: { "x-holdfast-key": KEY, authorization: "Bearer hf_other", "x-holdfast-preview-token": RIGHT },
    });
    expect(heard).toMatchObject({ status: 201 });
    expect(heard.text).not.toMatch(/hf_|hfp_/);
  });

  test.each(["ports/003000/x", "p%6Frts/3000/x"])(
    "%s is not accepted as another spelling: no page of a program is served as this server's own",
    async (path) => {
      const { engine, connections } = await inside(echo);
      await using server = await serve(engine);
      const heard = await hear(server, { path: `/v1/sandboxes/demo/${path}`, headers: authorized });
      expect(heard.status).toBe(404);
      expect(connections).toHaveLength(0);
    },
  );

  test("no caller is admitted without a key, whatever token it has", async () => {
    const { engine, connections } = await inside(echo);
    await using server = await serve(engine);
    const path = `/v1/sandboxes/demo/ports/3000/?holdfast_token=${RIGHT}`;
    expect(await hear(server, { path })).toMatchObject({ status: 401 });
    expect(connections).toHaveLength(0);
  });

  test("engine errors are returned as usual", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const response = await server.fetch("/v1/sandboxes/demo/ports/4000/");
    expect(response.status).toBe(502);
    expect(await response.json()).toMatchObject({ error: { code: "port_closed", dispatched: "no" } });
    expect(response.headers.get("x-holdfast-error")).toBe("port_closed");
    const wrong = await server.fetch("/v1/sandboxes/demo/ports/70000/");
    expect(wrong.status).toBe(400);
    expect(wrong.headers.get("x-holdfast-error")).toBe("invalid_request");
  });

  test.each(["HEAD", "OPTIONS", "PATCH", "DELETE"])("%s is forwarded", async (method) => {
    const { engine } = await inside((request, response) => {
      response.writeHead(200, { "x-method": request.method ?? "", "content-length": "3" });
      response.end(request.method === "HEAD" ? undefined : "abc");
    });
    await using server = await serve(engine);
    const heard = await hear(server, { path: "/v1/sandboxes/demo/ports/3000/", method, headers: authorized });
    expect(heard).toMatchObject({ status: 200, headers: { "x-method": method, "content-length": "3" } });
    expect(heard.text).toBe(method === "HEAD" ? "" : "abc");
  });

  test("a response without a length is streamed as it arrives", async () => {
    const more = Promise.withResolvers<void>();
    const { engine } = await inside(async (_request, response) => {
      response.write("first\n");
      await more.promise;
      response.end("second\n");
    });
    await using server = await serve(engine);
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/");
    const reader = response.body?.getReader();
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe("first\n");
    more.resolve();
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe("second\n");
    expect((await reader?.read())?.done).toBe(true);
  });

  test("a large upload and a large response arrive complete", async () => {
    const { engine } = await inside((request, response) => {
      request.pipe(response);
    });
    await using server = await serve(engine);
    const body = Buffer.alloc(9_000_000, "0123456789");
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/", { method: "POST", body });
    expect(Buffer.from(await response.arrayBuffer()).equals(body)).toBe(true);
  });
});

describe("a response", () => {
  test("that is short is passed on completely or not at all", async () => {
    let asked = 0;
    const { engine } = await inside((request, response) => {
      asked += 1;
      response.writeHead(200, { "content-length": "4" });
      response.write("ab");
      if (asked === 1 || request.method === "POST") setTimeout(() => response.destroy(), 20);
      else response.end("cd");
    });
    await using server = await serve(engine);
    expect(await (await server.fetch("/v1/sandboxes/demo/ports/3000/")).text()).toBe("abcd");
    const posted = await server.fetch("/v1/sandboxes/demo/ports/3000/", { method: "POST", body: "x" });
    expect(await posted.json()).toMatchObject({ error: { code: "port_cut", dispatched: "unknown" } });
    expect(asked).toBe(3);
  });

  test("that is cut midway is cut for the caller, and does not look complete", async () => {
    const { engine } = await inside((_request, response) => {
      response.writeHead(200, { "content-length": "100000" });
      response.write("part");
      setTimeout(() => response.destroy(), 20);
    });
    await using server = await serve(engine);
    const path = "/v1/sandboxes/demo/ports/3000/";
    const heard = await hear(server, { path, headers: authorized });
    expect(heard).toMatchObject({ text: "part", isWhole: false });
  });

  test("in chunks that is cut midway does not look complete either", async () => {
    const { engine } = await inside((_request, response) => {
      response.write("part");
      setTimeout(() => response.socket?.destroy(), 20);
    });
    await using server = await serve(engine);
    const heard = await hear(server, { path: "/v1/sandboxes/demo/ports/3000/", headers: authorized });
    expect(heard).toMatchObject({ text: "part", isWhole: false });
  });

  test("that was cut before it began is requested again if the method is safe", async () => {
    let asked = 0;
    const { engine } = await inside((request, response) => {
      asked += 1;
      if (asked === 1) request.socket.destroy();
      else response.end("ok");
    });
    await using server = await serve(engine);
    expect((await server.fetch("/v1/sandboxes/demo/ports/3000/")).status).toBe(200);
    expect(asked).toBe(2);
  });

  test("to a request that may have had an effect is not requested again, and the error says so", async () => {
    let asked = 0;
    const { engine } = await inside((request) => {
      asked += 1;
      request.socket.destroy();
    });
    await using server = await serve(engine);
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/", { method: "POST", body: "x" });
    expect(await response.json()).toMatchObject({ error: { code: "port_cut", dispatched: "unknown" } });
    expect(asked).toBe(1);
  });

  test("of a program that imitates this server is distinguishable from the server's own errors", async () => {
    const { engine } = await inside((_request, response) => {
      response.writeHead(502, { "x-holdfast-error": "port_closed" });
      response.end();
    });
    await using server = await serve(engine);
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/");
    expect(response.status).toBe(502);
    expect(response.headers.get("x-holdfast-error")).toBeNull();
  });

  test.each([
    ["with a status message that cannot be sent", "HTTP/1.1 200 a\x01b\r\nContent-Length: 2\r\n\r\nok", 200],
    ["with an invalid status", "HTTP/1.1 099 No\r\nContent-Length: 2\r\n\r\nok", 502],
    ["that is not HTTP", "hello\r\n\r\n", 502],
  ])("%s leaves no caller waiting", async (_what, bytes, status) => {
    const { engine } = await inside((request) => void request.socket.end(bytes, "latin1"));
    await using server = await serve(engine);
    const signal = AbortSignal.timeout(5_000);
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/", { signal });
    expect(response.status).toBe(status);
    await response.text();
  });

  test("is passed on with its trailers", async () => {
    const { engine } = await inside((_request, response) => {
      response.writeHead(200, { trailer: "x-sum" });
      response.write("body");
      response.addTrailers({ "x-sum": "7" });
      response.end();
    });
    await using server = await serve(engine);
    const { port } = new URL(server.url);
    const path = "/v1/sandboxes/demo/ports/3000/";
    const request = ask({ host: "127.0.0.1", port, path, headers: authorized, agent: false }).end();
    const [response] = (await once(request, "response")) as [IncomingMessage];
    response.resume();
    await once(response, "end");
    expect(response.trailers).toEqual({ "x-sum": "7" });
  });

  test("that arrives before the whole request was sent is passed on, and the rest of the request has a time limit", async () => {
    const { engine, connections } = await inside((_request, response) => {
      response.writeHead(413, { "content-length": "9" });
      response.end("too large");
    });
    await using server = await serve(engine, { numbers: { httpReceiveMs: 200 } });
    const { port } = new URL(server.url);
    const socket = connect(Number(port), "127.0.0.1");
    socket.on("error", () => undefined);
    const head = `POST /v1/sandboxes/demo/ports/3000/ HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${KEY}`;
    socket.write(`${head}\r\nContent-Length: 1000000\r\n\r\npart`);
    let heard = "";
    socket.on("data", (chunk) => {
      heard += chunk;
    });
    await once(socket, "close");
    expect(heard).toMatch(/^HTTP\/1.1 413 .*too large$/s);
    expect(connections.every(({ destroyed }) => destroyed)).toBe(true);
  });

  test("is counted by outcome", async () => {
    const found = await inside((request, response) => {
      if (request.url === "/cut") {
        response.write("part");
        setTimeout(() => response.destroy(), 20);
      } else response.end("ok");
    });
    await using server = await serve({ ...found.engine, stats: async () => aStats() });
    for (const path of ["3000/", "3000/cut", "4000/"])
      await hear(server, { path: `/v1/sandboxes/demo/ports/${path}`, headers: authorized });
    const text = await (await server.fetch("/metrics")).text();
    for (const outcome of ["answered", "cut", "port_closed"])
      expect(text).toContain(`holdfast_port_requests_total{outcome="${outcome}"} 1`);
  });

  test("that never arrives times out", async () => {
    const { engine, connections } = await inside(() => undefined);
    await using server = await serve(engine, { numbers: { portAnswerMs: 50 } });
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/");
    expect(response.status).toBe(504);
    expect(await response.json()).toMatchObject({ error: { code: "port_silent", dispatched: "unknown" } });
    await expect.poll(() => connections.every(({ destroyed }) => destroyed)).toBe(true);
  });

  test("is not awaited for a disconnected caller", async () => {
    const { engine, connections } = await inside(() => undefined);
    await using server = await serve(engine);
    const leaving = new AbortController();
    const call = server
      .fetch("/v1/sandboxes/demo/ports/3000/", { signal: leaving.signal })
      .catch(() => "left");
    await expect.poll(() => connections.length).toBe(1);
    leaving.abort();
    expect(await call).toBe("left");
    await expect.poll(() => connections[0]?.destroyed).toBe(true);
  });

  test("that has begun does not keep the sandbox awake by itself", async () => {
    const found = await inside((_request, response) => response.write("first"));
    await using server = await serve(found.engine);
    const response = await server.fetch("/v1/sandboxes/demo/ports/3000/");
    await expect.poll(() => found.settled).toBe(1);
    await response.body?.cancel();
  });
});

describe("on a port's own host", () => {
  test("no caller is admitted without a token or a key, or learns what exists", async () => {
    const { engine, connections } = await inside(echo);
    await using server = await serve(engine);
    expect(await hear(server, { host: HOST })).toMatchObject({ status: 401 });
    expect(await hear(server, { host: "3000-nobody.localhost" })).toMatchObject({ status: 401 });
    const denied = await hear(server, { host: HOST, path: "/?holdfast_token=wrong" });
    expect(JSON.parse(denied.text)).toMatchObject({ error: { code: "preview_denied" } });
    const other = await hear(server, { host: "3000-nobody.localhost", path: `/?holdfast_token=${RIGHT}` });
    expect(JSON.parse(other.text)).toMatchObject({ error: { code: "preview_denied" } });
    expect(connections).toHaveLength(0);
  });

  test.each<[by: string, options: { path?: string; headers?: Record<string, string> }]>([
    ["its URL", { path: `/x?a=b&holdfast_token=${RIGHT}` }],
    ["another client's parameter", { path: `/x?other_token=${RIGHT}&a=b` }],
    ["a header", { path: "/x?a=b", headers: { "x-holdfast-preview-token": RIGHT } }],
    ["another client's header", { path: "/x?a=b", headers: { "x-other-preview-token": RIGHT } }],
    ["a cookie", { path: "/x?a=b", headers: { cookie: `own=1; holdfast_preview=${RIGHT}` } }],
    ["a key", { path: "/x?a=b", headers: authorized }],
  ])("a request is admitted by %s, which the program never sees", async (_by, options) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const heard = await hear(server, { host: HOST, ...options });
    expect(heard.status).toBe(201);
    const { url, headers } = JSON.parse(heard.text);
    expect(url).toBe("/x?a=b");
    expect(headers.host).toBe(HOST);
    expect(heard.text).not.toContain(RIGHT);
    expect(heard.text).not.toContain(KEY);
    if (options.headers?.cookie) expect(headers.cookie).toBe("own=1");
  });

  test.each<[by: string, options: { path?: string; host?: string; headers?: Record<string, string> }]>([
    ["by a token", { host: HOST, headers: { "x-holdfast-preview-token": RIGHT } }],
    ["below a preview's path", { path: `/preview/${RIGHT}/`, headers: { "x-other-preview-token": RIGHT } }],
  ])("a key sent by a caller admitted %s is not passed on", async (_by, options) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const heard = await hear(server, { ...options, headers: { ...options.headers, ...authorized } });
    expect(heard.status).toBe(201);
    expect(heard.text).not.toMatch(/hf_|hfp_/);
  });

  test.each([
    [`http://${HOST}:4750`, 201],
    [`https://5000-${sandbox.id}.localhost`, 201],
    ["http://3000-other.localhost:4750", 401],
    ["https://example.com", 401],
    ["null", 401],
  ])("a request with the cookie from a page of %s gets %i", async (origin, status) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const headers = { origin, cookie: `holdfast_preview=${RIGHT}` };
    expect(await hear(server, { host: HOST, headers })).toMatchObject({ status });
  });

  test("many requests on one connection leave no listeners on it", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const sockets: Socket[] = [];
    server.app.server.on("connection", (socket: Socket) => sockets.push(socket));
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    onTestFinished(() => agent.destroy());
    const before: number[] = [];
    for (let round = 0; round < 15; round += 1) {
      const { port } = new URL(server.url);
      const headers = { host: HOST, ...authorized };
      const request = ask({ host: "127.0.0.1", port, headers, agent }).end();
      const [response] = (await once(request, "response")) as [IncomingMessage];
      response.resume();
      await once(response, "end");
      before.push(sockets[0]?.listenerCount("close") ?? 0);
    }
    expect(sockets).toHaveLength(1);
    expect(before.at(-1)).toBe(before[1]);
  });

  test("a token of another port is refused", async () => {
    const found = await inside(echo);
    found.grantPort = 3001;
    await using server = await serve(found.engine);
    const heard = await hear(server, { host: HOST, path: `/?holdfast_token=${RIGHT}` });
    expect(heard).toMatchObject({ status: 403 });
  });

  test("a public port needs no token, and an Authorization header without a Holdfast key is passed to the program", async () => {
    const found = await inside(echo);
    found.isPublic = true;
    await using server = await serve(found.engine);
    const heard = await hear(server, { host: HOST, headers: { authorization: "Bearer own" } });
    expect(JSON.parse(heard.text).headers.authorization).toBe("Bearer own");
  });

  test.each([
    "/v1/stats",
    "/../v1/stats",
    "/..%2fv1/stats",
    "//v1/stats",
    "/%2e%2e/v1/stats",
    "/v1/sandboxes/demo/ports/3000/../../../stats",
    "http://127.0.0.1/v1/stats",
    "/healthz",
    "/openapi.json",
    "/metrics",
  ])("%s belongs to the program, with a token and without", async (path) => {
    let asked = 0;
    const { engine } = await inside((_request, response) => {
      asked += 1;
      response.end("program");
    });
    const stats = async () => {
      throw new Error("the API was reached");
    };
    await using server = await serve({ ...engine, stats });
    const headers = { "x-holdfast-preview-token": RIGHT };
    expect(await hear(server, { host: HOST, path, headers })).toMatchObject({ status: 200, text: "program" });
    expect(asked).toBe(1);
    expect(await hear(server, { host: HOST, path })).toMatchObject({ status: 401 });
  });

  test("a browser that follows the link gets the token in a cookie, and a URL without it", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const path = `/deep?a=b&holdfast_token=${RIGHT}`;
    const heard = await hear(server, { host: HOST, path, headers: { "sec-fetch-mode": "navigate" } });
    expect(heard).toMatchObject({ status: 302, headers: { location: "/deep?a=b" } });
    const [cookie = ""] = heard.headers["set-cookie"] ?? [];
    expect(cookie).toMatch(/^holdfast_preview=hfp_.*; Path=\/; HttpOnly; SameSite=Lax; Max-Age=\d+$/);
    const next = await hear(server, {
      host: HOST,
      path: "/deep?a=b",
      headers: { cookie: cookie.split(";")[0] ?? "" },
    });
    expect(next.status).toBe(201);
    const twisted = await hear(server, {
      host: HOST,
      path: `//evil.example/?holdfast_token=${RIGHT}`,
      headers: { "sec-fetch-mode": "navigate" },
    });
    expect(twisted.headers.location).not.toMatch(/^\/\//);
  });

  test("a browser gets an error page that contains nothing of the request", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const heard = await hear(server, {
      host: HOST,
      path: "/<script>alert(1)</script>",
      headers: { "sec-fetch-mode": "navigate", accept: "text/html" },
    });
    expect(heard).toMatchObject({ status: 401, headers: { "content-type": "text/html; charset=utf-8" } });
    expect(heard.text).not.toContain("<script>");
    expect(heard.text).not.toContain("admin.key");
  });

  test("a visitor without access learns neither where keys are kept nor how the server is operated", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const page = { "sec-fetch-mode": "navigate", accept: "text/html" };
    for (const headers of [page, {}, { ...page, "x-holdfast-preview-token": `${RIGHT.slice(0, -1)}B` }])
      for (const asked of [{ host: HOST, path: "/" }, { path: "/v1/sandboxes/box/ports/3000/" }]) {
        const { text, status } = await hear(server, { ...asked, headers });
        expect([401, 403]).toContain(status);
        expect(text).not.toMatch(/admin\.key|state directory|'holdfast |HOLDFAST_/);
      }
    const { text } = await hear(server, { host: HOST, headers: page });
    expect(text).toContain("Ask the owner of this page");
  });

  test.each([
    ["without a token", { host: HOST, path: "/" }, 401],
    ["with a wrong token", { host: HOST, path: "/?holdfast_token=wrong" }, 403],
    ["with a damaged link", { path: "/preview/garbage/" }, 403],
    ["with half a link", { path: "/preview/" }, 403],
  ])("a visitor %s gets the same advice as a page and as JSON", async (_how, asked, status) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const advice = "Ask the owner of this page for a new link.";
    const json = await hear(server, asked);
    expect(json.status).toBe(status);
    expect(JSON.parse(json.text)).toMatchObject({ error: { hint: advice } });
    const page = await hear(server, { ...asked, headers: { "sec-fetch-mode": "navigate" } });
    expect(page).toMatchObject({ status, headers: { "content-type": "text/html; charset=utf-8" } });
    expect(page.text).toContain(advice);
    expect(page.text + json.text).not.toContain("/v1/");
  });

  test("revoking a token closes the connections it admitted", async () => {
    const found = await inside((_request, response) => response.write("first"));
    await using server = await serve(found.engine);
    const call = hear(server, { host: HOST, headers: { "x-holdfast-preview-token": RIGHT } });
    await expect.poll(() => found.settled).toBe(1);
    found.revoke();
    expect(await call).toMatchObject({ text: "first", isWhole: false });
    expect(await hear(server, { host: HOST, headers: { "x-holdfast-preview-token": RIGHT } })).toMatchObject({
      status: 403,
    });
  });

  test("requests are held until the server has started", async () => {
    const { engine } = await inside(echo);
    const started = Promise.withResolvers<void>();
    await using server = await serve(engine, { started: started.promise });
    const call = hear(server, { host: HOST, headers: authorized });
    await new Promise((resolve) => setTimeout(resolve, 50));
    started.resolve();
    expect(await call).toMatchObject({ status: 201 });
  });
});

describe("below a preview's path", () => {
  test("the program is found by the token in the path, and does not see the token", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const heard = await hear(server, { path: `/preview/${RIGHT}/a?b` });
    expect(heard).toMatchObject({ status: 201 });
    expect(heard.headers["content-security-policy"]).toContain("sandbox");
    expect(JSON.parse(heard.text).url).toBe("/a?b");
    expect(heard.text).not.toContain(RIGHT);
  });

  test.each<[string, { path: string; headers?: Record<string, string> }]>([
    ["query", { path: `/preview/${PREVIEW.id}/a?b=c&other_token=${RIGHT}` }],
    ["header", { path: `/preview/${PREVIEW.id}/a?b=c`, headers: { "x-other-preview-token": RIGHT } }],
  ])("a token in the %s opens its preview, and no key is passed on", async (_where, asked) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const headers = { ...asked.headers, "x-other-authorization": `Bearer ${KEY}` };
    const heard = await hear(server, { ...asked, headers });
    expect(heard).toMatchObject({ status: 201 });
    expect(JSON.parse(heard.text).url).toBe("/a?b=c");
    expect(heard.text).not.toMatch(/hf_|hfp_/);
    const other = asked.path.replace(PREVIEW.id, "prv_other00000000000");
    expect(await hear(server, { path: other, headers })).toMatchObject({ status: 403 });
  });

  test("a visitor is redirected so that relative links of the page resolve", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const path = `/preview/${PREVIEW.id}/a?b=c&other_token=${RIGHT}`;
    const heard = await hear(server, { path, headers: { accept: "text/html" } });
    expect([heard.status, heard.headers.location]).toEqual([302, `/preview/${RIGHT}/a?b=c`]);
  });

  test.each([
    ["hfp_0123456789abcdef_wrong", {}, 403],
    [PREVIEW.id, { "x-holdfast-preview-token": "hfp_0123456789abcdef_wrong" }, 403],
    // A caller without a token does not learn whether the preview exists.
    [PREVIEW.id, {}, 401],
    ["prv_other00000000000", {}, 401],
  ])("%s with the headers %j is refused", async (by, headers: Record<string, string>, status) => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const refused = await hear(server, { path: `/preview/${by}/`, headers });
    expect(refused.status).toBe(status);
    expect(refused.text).not.toContain("admin.key");
  });
});

describe("the headers of a preview", () => {
  const CORS = { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "X-Token" };
  const asked = { origin: "https://elsewhere.example", "access-control-request-method": "POST" };
  const opened = async (response: Record<string, string>, request = {}) => {
    const found = await inside((given, answer) => {
      answer.setHeader("x-from", "the program");
      answer.setHeader("vary", "accept");
      echo(given, answer);
    });
    found.isPublic = true;
    found.headers = { request, response };
    return found;
  };

  test.each([
    ["a path", { path: `/preview/${PREVIEW.id}/a` }],
    ["a port's host", { host: HOST, path: "/a" }],
  ])("by %s replace those of the caller and of the program", async (_by, target) => {
    const { engine } = await opened(
      { ...CORS, "X-From": "the preview", Vary: "Origin" },
      { "X-Tenant": "7" },
    );
    await using server = await serve(engine);
    const heard = await hear(server, { ...target, headers: { "x-tenant": "forged", "x-mine": "kept" } });
    expect(heard.headers).toMatchObject({
      "access-control-allow-origin": "*",
      "x-from": "the preview",
      vary: "accept, Origin",
    });
    expect(JSON.parse(heard.text).headers).toMatchObject({ "x-tenant": "7", "x-mine": "kept" });
  });

  test("never lift the limits of a page below a path", async () => {
    const { engine } = await opened({ "Content-Security-Policy": "default-src *", "Clear-Site-Data": "*" });
    await using server = await serve(engine);
    const { headers } = await hear(server, { path: `/preview/${PREVIEW.id}/` });
    expect(headers["content-security-policy"]).toContain("sandbox");
    expect(headers["clear-site-data"]).toBeUndefined();
  });

  test("answer a browser's preflight, for a private preview too, and errors carry them", async () => {
    const found = await opened(CORS);
    found.isPublic = false;
    let reached = 0;
    found.program.on("request", () => {
      reached += 1;
    });
    await using server = await serve(found.engine);
    const path = `/preview/${PREVIEW.id}/api`;
    expect(await hear(server, { path, method: "OPTIONS", headers: asked })).toMatchObject({
      status: 204,
      headers: { "access-control-allow-origin": "*", "access-control-allow-headers": "X-Token" },
    });
    expect(reached).toBe(0);
    expect(await hear(server, { path, headers: { origin: asked.origin } })).toMatchObject({
      status: 401,
      headers: { "access-control-allow-origin": "*" },
    });
  });

  test("leave a preflight to the program if they do not name an origin", async () => {
    const { engine } = await opened({ "x-other": "1" });
    await using server = await serve(engine);
    const heard = await hear(server, { path: `/preview/${PREVIEW.id}/`, method: "OPTIONS", headers: asked });
    expect(heard).toMatchObject({ status: 201, headers: { "x-program": "yes", "x-other": "1" } });
  });

  test("are absent from requests with a key", async () => {
    const { engine } = await opened(CORS);
    await using server = await serve(engine);
    const heard = await hear(server, { host: HOST, headers: authorized });
    expect(heard.status).toBe(201);
    expect(heard.headers["access-control-allow-origin"]).toBeUndefined();
  });

  test.each([
    { "Content-Length": "5" },
    { Connection: "close" },
    { Host: "elsewhere" },
    { "X-Forwarded-For": "1.2.3.4" },
    { "bad name": "1" },
    { "x-a": "1\r\nx-b: 2" },
    { "x-a": "1", "X-A": "2" },
    { "x-a": "a".repeat(20_000) },
    Object.fromEntries(Array.from({ length: 65 }, (_, at) => [`x-${at}`, ""])),
  ])("are refused if one of them is unsafe or the sum is too large (%#)", (set: Record<string, string>) => {
    const refused = expect.objectContaining({ code: "invalid_request" });
    expect(() => checkPreviewHeaders("body/spec", set, {})).toThrow(refused);
    expect(() => checkPreviewHeaders("body/spec", {}, set)).toThrow(refused);
    expect(checkPreviewHeaders("body/spec", null, { "X-A": "1" })).toEqual({
      request: {},
      response: { "X-A": "1" },
    });
  });
});

describe("a protocol upgrade", () => {
  const agreeing = async () => {
    const found = await inside(echo);
    found.program.on("upgrade", (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      socket.write(
        `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Path: ${request.url}\r\n\r\n`,
      );
      socket.write(head);
      socket.pipe(socket);
      socket.on("error", () => undefined);
    });
    return found;
  };

  function upgrade(
    server: TestServer,
    options: { host?: string; path?: string; headers?: Record<string, string> },
  ) {
    const { port } = new URL(server.url);
    const { host, path = "/", headers = {} } = options;
    const request = ask({
      host: "127.0.0.1",
      port,
      path,
      headers: { connection: "Upgrade", upgrade: "websocket", ...(host ? { host } : {}), ...headers },
    });
    request.end();
    return new Promise<{ response: IncomingMessage; socket: Socket | null }>((resolve, reject) => {
      request.on("upgrade", (response, socket) => resolve({ response, socket: socket as Socket }));
      request.on("response", (response) => {
        response.resume();
        resolve({ response, socket: null });
      });
      request.on("error", reject);
    });
  }

  test.each<[by: string, options: Parameters<typeof upgrade>[1]]>([
    ["a path of the API", { path: "/v1/sandboxes/demo/ports/3000/ws?x", headers: authorized }],
    ["the port's own host", { host: HOST, path: `/ws?x&holdfast_token=${RIGHT}` }],
    ["a cookie", { host: HOST, path: "/ws?x", headers: { cookie: `holdfast_preview=${RIGHT}` } }],
    ["a preview's path", { path: `/preview/${RIGHT}/ws?x` }],
  ])("is forwarded through %s in both directions", async (_by, options) => {
    const found = await agreeing();
    await using server = await serve(found.engine);
    const { response, socket } = await upgrade(server, options);
    expect(response).toMatchObject({ statusCode: 101, headers: { "x-path": "/ws?x" } });
    socket?.write("hello");
    expect(String((await once(socket as Socket, "data"))[0])).toBe("hello");
    expect(found.settled).toBe(1);
    socket?.destroy();
    await expect.poll(() => found.connections.every(({ destroyed }) => destroyed)).toBe(true);
  });

  test("has its other response headers restricted", async () => {
    const found = await inside(echo);
    found.program.on("upgrade", (_request: IncomingMessage, socket: Duplex) => {
      const said = "Set-Cookie: a=b; Domain=localhost; Path=/\r\nX-Holdfast-Error: no\r\nX-Own: 1";
      socket.write(`HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${said}\r\n\r\n`);
    });
    await using server = await serve(found.engine);
    const path = "/v1/sandboxes/demo/ports/3000/ws";
    const { response, socket } = await upgrade(server, { path, headers: authorized });
    expect(response.headers).toMatchObject({ upgrade: "websocket", connection: "Upgrade", "x-own": "1" });
    expect(response.headers["set-cookie"]).toEqual(["a=b; Path=/v1/sandboxes/demo/ports/3000/"]);
    expect(response.headers["x-holdfast-error"]).toBeUndefined();
    socket?.destroy();
  });

  test("delivers all bytes, however slowly they are read", async () => {
    const found = await inside(echo);
    found.program.on("upgrade", (_request: IncomingMessage, socket: Duplex) => {
      socket.end("HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nlast word");
    });
    let heard = "";
    const slow = new Duplex({
      read: () => undefined,
      write: (chunk, _encoding, done) => {
        setTimeout(() => {
          heard += chunk;
          done();
        }, 100);
      },
    });
    const proxy = new PortProxy({
      engine: found.engine as EngineApi,
      numbers: NUMBERS,
      metrics: new Metrics({ process: false }),
    });
    const asked = { ref: sandbox.id, port: 3000, method: "GET", path: "/", prefix: "", body: null };
    const signal = new AbortController().signal;
    const order = { ...asked, headers: [], signal, protocol: "websocket", socket: slow, head: Buffer.of() };
    expect(await proxy.upgrade(order)).toBe("tunnel");
    await once(slow, "close");
    expect(heard).toMatch(/last word$/);
  });

  test("is refused without access, and leaves no connection", async () => {
    const found = await agreeing();
    await using server = await serve(found.engine);
    expect((await upgrade(server, { host: HOST })).response.statusCode).toBe(401);
    const path = "/v1/sandboxes/demo/ports/3000/ws";
    expect((await upgrade(server, { path })).response.statusCode).toBe(401);
    expect((await upgrade(server, { host: HOST, path: "/?holdfast_token=wrong" })).response.statusCode).toBe(
      403,
    );
    expect(found.connections).toHaveLength(0);
  });

  test("of a caller that left before it was admitted reaches no program", async () => {
    const found = await agreeing();
    const started = Promise.withResolvers<void>();
    await using server = await serve(found.engine, { started: started.promise });
    const gone = new Promise((resolve) => {
      server.app.server.on("connection", (socket: Socket) => socket.once("close", resolve));
    });
    const { port } = new URL(server.url);
    const socket = connect(Number(port), "127.0.0.1");
    const asked = `GET / HTTP/1.1\r\nHost: ${HOST}\r\nAuthorization: Bearer ${KEY}`;
    socket.write(`${asked}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`);
    await new Promise((resolve) => setTimeout(resolve, 50));
    socket.resetAndDestroy();
    await gone;
    started.resolve();
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(found.connections.filter(({ destroyed }) => !destroyed)).toHaveLength(0);
  });

  test("that the program declines gets the program's response", async () => {
    const { engine } = await inside((_request, response) => {
      response.writeHead(426, { "x-program": "yes" });
      response.end("no");
    });
    await using server = await serve(engine);
    const { response } = await upgrade(server, { host: HOST, headers: authorized });
    expect(response).toMatchObject({ statusCode: 426, headers: { "x-program": "yes" } });
  });

  test("to a port without a listener is a typed error", async () => {
    const { engine } = await inside(echo);
    await using server = await serve(engine);
    const { response } = await upgrade(server, { host: `4000-${sandbox.id}.localhost`, headers: authorized });
    expect(response).toMatchObject({ statusCode: 502, headers: { "x-holdfast-error": "port_closed" } });
  });

  test("ends for both sides when the token is revoked, and when the program closes", async () => {
    const found = await agreeing();
    await using server = await serve(found.engine);
    const headers = { "x-holdfast-preview-token": RIGHT };
    const one = await upgrade(server, { host: HOST, headers });
    const other = await upgrade(server, { host: HOST, headers: authorized });
    found.revoke();
    await once(one.socket as Socket, "close");
    expect(other.socket?.destroyed).toBe(false);
    found.program.closeAllConnections();
    for (const each of found.connections) each.destroy();
    await once(other.socket as Socket, "close");
  });

  test("ends when the server shuts down", async () => {
    const found = await agreeing();
    const server = await serve(found.engine);
    const { socket } = await upgrade(server, { host: HOST, headers: authorized });
    const closed = once(socket as Socket, "close");
    await server.app.close();
    await closed;
  });
});

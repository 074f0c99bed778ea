import { afterAll, beforeAll, expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

/**
 * Blaxel's Python client is published on PyPI, and the tests install nothing from there. These are the requests that its
 * version 0.4.24 sends: the same methods, paths, queries, headers and bodies. Those of `process.wait` and `process.kill` follow
 * the client's source, all others were recorded from a run of it.
 */
const HEADERS = {
  accept: "*/*",
  "accept-encoding": "gzip, deflate",
  "user-agent": "blaxel/sdk/python/0.4.24 (linux/amd64) blaxel/668d0464455e06b48c5abee52e400048fae376cd",
  "blaxel-version": "2026-09-22",
  "x-blaxel-workspace": "demo",
};
const LONG_MS = 90_000;
const HOUR_MS = 3_600_000;
const PORT = 3_000;
const PROGRAM = `require("node:http").createServer((request, response) => {
  response.end(JSON.stringify(request.headers));
}).listen(${PORT});`;

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server[Symbol.asyncDispose]());

interface Answer {
  status: number;
  body: unknown;
}

/** Sends a request as the client does. */
async function send(method: string, url: string, body?: object): Promise<Answer> {
  const response = await fetch(url, {
    method,
    headers: {
      ...HEADERS,
      "x-blaxel-authorization": `Bearer ${server.key}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

/** The client's two planes: `client.with_base_url` gives it the first, and a sandbox's own URL is the second. */
const control = (path: string) => `${server.url}/compat/blaxel/v0/sandboxes${path}`;
const data = (name: string, path: string) => `${server.url}/compat/blaxel/run/demo/sandboxes/${name}${path}`;

async function created(name: string, envs: object[] = []): Promise<Answer> {
  const ports = [{ target: PORT, protocol: "HTTP" }];
  const runtime = { envs, image: "blaxel/base-image:latest", memory: 512, ports };
  return send("POST", control("?createIfNotExist=false"), {
    metadata: { name },
    spec: { enabled: true, runtime },
  });
}

async function serving(name: string): Promise<void> {
  await created(name);
  await send("PUT", data(name, "/filesystem//tmp/s.js"), { content: PROGRAM });
  const command = { command: "node /tmp/s.js", name: "web", waitForPorts: [PORT] };
  expect((await send("POST", data(name, "/process"), command)).status).toBe(200);
}

it("reads the environment back, and finds a process by its generated name", async () => {
  const name = "py-environment";
  const envs = [{ name: "A", value: "1" }];
  const url = data(name, "");
  expect((await created(name, envs)).body).toMatchObject({ metadata: { url } });
  expect((await send("GET", control(`/${name}`))).body).toMatchObject({ spec: { runtime: { envs } } });
  const ran = await send("POST", data(name, "/process"), { command: "echo hi $A", waitForCompletion: true });
  expect(ran.body).toMatchObject({ name: expect.stringMatching(/^proc-/), logs: "hi 1\n" });
  const { name: called, pid } = ran.body as { name: string; pid: string };
  expect((await send("GET", data(name, `/process/${called}`))).body).toMatchObject({ pid });
});

it("waits for a process with one request, also for one that is restarted", async () => {
  const name = "py-wait";
  await created(name);
  await send("POST", data(name, "/process"), { command: "sleep 1; exit 3", name: "w" });
  expect(await send("GET", data(name, "/process/w/wait?timeout=60"))).toMatchObject({
    status: 200,
    body: { name: "w", status: "failed", exitCode: 3 },
  });
  await send("POST", data(name, "/process"), { command: "sleep 600", name: "long" });
  expect((await send("GET", data(name, "/process/long/wait?timeout=1"))).body).toMatchObject({
    status: "running",
  });
  await send("DELETE", data(name, "/process/long/kill"));
  const third = "echo x >> /root/runs; [ $(wc -l < /root/runs) -ge 3 ]";
  const restarted = { command: third, name: "third", restartOnFailure: true, maxRestarts: 5 };
  await send("POST", data(name, "/process"), restarted);
  expect((await send("GET", data(name, "/process/third/wait?timeout=60"))).body).toMatchObject({
    status: "completed",
    restartCount: 2,
  });
  expect((await send("GET", data(name, "/process/missing/wait?timeout=1"))).status).toBe(404);
});

it(
  "revokes a token by its value or name, keeps a preview's URL, and sets a preview's headers",
  async () => {
    const name = "py-previews";
    const previews = control(`/${name}/previews`);
    const tokens = `${previews}/preview-${PORT}/tokens`;
    const metadata = { name: `preview-${PORT}` };
    await serving(name);
    expect((await send("GET", `${previews}/preview-${PORT}`)).status).toBe(404);
    const made = await send("POST", previews, { metadata, spec: { port: PORT, public: false } });
    const { url } = (made.body as { spec: { url: string } }).spec;
    const reach = async (query = "") => (await fetch(url + query, { headers: HEADERS })).status;
    expect(await reach()).toBe(401);
    expect((await send("GET", tokens)).body).toEqual([]);
    const expiresAt = new Date(Date.now() + HOUR_MS).toISOString();
    const order = { metadata: { name: "" }, spec: { expiresAt } };
    for (const by of ["token", "name"] as const) {
      const { body } = await send("POST", tokens, order);
      const token = body as { metadata: { name: string }; spec: { token: string } };
      expect(await reach(`?bl_preview_token=${token.spec.token}`)).toBe(200);
      const given = by === "token" ? token.spec.token : token.metadata.name;
      expect((await send("DELETE", `${tokens}/${given}`)).status).toBe(200);
      expect((await send("GET", tokens)).body).toEqual([]);
      expect(await reach(`?bl_preview_token=${token.spec.token}`)).toBe(403);
    }
    await send("DELETE", `${previews}/preview-${PORT}`);
    const requestHeaders = { "X-Tenant": "7" };
    const responseHeaders = { "Access-Control-Allow-Origin": "*" };
    const spec = { port: PORT, public: true, requestHeaders, responseHeaders };
    const again = await send("POST", previews, { metadata, spec, events: [] });
    expect(again.body).toMatchObject({ spec: { url, requestHeaders, responseHeaders } });
    const origin = { Origin: "https://example.com" };
    const preflight = { ...origin, "Access-Control-Request-Method": "POST" };
    const asked = await fetch(url, { method: "OPTIONS", headers: preflight });
    expect([asked.status, asked.headers.get("access-control-allow-origin")]).toEqual([204, "*"]);
    const seen = await fetch(url, { headers: origin });
    expect(seen.headers.get("access-control-allow-origin")).toBe("*");
    expect(await seen.json()).toMatchObject({ "x-tenant": "7" });
  },
  LONG_MS,
);

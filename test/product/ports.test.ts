import { readFileSync } from "node:fs";
import { request as ask, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";

const PROGRAM = readFileSync(join(import.meta.dirname, "..", "support", "workloads", "web-program.py"));
const PORT = 3000;

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify({ maintainEveryMs: 500 }) });
});
afterAll(() => server[Symbol.asyncDispose]());

/** Creates a sandbox with a web server that listens but does not keep the sandbox awake. */
async function serving(options: { lifecycle?: { idleStandbyMs?: number } } = {}): Promise<Sandbox> {
  const client = server.client();
  const box = await client.sandboxes.create(options);
  onTestFinished(async () => {
    client.close();
    // The delete goes through the current server, which may be another one by now.
    await server.fetch(`/v1/sandboxes/${box.id}`, { method: "DELETE" });
  });
  await box.files.write("/tmp/web.py", PROGRAM);
  await box.execs.start(`python3 /tmp/web.py ${PORT}`, { keepAwake: false });
  await listening(box);
  return box;
}

async function listening(box: Sandbox): Promise<void> {
  await expect.poll(async () => (await at(box, "/n/up")).status, { timeout: 20_000, interval: 50 }).toBe(200);
}

const at = (box: Sandbox, path: string, init: RequestInit = {}): Promise<Response> =>
  server.fetch(`/v1/sandboxes/${box.id}/ports/${PORT}${path}`, init);

interface Heard {
  status: number;
  text: string;
  headers: IncomingMessage["headers"];
}

/** Sends a request to the port's own host name, which most resolvers cannot resolve. */
function onHost(host: string, path: string, headers: Record<string, string> = {}): Promise<Heard> {
  const { port } = new URL(server.url);
  return new Promise((resolve, reject) => {
    const request = ask(
      { host: "127.0.0.1", port, path, headers: { host, ...headers }, agent: false },
      (response) => {
        let text = "";
        response.on("data", (chunk) => {
          text += chunk;
        });
        response.on("error", reject);
        response.on("end", () =>
          resolve({ status: response.statusCode ?? 0, text, headers: response.headers }),
        );
      },
    );
    request.on("error", reject);
    request.end();
  });
}

const errorIn = (text: string) => (JSON.parse(text) as { error: { code: string; dispatched: string } }).error;

describe("a port", () => {
  it("is served over the API in both directions, and an unused port is a typed error", async () => {
    const box = await serving();
    expect(await (await at(box, "/a%2Fb?c=d")).text()).toBe("path:/a%2Fb?c=d");
    const body = "x".repeat(300_000);
    expect(await (await at(box, "/echo", { method: "POST", body })).text()).toBe(`got:${body}`);
    const big = Buffer.from(await (await at(box, "/big")).arrayBuffer());
    expect([big.length, big.subarray(-16).toString()]).toEqual([8 * 1_048_576, "0123456789abcdef"]);
    expect(await (await at(box, "/headers")).text()).not.toContain(server.key);
    const login = await at(box, "/login", { redirect: "manual" });
    expect(login.headers.get("location")).toBe(`/v1/sandboxes/${box.id}/ports/${PORT}/n/in`);
    const closed = await server.fetch(`/v1/sandboxes/${box.id}/ports/4000/`);
    expect(closed.status).toBe(502);
    expect(errorIn(await closed.text())).toMatchObject({ code: "port_closed", dispatched: "no" });
  });

  it.skipIf(!memoryStandby)(
    "wakes its sandbox once for many concurrent callers, and the same program answers",
    async () => {
      const box = await serving();
      const pid = await (await at(box, "/pid")).text();
      await box.standby();
      const answers = await Promise.all([...Array(20).keys()].map((n) => at(box, `/n/${n}`)));
      expect(await Promise.all(answers.map((answer) => answer.text()))).toEqual(
        [...Array(20).keys()].map((n) => `n:${n}`),
      );
      expect((await box.refresh()).generation).toBe(2);
      expect(await (await at(box, "/pid")).text()).toBe(pid);
    },
  );

  it.skipIf(!memoryStandby)(
    "is cut by standby in the middle of a response, visibly, and answers again after it",
    async () => {
      const box = await serving();
      const response = await at(box, "/stream");
      const reader = response.body?.getReader();
      await reader?.read();
      await box.standby();
      const rest = async () => {
        for (let read = await reader?.read(); read && !read.done; read = await reader?.read());
      };
      await expect(rest()).rejects.toThrow();
      expect(await (await at(box, "/n/again")).text()).toBe("n:again");
    },
  );

  it("keeps its sandbox awake only while it is used", async () => {
    const box = await serving({ lifecycle: { idleStandbyMs: 1_500 } });
    const response = await at(box, "/stream");
    const reader = response.body?.getReader();
    for (const end = Date.now() + 4_000; Date.now() < end; ) await reader?.read();
    expect((await box.refresh()).status).toBe("ready");
    await reader?.cancel();
    await expect.poll(async () => (await box.refresh()).status, { timeout: 30_000 }).toBe("standby");
  });

  it("of a program that exits during a response is a typed error, and the next program serves the next request", async () => {
    const box = await serving();
    const died = await at(box, "/die");
    expect(errorIn(await died.text())).toMatchObject({ code: expect.stringMatching(/^port_(cut|closed)$/) });
    const posted = await at(box, "/echo", { method: "POST", body: "x" });
    expect(errorIn(await posted.text())).toMatchObject({ code: "port_closed", dispatched: "no" });
    await box.execs.start(`python3 /tmp/web.py ${PORT}`, { keepAwake: false });
    await listening(box);
  });

  it("of a deleted sandbox is disconnected, and later requests get an error", async () => {
    const box = await serving();
    const response = await at(box, "/stream");
    const reader = response.body?.getReader();
    await reader?.read();
    await box.delete();
    const rest = async () => {
      for (let read = await reader?.read(); read && !read.done; read = await reader?.read());
    };
    await expect(rest()).rejects.toThrow();
    expect((await at(box, "/n/1")).status).toBe(410);
  });
});

describe("a preview", () => {
  const create = async (box: Sandbox, input: object) => {
    const response = await server.fetch(`/v1/sandboxes/${box.id}/previews`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(input),
    });
    expect(response.status).toBe(201);
    return (await response.json()) as { url: string; pathUrl: string; token: string; name: string };
  };
  const remove = (box: Sandbox, name: string) =>
    server.fetch(`/v1/sandboxes/${box.id}/previews/${name}`, { method: "DELETE" });
  const hostOf = (box: Sandbox, port = PORT) => `${port}-${box.id}.localhost`;

  it.skipIf(!memoryStandby)(
    "is reached by its link alone, asleep or awake, and survives a server restart",
    async () => {
      const box = await serving();
      const { url, pathUrl, token } = await create(box, { port: PORT });
      const { host, pathname, search } = new URL(url);
      expect(await onHost(host, `/n/1${search}`)).toMatchObject({ status: 200, text: "n:1" });
      expect(pathname).toBe("/");
      await box.standby();
      expect(await onHost(host, "/n/2", { cookie: `holdfast_preview=${token}` })).toMatchObject({
        text: "n:2",
      });
      expect(await (await fetch(`${pathUrl}n/3`)).text()).toBe("n:3");
      const inside = await onHost(host, "/headers", { cookie: `a=b; holdfast_preview=${token}` });
      expect(inside.text).not.toContain(token);
      expect(inside.text.toLowerCase()).toContain("cookie: a=b");
      await server.kill("SIGKILL");
      await server.start();
      expect(await onHost(host, `/n/4${search}`)).toMatchObject({ status: 200, text: "n:4" });
    },
  );

  it("rejects tokens that are expired, revoked, altered, or of another port or sandbox", async () => {
    const [box, other] = [await serving(), await serving()];
    const web = await create(box, { port: PORT, name: "web" });
    const brief = await create(box, { port: PORT, name: "brief", tokenTtlMs: 1_000 });
    const elsewhere = await create(box, { port: 4000 });
    const others = await create(other, { port: PORT });
    const denied = async (token: string) => {
      const answer = await onHost(hostOf(box), "/n/1", { "x-holdfast-preview-token": token });
      return [answer.status, errorIn(answer.text).code];
    };
    await sleep(1_100);
    await remove(box, "web");
    const no = [403, "preview_denied"];
    const tampered = (elsewhere.token.slice(0, -1) + (elsewhere.token.endsWith("A") ? "B" : "A")).trim();
    for (const token of [
      web.token,
      brief.token,
      elsewhere.token,
      others.token,
      tampered,
      "x",
      `${brief.token}x`,
    ])
      expect([token, ...(await denied(token))]).toEqual([token, ...no]);
    expect((await onHost(hostOf(box), "/n/1")).status).toBe(401);
  });

  it("gives access to its port only, whatever path is requested", async () => {
    const box = await serving();
    const { token, pathUrl } = await create(box, { port: PORT });
    const headers = { "x-holdfast-preview-token": token, authorization: `Bearer ${token}` };
    const tricks = [
      "/v1/sandboxes",
      "/../v1/sandboxes",
      "/%2e%2e/v1/sandboxes",
      "//v1/sandboxes",
      "/metrics",
    ];
    for (const path of [...tricks, "http://127.0.0.1/v1/sandboxes"]) {
      const answer = await onHost(hostOf(box), path, headers);
      expect([path, answer.status, answer.text]).toEqual([path, 200, expect.stringMatching(/^path:/)]);
    }
    const { host, pathname } = new URL(pathUrl);
    for (const path of tricks) {
      const answer = await onHost(host, `${pathname.slice(0, -1)}${path}`);
      // The program itself treats a leading double slash as a single one.
      expect([path, answer.text]).toEqual([path, `path:${path.replace("//", "/")}`]);
    }
    // The preview does not open the API itself either.
    for (const path of ["/v1/sandboxes", `/v1/sandboxes/${box.id}/ports/${PORT}/`]) {
      expect((await onHost(host, path, headers)).status).toBe(401);
      expect((await onHost(host, `${path}?holdfast_token=${token}`)).status).toBe(401);
    }
    expect((await onHost(hostOf(box, 4000), "/", headers)).status).toBe(403);
  });

  it("that is revoked disconnects its connections", async () => {
    const box = await serving();
    const { name, pathUrl } = await create(box, { port: PORT });
    const reader = (await fetch(`${pathUrl}stream`)).body?.getReader();
    await reader?.read();
    await remove(box, name);
    const rest = async () => {
      for (let read = await reader?.read(); read && !read.done; read = await reader?.read());
    };
    await expect(rest()).rejects.toThrow();
    expect((await fetch(`${pathUrl}n/1`)).status).toBe(403);
  });
});

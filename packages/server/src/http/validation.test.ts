import { expect, test } from "vitest";
import { aSandbox, json, KEY, serve } from "../testing/double.ts";

const authorization = `Bearer ${KEY}`;
const engine = {
  unreadiness: () => [],
  stats: async () => ({}) as never,
  sandboxes: {
    list: async () => ({ items: [aSandbox()], nextCursor: null }),
    create: async () => ({ sandbox: aSandbox(), existed: false }),
  },
};

async function ask(path: string, body?: object): Promise<{ status: number; message: string | undefined }> {
  await using server = await serve(engine as never);
  const init = body === undefined ? {} : json(body);
  const response = await fetch(server.url + path, {
    ...init,
    headers: { authorization, ...(body && { "content-type": "application/json" }) },
  });
  const { error } = (await response.json()) as { error?: { message: string } };
  return { status: response.status, message: error?.message };
}

test.each([
  ["/v1/sandboxes?lable=a%3Db", '"lable"', "label"],
  ["/v1/sandboxes?limit=5&foo=1&bar=2", '"foo", "bar"', "limit"],
  ["/v1/stats?verbose=1", '"verbose"', "no query fields"],
])("the unknown query field of %s is refused by name", async (path, named, known) => {
  const { status, message } = await ask(path);
  expect(status).toBe(400);
  expect(message).toContain(named);
  expect(message).toContain(known);
});

test.each(["/v1/sandboxes?limit=5&label=a%3Db&label=c%3Dd", "/healthz?probe=1", "/openapi.json?x=1"])(
  "%s is accepted",
  async (path) => {
    expect((await ask(path)).status).toBe(200);
  },
);

test.each([
  [{ nam: "x" }, 'body has the unknown field "nam".'],
  [{ lifecycle: { ttl: 1, idle: 2 } }, 'body/lifecycle has the unknown fields "ttl", "idle".'],
  [{ mounts: [{ drive: "a", path: "/x", mode: 1 }] }, 'body/mounts/0 has the unknown field "mode".'],
])("the unknown field of the body %j is refused by name", async (body, expected) => {
  const { status, message } = await ask("/v1/sandboxes", body);
  expect(status).toBe(400);
  expect(message).toBe(expected);
});

test("names of unknown fields are quoted up to a limit", async () => {
  const many = Object.fromEntries(Array.from({ length: 50 }, (_, at) => [`${at}x`.padEnd(10_000, "y"), 1]));
  const { message = "" } = await ask("/v1/sandboxes", many);
  expect(message).toMatch(/unknown fields, among them "0xy+", "1xy+"/);
  expect(message.length).toBeLessThan(1_000);
});

const process = { name: "web", argv: ["x"] };

test.each<[path: string, body: object, expected: string]>([
  ["/v1/sandboxes", { labels: { "a b": "c" } }, 'body/labels has the invalid key "a b".'],
  ["/v1/sandboxes", { env: { "1A": "2" } }, 'body/env has the invalid key "1A".'],
  [
    "/v1/sandboxes/box/processes",
    { ...process, readyWhen: { port: 99_999, withinMs: 5 } },
    "body/readyWhen/port must be <= 65535.",
  ],
  [
    "/v1/sandboxes/box/processes",
    { ...process, readyWhen: { output: "" } },
    "body/readyWhen/output must not be empty.",
  ],
  [
    "/v1/sandboxes/box/processes",
    { ...process, readyWhen: {} },
    'body/readyWhen lacks the field "port" or lacks the field "output".',
  ],
  [
    "/v1/sandboxes/box/execs",
    { argv: ["x"], onWake: { signal: "hup" } },
    'body/onWake/signal must match pattern "^SIG[A-Z0-9]{2,10}$".',
  ],
  ["/v1/sandboxes/box/execs", { argv: ["x"], onWake: "HUP" }, "body/onWake must be object."],
  ["/v1/execs/exe_1/signal", {}, 'body lacks the field "signal".'],
  [
    "/v1/sandboxes",
    { ifExists: "x", name: "Not A Name" },
    'body/name must match pattern "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"; body/ifExists must be one of "return", "fail".',
  ],
  ["/v1/sandboxes/box/pause", { foo: 1 }, 'body has the unknown field "foo". This call has no body.'],
  ["/v1/audit", ["x"], "This call has no body."],
])("POST %s with %j is refused in words that are true for it", async (path, body, expected) => {
  expect(await ask(path, body)).toEqual({ status: 400, message: expected });
});

test("a path parameter, and a body that is not JSON, are named too", async () => {
  expect((await ask("/v1/images/a%20b")).message).toMatch(/^path\/name must match pattern/);
  await using server = await serve(engine as never);
  const init = { ...json({}), headers: { authorization, "content-type": "application/json" }, body: "{a" };
  const answer = await fetch(`${server.url}/v1/sandboxes`, init);
  expect(await answer.json()).toMatchObject({ error: { message: "The body is not valid JSON." } });
});

test("a call without a body accepts an empty one", async () => {
  const calls = { ...engine, audit: async () => ({}) };
  await using server = await serve(calls as never);
  const headers = { authorization, "content-type": "application/json" };
  for (const body of [undefined, "", "{}"]) {
    const init = { method: "POST", headers, ...(body === undefined ? {} : { body }) };
    expect((await fetch(`${server.url}/v1/audit`, init)).status).not.toBe(400);
  }
});

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

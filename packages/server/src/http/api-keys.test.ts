import { HoldfastError } from "@holdfast/contract";
import type { CreateOptions } from "@holdfast/engine";
import { expect, test, vi } from "vitest";
import { aSandbox, json, KEY, serve } from "../testing/double.ts";
import { KeyCheck } from "./api-keys.ts";

const engine = { unreadiness: () => [] };

test.each([undefined, "", "Bearer", "Bearer wrong", `Basic ${KEY}`, `Bearer ${"a".repeat(10_000)}`, KEY])(
  "a call with the header %j is refused with a typed 401",
  async (authorization) => {
    await using server = await serve(engine);
    for (const path of ["/v1/sandboxes", "/v1/stats", "/metrics", "/v1/nothing"]) {
      const response = await fetch(server.url + path, { headers: authorization ? { authorization } : {} });
      expect(response.status).toBe(401);
      expect(response.headers.get("www-authenticate")).toContain("Bearer");
      expect(await response.json()).toMatchObject({ error: { code: "unauthorized" } });
    }
  },
);

test("health and docs need no key", async () => {
  await using server = await serve(engine);
  for (const path of ["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/static/swagger-ui.css"]) {
    expect((await fetch(server.url + path)).status, path).toBe(200);
  }
});

test("a key is looked up again after a while, so that a revoked one stops working", async () => {
  let now = 0;
  const findKey = vi.fn(async (): Promise<object | null> => ({}));
  const gate = new KeyCheck({ findKey }, [], () => now);
  const owner = await gate.admit("Bearer a");
  expect(gate.admit("Bearer a")).toBe(owner);
  expect(findKey).toHaveBeenCalledTimes(1);
  now = 60_000;
  findKey.mockResolvedValue(null);
  await expect(gate.admit("Bearer a")).rejects.toBeInstanceOf(HoldfastError);
});

test("a key has a constant, unique id that does not reveal the key", async () => {
  const secrets = Array.from({ length: 100 }, (_, index) => `hf_${index}`);
  const idsOf = async (gate: KeyCheck) =>
    Promise.all(secrets.map(async (secret) => gate.admit(`Bearer ${secret}`)));
  const keys = { findKey: async () => ({}) };
  const ids = await idsOf(new KeyCheck(keys));
  expect(await idsOf(new KeyCheck(keys))).toEqual(ids);
  expect(new Set(ids).size).toBe(secrets.length);
  for (const id of ids) expect(id).toMatch(/^key_[0-9a-f]{16}$/);
});

test("created resources belong to the key that made the request", async () => {
  const owners: unknown[] = [];
  const create = async (_input: unknown, { owner }: CreateOptions) => {
    owners.push(owner);
    return { sandbox: aSandbox(), existed: false };
  };
  await using server = await serve({ sandboxes: { create } }, { keys: ["hf_other"] });
  const ask = (secret: string) =>
    fetch(`${server.url}/v1/sandboxes`, {
      ...json({}),
      headers: { "content-type": "application/json", authorization: `Bearer ${secret}` },
    });
  for (const secret of [KEY, "hf_other", KEY]) expect((await ask(secret)).status).toBe(201);
  const [first, second, third] = owners;
  expect(first).toMatch(/^key_/);
  expect(second).toMatch(/^key_/);
  expect(second).not.toBe(first);
  expect(third).toBe(first);
});

import { HoldfastError } from "@holdfast/contract";
import { expect, test, vi } from "vitest";
import { Gate } from "./auth.ts";
import { KEY, serve } from "./testing/double.ts";

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
  const gate = new Gate({ findKey }, () => now);
  await gate.admit("Bearer a");
  await gate.admit("Bearer a");
  expect(findKey).toHaveBeenCalledTimes(1);
  now = 60_000;
  findKey.mockResolvedValue(null);
  await expect(gate.admit("Bearer a")).rejects.toBeInstanceOf(HoldfastError);
});

import { type Alert, type Delivery, HoldfastError } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { serve } from "../../testing/double.ts";

const alert: Alert = {
  id: "alr_0123456789abcdef",
  key: "leak",
  kind: "leak",
  severity: "critical",
  state: "firing",
  sandboxId: null,
  message: "busy: /srv/state/sandboxes/sbx_0/root",
  unit: "count",
  value: 1,
  threshold: 0,
  clearBelow: 0,
  target: 0,
  firedAt: "2025-01-01T00:00:00.000Z",
  clearedAt: null,
};
const delivery: Delivery = {
  id: "dlv_0123456789abcdef",
  state: "dead",
  alert,
  attempts: 6,
  createdAt: "2025-01-01T00:00:00.000Z",
  nextAttemptAt: null,
  deliveredAt: null,
  lastError: "The webhook receiver answered 500.",
};
const hostPaths = ["/srv/state"];

describe("alerts", () => {
  test.each([
    ["/v1/alerts", { cleared: false }],
    ["/v1/alerts?cleared=false", { cleared: false }],
    ["/v1/alerts?cleared=true", { cleared: true }],
  ])("%s lists the requested alerts, without host paths", async (path, filter) => {
    const asked: unknown[] = [];
    const list = async (given: { cleared: boolean }) => {
      asked.push(given);
      return { items: [alert], evaluatedAt: "2025-01-01T00:00:00.000Z" };
    };
    await using server = await serve({ alerts: { list } }, { hostPaths });
    const response = await server.fetch(path);
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ items: [{ key: "leak", message: "busy: <host path>" }] });
    expect(asked).toEqual([filter]);
  });

  test("need a key", async () => {
    await using server = await serve({});
    for (const path of ["/v1/alerts", "/v1/alerts/deliveries"])
      expect((await fetch(server.url + path)).status).toBe(401);
  });
});

describe("deliveries", () => {
  test("are listed by state, page by page", async () => {
    const asked: unknown[] = [];
    const deliveries = async (given: unknown) => {
      asked.push(given);
      return { items: [delivery], nextCursor: delivery.id };
    };
    await using server = await serve({ alerts: { deliveries } }, { hostPaths });
    const response = await server.fetch("/v1/alerts/deliveries?state=dead&limit=1&cursor=dlv_1");
    expect(await response.json()).toMatchObject({ items: [{ id: delivery.id }], nextCursor: delivery.id });
    await server.fetch("/v1/alerts/deliveries");
    expect(asked).toEqual([
      { state: "dead", limit: 1, cursor: "dlv_1" },
      { limit: 100, cursor: undefined, state: undefined },
    ]);
    expect((await server.fetch("/v1/alerts/deliveries?state=odd")).status).toBe(400);
  });

  test("that are dead are retried on request", async () => {
    const redeliver = async (id: string): Promise<Delivery> => {
      if (id === delivery.id) return { ...delivery, state: "pending" };
      throw new HoldfastError("delivery_not_found");
    };
    await using server = await serve({ alerts: { redeliver } });
    const retry = (id: string) => server.fetch(`/v1/alerts/deliveries/${id}/retry`, { method: "POST" });
    const response = await retry(delivery.id);
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ id: delivery.id, state: "pending" });
    const unknown = await retry("dlv_zzzzzzzzzzzzzzzz");
    expect(unknown.status).toBe(404);
    expect(await unknown.json()).toMatchObject({
      error: { code: "delivery_not_found", operation: "retryDelivery" },
    });
  });
});

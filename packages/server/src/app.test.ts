import { expect, test } from "vitest";
import { serve } from "./testing/double.ts";

const stats = { stats: async () => ({ at: "" }) as never };

test("calls are held during recovery, then served", async () => {
  const started = Promise.withResolvers<void>();
  await using server = await serve(
    { ...stats, unreadiness: () => ["recovering"] },
    { started: started.promise },
  );
  const call = server.fetch("/v1/stats");
  expect((await server.fetch("/healthz")).status).toBe(200);
  const ready = await server.fetch("/readyz");
  expect(ready.status).toBe(503);
  expect(await ready.json()).toMatchObject({ status: "unready", reasons: ["recovering"] });
  started.resolve();
  expect((await call).status).toBe(200);
});

test("a recovery that takes too long is a typed, retryable error", async () => {
  await using server = await serve(stats, { started: new Promise(() => {}), numbers: { startHoldMs: 50 } });
  const response = await server.fetch("/v1/stats");
  expect(response.status).toBe(503);
  expect(await response.json()).toMatchObject({ error: { code: "starting", retryable: true } });
});

test("every response carries a unique request id", async () => {
  await using server = await serve(stats);
  const ids = await Promise.all(
    Array.from({ length: 20 }, async () => (await server.fetch("/v1/stats")).headers.get("x-request-id")),
  );
  expect(new Set(ids).size).toBe(20);
  expect(ids).not.toContain(null);
});

test("status and label filters reach the engine, repeated or separated by commas", async () => {
  const filters: unknown[] = [];
  await using server = await serve({
    sandboxes: {
      list: async (filter) => {
        filters.push(filter);
        return { items: [], nextCursor: null };
      },
    },
  });
  await server.fetch(
    "/v1/sandboxes?status=ready,failed&status=paused&label=a=b&label=c=d%3De&limit=1000&cursor=x",
  );
  await server.fetch("/v1/sandboxes");
  expect(filters).toEqual([
    { status: ["ready", "failed", "paused"], labels: { a: "b", c: "d=e" }, limit: 1000, cursor: "x" },
    { status: undefined, labels: undefined, limit: 100, cursor: undefined },
  ]);
});

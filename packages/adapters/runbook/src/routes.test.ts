import { HoldfastError, type ResourceReport, type Sandbox, type SweepReport } from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { aSandbox, aStats, type EngineDouble, json, serve as serveApp } from "@holdfast/server/testing";
import { describe, expect, test } from "vitest";
import { runbookAdapter } from "./index.ts";

const serve: typeof serveApp = (engine, options) =>
  serveApp(engine, { ...options, adapters: [runbookAdapter] });

const counts = {
  ...{ queued: 1, creating: 2, ready: 4, degraded: 8, paused: 16, suspending: 32 },
  ...{ waking: 64, standby: 128, stopping: 256, terminated: 512, failed: 1_024 },
};

describe("stats", () => {
  test("count each status in its group, and standby and failed in none", async () => {
    const totals = { created: 70, terminated: 9, failed: 5, execsStarted: 3, execsEnded: 2 };
    await using server = await serve({ stats: async () => aStats({ sandboxes: counts, totals }) });
    const response = await server.fetch("/api/sandbox/stats");
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual({
      active: 4 + 8 + 16 + 32 + 64,
      provisioning: 3,
      terminating: 256,
      total_created: 70,
      total_destroyed: 9,
    });
  });
});

describe("sandboxes", () => {
  const ago = (minutes: number) => new Date(Date.now() - minutes * 60_000).toISOString();

  test("are listed over all pages as a bare array, with age, agent and task", async () => {
    const labels = { agent_type: "coder", task_id: "t-1", other: "x" };
    const pages: Record<string, Sandbox[]> = {
      "": [aSandbox({ id: "sbx_1", createdAt: ago(12.5), labels })],
      sbx_1: [aSandbox({ id: "sbx_2", createdAt: ago(-1), status: "standby" })],
    };
    const list: EngineApi["sandboxes"]["list"] = async ({ cursor = "" }) => ({
      items: pages[cursor] ?? [],
      nextCursor: cursor === "" ? "sbx_1" : null,
    });
    await using server = await serve({ sandboxes: { list } });
    expect(await (await server.fetch("/api/sandbox/list")).json()).toEqual([
      {
        id: "sbx_1",
        status: "running",
        created_at: pages[""]?.[0]?.createdAt,
        age_minutes: expect.closeTo(12.5, 0),
        agent_type: "coder",
        task_id: "t-1",
      },
      expect.objectContaining({
        id: "sbx_2",
        status: "standby",
        age_minutes: 0,
        agent_type: null,
        task_id: null,
      }),
    ]);
  });

  test.each([
    ["queued", "provisioning"],
    ["creating", "provisioning"],
    ["ready", "running"],
    ["degraded", "running"],
    ["paused", "running"],
    ["suspending", "running"],
    ["waking", "running"],
    ["standby", "standby"],
    ["stopping", "terminating"],
    ["failed", "failed"],
  ] as const)("that are %s are %s", async (status, shown) => {
    await using server = await serve({ sandboxes: { get: async () => aSandbox({ status }) } });
    expect(await (await server.fetch("/api/sandbox/demo")).json()).toMatchObject({ status: shown });
  });

  test("that were deleted or never existed are not found, with a bare body", async () => {
    const get = async (ref: string) => {
      if (ref === "gone") return aSandbox({ status: "terminated", endedAt: ago(1) });
      throw new HoldfastError("sandbox_not_found", { sandboxId: ref });
    };
    await using server = await serve({ sandboxes: { get } });
    for (const ref of ["gone", "never"]) {
      const response = await server.fetch(`/api/sandbox/${ref}`);
      expect(response.status).toBe(404);
      expect(await response.json()).toEqual({
        code: "sandbox_not_found",
        message: expect.any(String),
        hint: expect.any(String),
        retryable: false,
        dispatched: "no",
        operation: "runbookGet",
        request_id: response.headers.get("x-request-id"),
        sandbox_id: expect.any(String),
      });
    }
  });

  test("require a key", async () => {
    await using server = await serve({});
    const calls: [string, string][] = [
      ...["stats", "list", "x", "x/logs", "x/resources"].map((path) => ["GET", path] as [string, string]),
      ...[["DELETE", "x"] as [string, string], ["POST", "cleanup"] as [string, string]],
      ["POST", "cleanup/emergency"],
    ];
    for (const [method, path] of calls) {
      const response = await fetch(`${server.url}/api/sandbox/${path}`, { method });
      expect(response.status).toBe(401);
      expect(await response.json()).toMatchObject({ code: "unauthorized", request_id: expect.any(String) });
    }
  });
});

const report: ResourceReport = {
  sandboxId: "sbx_0123456789abcdef",
  at: "2025-01-01T00:00:00.000Z",
  status: "ready",
  durationMs: 90_000,
  lastActivityAt: "2025-01-01T00:00:00.000Z",
  operations: 12,
  cpu: { percent: 99.876, totalMs: 1, limitCpus: 1, throttledMs: 0 },
  memory: { bytes: 1_572_864, limitBytes: 1, trendBytesPerMinute: null, oomKills: 0 },
  io: { readBytes: 0, writtenBytes: 0, operations: 0 },
  disk: null,
  processes: { count: 0, limit: 1, refused: 0, items: [], truncated: false },
  history: [],
};

test("resources are four numbers", async () => {
  await using server = await serve({ sandboxes: { resources: async () => report } });
  expect(await (await server.fetch("/api/sandbox/demo/resources")).json()).toEqual({
    cpu_percent: 99.88,
    memory_mb: 1.5,
    duration_ms: 90_000,
    operations: 12,
  });
});

describe("logs", () => {
  const engine: EngineDouble = {
    sandboxes: { get: async () => aSandbox() },
    execs: { list: async () => ({ items: [], nextCursor: null }) },
    events: async () => ({
      items: [
        {
          seq: 1,
          at: "2025-01-01T00:00:00.000Z",
          type: "sandbox.degraded",
          sandboxId: "sbx_0123456789abcdef",
          execId: null,
          driveId: null,
          generation: 1,
          message: "nothing at /state/sandboxes/x",
          data: {},
        },
      ],
      nextCursor: null,
    }),
  };

  test("include the time of the last activity, and name no host path", async () => {
    await using server = await serve(engine, { hostPaths: ["/state"] });
    const response = await server.fetch("/api/sandbox/demo/logs");
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual({
      id: "sbx_0123456789abcdef",
      last_activity_at: "2025-01-01T00:00:00.000Z",
      lines: [
        {
          at: "2025-01-01T00:00:00.000Z",
          kind: "event",
          text: "sandbox.degraded: nothing at <host path>",
          exec_id: null,
        },
      ],
    });
  });
});

describe("a delete", () => {
  const removing = (sandbox: Partial<Sandbox>) => ({
    sandboxes: { remove: async () => aSandbox(sandbox) },
  });

  test("is 200 once absence was observed, and before that 202 with the next attempt", async () => {
    await using done = await serve(removing({ status: "terminated", lease: { state: "none" } }));
    const over = await done.fetch("/api/sandbox/demo", { method: "DELETE" });
    expect(over.status).toBe(200);
    expect(await over.json()).toEqual({
      id: "sbx_0123456789abcdef",
      status: "terminated",
      attempts: 0,
      next_attempt_at: null,
      last_error: null,
    });
    const lease = { state: "stop_needed", attempts: 2, nextAttemptAt: "2025-01-01T00:00:05.000Z" } as const;
    await using slow = await serve(removing({ status: "stopping", lease: { ...lease, lastError: "busy" } }));
    const pending = await slow.fetch("/api/sandbox/demo", { method: "DELETE" });
    expect(pending.status).toBe(202);
    expect(await pending.json()).toMatchObject({
      status: "terminating",
      attempts: 2,
      next_attempt_at: lease.nextAttemptAt,
      last_error: "busy",
    });
  });

  test("of a sandbox without a readable record succeeds, and of an unknown one is 404", async () => {
    const remove = async (ref: string): Promise<never> => {
      throw new HoldfastError(ref === "sbx_9" ? "sandbox_gone" : "sandbox_not_found", { sandboxId: ref });
    };
    await using server = await serve({ sandboxes: { remove } });
    const gone = await server.fetch("/api/sandbox/sbx_9", { method: "DELETE" });
    expect(gone.status).toBe(200);
    expect(await gone.json()).toMatchObject({ id: "sbx_9", status: "terminated" });
    expect((await server.fetch("/api/sandbox/never", { method: "DELETE" })).status).toBe(404);
  });
});

describe("a cleanup", () => {
  const asked: object[] = [];
  const cleanup: EngineApi["cleanup"] = async (order) => {
    asked.push(order);
    const item = { rule: "past_ttl", count: 1, message: "at /state/x" } as const;
    const items: SweepReport["items"] = [
      { ...item, sandboxId: "sbx_1", action: "removed" },
      { ...item, sandboxId: "sbx_2", action: "ordered" },
    ];
    const at = "2025-01-01T00:00:00.000Z";
    return { at, ms: 3, layers: ["age"], ...order, removed: 1, putToStandby: 2, failed: 0, items };
  };

  test("returns counts and each item, as an emergency or as a dry run on request", async () => {
    await using server = await serve({ cleanup }, { hostPaths: ["/state"] });
    const plain = await server.fetch("/api/sandbox/cleanup", { method: "POST" });
    expect(plain.status).toBe(200);
    expect(await plain.json()).toEqual({
      emergency: false,
      dry_run: false,
      removed: 1,
      put_to_standby: 2,
      terminating: 1,
      failed: 0,
      duration_ms: 3,
      items: [
        { id: "sbx_1", action: "removed", rule: "past_ttl", count: 1, message: "at <host path>" },
        { id: "sbx_2", action: "ordered", rule: "past_ttl", count: 1, message: "at <host path>" },
      ],
    });
    await server.fetch("/api/sandbox/cleanup/emergency", json({ dry_run: true }));
    expect(asked).toEqual([
      { dryRun: false, emergency: false },
      { dryRun: true, emergency: true },
    ]);
  });

  test("refuses a malformed request in the runbook's error format", async () => {
    await using server = await serve({ cleanup });
    const response = await server.fetch("/api/sandbox/cleanup", json({ dryRun: true }));
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ code: "invalid_request", operation: "runbookCleanup" });
  });
});

test("the routes are in the API document, with their own error body", async () => {
  await using server = await serve({});
  const document = (await (await server.fetch("/openapi.json")).json()) as {
    paths: Record<string, Record<string, { responses: Record<string, { content?: object }> }>>;
  };
  const paths = Object.entries(document.paths).filter(([path]) => path.startsWith("/api/sandbox"));
  expect(paths.map(([path, methods]) => `${Object.keys(methods).sort().join(",")} ${path}`).sort()).toEqual([
    "delete,get /api/sandbox/{id}",
    "get /api/sandbox/list",
    "get /api/sandbox/stats",
    "get /api/sandbox/{id}/logs",
    "get /api/sandbox/{id}/resources",
    "post /api/sandbox/cleanup",
    "post /api/sandbox/cleanup/emergency",
  ]);
  for (const [, methods] of paths)
    for (const { responses } of Object.values(methods))
      expect(JSON.stringify(responses["401"]?.content)).toContain("#/components/schemas/RunbookError");
});

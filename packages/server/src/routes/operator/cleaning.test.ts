import type { AuditReport, SweepReport } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { json, serve, until } from "../../testing/double.ts";

const report: AuditReport = {
  at: "2025-01-01T00:00:00.000Z",
  ms: 3,
  trigger: "request",
  complete: true,
  records: 2,
  things: 5,
  findings: [
    { kind: "orphan", sandboxId: "sbx_0", things: ["cgroup"], action: "waits", message: "It is nobody's." },
  ],
};
const swept = (dryRun: boolean, emergency: boolean): SweepReport => ({
  at: "2025-01-01T00:00:00.000Z",
  ms: 3,
  layers: ["stale"],
  emergency,
  dryRun,
  removed: 0,
  putToStandby: 0,
  failed: 0,
  items: [],
});

describe("an audit", () => {
  test("runs on request and returns its findings", async () => {
    await using server = await serve({ audit: async () => report });
    const response = await server.fetch("/v1/audit", { method: "POST" });
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(report);
  });

  test("can be read again without another run", async () => {
    await using server = await serve({ lastAudit: () => report });
    expect(await (await server.fetch("/v1/audit")).json()).toEqual(report);
  });

  test("that never ran is not found, and the message says how to run one", async () => {
    await using server = await serve({ lastAudit: () => null });
    const response = await server.fetch("/v1/audit");
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({
      error: { code: "not_found", message: expect.stringContaining("POST /v1/audit"), operation: "getAudit" },
    });
  });

  test("does not delay a shutdown", async () => {
    let asked = false;
    const audit = () => {
      asked = true;
      return new Promise<AuditReport>(() => {});
    };
    await using server = await serve({ audit });
    const call = server.fetch("/v1/audit", { method: "POST" });
    await until(() => asked);
    const closed = server.app.close();
    const response = await call;
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ error: { code: "shutting_down" } });
    await closed;
  });

  test("that fails after its caller left causes no error", async () => {
    const { promise, reject } = Promise.withResolvers<AuditReport>();
    let asked = false;
    const audit = () => {
      asked = true;
      return promise;
    };
    await using server = await serve({ audit, lastAudit: () => report });
    const leaving = new AbortController();
    const call = server.fetch("/v1/audit", { method: "POST", signal: leaving.signal }).catch(() => null);
    await until(() => asked);
    leaving.abort();
    await call;
    reject(new Error("too late"));
    expect((await server.fetch("/v1/audit")).status).toBe(200);
  });
});

describe("a cleanup", () => {
  test.each([
    ["/v1/cleanup", { method: "POST" }, { dryRun: false, emergency: false }],
    ["/v1/cleanup", json({}), { dryRun: false, emergency: false }],
    ["/v1/cleanup", json({ dryRun: true }), { dryRun: true, emergency: false }],
    ["/v1/cleanup/emergency", { method: "POST" }, { dryRun: false, emergency: true }],
    ["/v1/cleanup/emergency", json({ dryRun: true }), { dryRun: true, emergency: true }],
  ])("requested by %s with %j passes its options to the engine", async (path, init, options) => {
    const asked: unknown[] = [];
    const cleanup = async (given: { dryRun: boolean; emergency: boolean }) => {
      asked.push(given);
      return swept(given.dryRun, given.emergency);
    };
    await using server = await serve({ cleanup });
    const response = await server.fetch(path, init);
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual(swept(options.dryRun, options.emergency));
    expect(asked).toEqual([options]);
  });

  test.each([{ dryrun: true }, { dryRun: "true" }, [], { dryRun: null }])(
    "with %j is refused: a malformed dry run must not become a real cleanup",
    async (body) => {
      await using server = await serve({ cleanup: async () => expect.unreachable() });
      expect((await server.fetch("/v1/cleanup", json(body))).status).toBe(400);
      expect((await server.fetch("/v1/cleanup/emergency", json(body))).status).toBe(400);
    },
  );
});

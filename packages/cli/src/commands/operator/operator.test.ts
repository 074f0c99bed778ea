import { describe, expect, it } from "vitest";
import { json } from "../../../../sdk/src/testing/faulty-server.ts";
import { type Route, useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, serve, requests, atTerminal } = bench;

describe("holdfast audit", () => {
  const report = {
    at: "2026-01-01T00:00:00.000Z",
    ms: 12.5,
    trigger: "request",
    complete: true,
    records: 3,
    things: 20,
    findings: [] as object[],
  };
  const orphan = {
    kind: "orphan",
    sandboxId: "sbx_x",
    things: ["process 1", "process 2", "mount", "cgroup memory", "directory"],
    action: "waits",
    message: "It is nobody's.\x1b[2J",
    nextAt: new Date(Date.now() + 9_000_000).toISOString(),
  };

  it("reports no differences, or lists them", async () => {
    serve({ "POST /v1/audit": json(200, report) });
    const fine = await holdfast("audit");
    expect(fine).toMatchObject({ code: 0, stderr: "" });
    expect(fine.stdout.toString()).toBe(
      "No differences found.\n3 records and 20 resources compared at 2026-01-01T00:00:00.000Z, in 13 ms.\n",
    );
    serve({ "POST /v1/audit": json(200, { ...report, findings: [orphan] }) });
    const found = await holdfast("audit");
    expect(found.code).toBe(0);
    expect(found.stdout.toString()).toMatch(/^KIND +SUBJECT +RESOURCES +ACTION +MESSAGE\norphan +sbx_x +/);
    expect(found.stdout.toString()).toContain(
      "process 1, process 2, mount and 2 more  waits, due in 2h  It is nobody's.\\x1b[2J\n",
    );
    const stray = { ...orphan, sandboxId: undefined, driveId: "drv_x", action: "left", nextAt: undefined };
    serve({ "POST /v1/audit": json(200, { ...report, findings: [orphan, stray] }) });
    expect((await holdfast("audit")).stdout.toString()).toMatch(
      /^orphan +drv_x +process 1.* left +It is nobody's/m,
    );
    serve({ "POST /v1/audit": json(200, { ...report, findings: [orphan] }) });
    const asJson = await holdfast("audit", "--json");
    expect(JSON.parse(String(asJson.stdout)).findings).toEqual([orphan]);
  });

  it("fails if something could not be listed or corrected, and does not claim that there are no differences", async () => {
    serve({ "POST /v1/audit": json(200, { ...report, complete: false }) });
    const { code, stdout, stderr } = await holdfast("audit");
    expect(code).toBe(1);
    expect(stdout.toString()).not.toContain("No differences");
    expect(stderr).toContain("incomplete");
    serve({ "POST /v1/audit": json(200, { ...report, findings: [{ ...orphan, action: "failed" }] }) });
    expect(await holdfast("audit")).toMatchObject({ code: 1, stderr: "" });
  });

  it("shows the last audit without running another", async () => {
    serve({ "GET /v1/audit": json(200, report) });
    expect((await holdfast("audit", "--last")).stdout.toString()).toContain("No differences");
    serve({});
    const { code, stderr } = await holdfast("audit", "--last");
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: "holdfast: no audit has run yet\nRun 'holdfast audit'.\n",
    });
    expect(requests()).not.toContain("POST /v1/audit");
  });
});

describe("holdfast cleanup", () => {
  const swept = (action: string, facts: object = {}) => ({
    at: "2026-01-01T00:00:00.000Z",
    ms: 1,
    layers: ["stale"],
    emergency: false,
    dryRun: action === "would_remove",
    removed: 0,
    putToStandby: 0,
    failed: 0,
    items: [
      { rule: "disposable", sandboxId: "sbx_x", count: 1, action, message: "it was created disposable" },
      { rule: "old_events", sandboxId: null, count: 7, action, message: "past their retention" },
    ],
    ...facts,
  });
  /** Answers dry runs with a plan, and every other cleanup as one that removed everything. */
  const cleans: Route = (request, response) => {
    const { dryRun } = JSON.parse(request.body.toString());
    const report = dryRun ? swept("would_remove") : swept("removed", { removed: 8 });
    return json(200, report)(request, response);
  };
  const bodies = () => bench.server.seen.map(({ url, body }) => `${url.pathname} ${body.toString()}`);
  const EMERGENCY = "/v1/cleanup/emergency";

  it("reports what it removed or would remove, and fails if a removal failed", async () => {
    serve({ "POST /v1/cleanup": cleans });
    const dry = await holdfast("cleanup", "--dry-run");
    expect(dry).toMatchObject({ code: 0, stderr: "" });
    expect(dry.stdout.toString()).toMatch(
      /^RULE +SANDBOX +COUNT +ACTION +MESSAGE\ndisposable +sbx_x +1 +would remove/,
    );
    expect(dry.stdout.toString()).toMatch(/\n8 would be removed\.\n$/);
    const real = await holdfast("cleanup");
    expect(real.stdout.toString()).toMatch(/\n8 removed, 0 in progress, 0 failed\.\n$/);
    expect(bodies()).toEqual(['/v1/cleanup {"dryRun":true}', '/v1/cleanup {"dryRun":false}']);

    const idle = { rule: "idle", sandboxId: "sbx_y", count: 1, action: "put_to_standby", message: "idle" };
    serve({ [`POST ${EMERGENCY}`]: json(200, swept("removed", { putToStandby: 1, items: [idle] })) });
    const relieved = (await holdfast("cleanup", "--emergency")).stdout.toString();
    expect(relieved).toMatch(/idle +sbx_y +1 +put to standby/);
    expect(relieved).toMatch(/\n0 removed, 1 suspended, 0 in progress, 0 failed\.\n$/);

    serve({ "POST /v1/cleanup": json(200, swept("removed", { items: [] })) });
    expect((await holdfast("cleanup")).stdout.toString()).toBe("Nothing to remove.\n");
    serve({ "POST /v1/cleanup": json(200, swept("failed", { failed: 8 })) });
    const failed = await holdfast("cleanup", "--json");
    expect(failed.code).toBe(1);
    expect(JSON.parse(String(failed.stdout)).failed).toBe(8);
  });

  it("does not ask without a terminal", async () => {
    serve({ [`POST ${EMERGENCY}`]: cleans });
    expect((await holdfast("cleanup", "--emergency")).code).toBe(0);
    expect(bodies()).toEqual([`${EMERGENCY} {"dryRun":false}`]);
  });

  it("asks on a terminal before an emergency cleanup, and accepts only yes", async () => {
    serve({ [`POST ${EMERGENCY}`]: cleans });
    for (const [keys, code] of [
      ["\n", 1],
      ["nope\n", 1],
      ["\x04", 1],
      ["\x03", 130],
    ] as const) {
      await using typist = atTerminal("cleanup --emergency");
      expect(await typist.sees("Delete 1 sandbox? [y/N] ")).toContain("sbx_x");
      typist.type(keys);
      await typist.sees(`exit code ${code}`);
    }
    expect(new Set(bodies())).toEqual(new Set([`${EMERGENCY} {"dryRun":true}`]));
    await using typist = atTerminal("cleanup --emergency");
    await typist.sees("[y/N] ");
    typist.type("y\n");
    await typist.sees("8 removed");
    await typist.sees("exit code 0");
    expect(bodies().at(-1)).toBe(`${EMERGENCY} {"dryRun":false}`);
  }, 60_000);

  it("does not ask with --yes, or if no sandbox would be deleted", async () => {
    serve({ [`POST ${EMERGENCY}`]: cleans });
    await using yes = atTerminal("cleanup --emergency --yes");
    await yes.sees("exit code 0");
    expect(bodies()).toEqual([`${EMERGENCY} {"dryRun":false}`]);
    await using dry = atTerminal("cleanup --emergency --dry-run");
    await dry.sees("exit code 0");
    serve({ [`POST ${EMERGENCY}`]: json(200, swept("removed", { items: [] })) });
    await using nothing = atTerminal("cleanup --emergency");
    await nothing.sees("exit code 0");
  }, 30_000);
});

describe("holdfast stats", () => {
  it("shows the health of cleanup, the state of launches, and the host's capacity", async () => {
    const layer = { everyMs: 300_000, overdue: false, runs: 4, failures: 0, removed: 2, lastError: null };
    const stats = {
      sandboxes: { ready: 2, failed: 1, queued: 0 },
      totals: { created: 3 },
      links: { up: 2, down: 0, lost: 0 },
      driver: { name: "oci", capabilities: ["freezer", "drives"] },
      readersCut: { wedged: 6, expired: 0 },
      lastAuditAt: null,
      launches: { state: "suspended", waiting: 3, failuresInARow: 5 },
      capacity: {
        diskFreeBytes: 5 * 2 ** 30,
        diskTotalBytes: 20 * 2 ** 30,
        memoryFreeBytes: 2 ** 30,
        memoryTotalBytes: 4 * 2 ** 30,
      },
      sweeps: [
        { ...layer, layer: "stale", lastAt: new Date(Date.now() - 61_000).toISOString() },
        { ...layer, layer: "age", lastAt: null, overdue: true, failures: 2, lastError: "no luck\n" },
      ],
    };
    const alert = {
      ...{ key: "capacity:disk", kind: "capacity", severity: "critical", state: "firing", sandboxId: null },
      ...{ message: "The disk is full.\x9b", unit: "percent", value: 91.23, threshold: 80, clearedAt: null },
      firedAt: new Date(Date.now() - 61_000).toISOString(),
    };
    const alerts = (...items: object[]) => json(200, { items, evaluatedAt: null });
    serve({ "GET /v1/stats": json(200, stats), "GET /v1/alerts": alerts(alert) });
    const text = (await holdfast("stats")).stdout.toString();
    expect(JSON.parse((await holdfast("stats", "--json")).stdout.toString())).toMatchObject({
      alerts: [alert],
    });
    for (const line of [
      /^alerts firing +1$/m,
      /^critical +capacity +firing +1m ago +91\.2 % +80 % +- +The disk is full\.\\x9b$/m,
      /^stalled readers disconnected +6$/m,
      /^launches +suspended$/m,
      /^consecutive launch failures +5$/m,
      /^disk free +5\.0 GB of 20\.0 GB$/m,
      /^memory free +1\.0 GB of 4\.0 GB$/m,
      /^driver capabilities +freezer, drives$/m,
      /^last audit +never$/m,
      /^stale +5m +1m ago +4 +2 +0 +ok$/m,
      /^age +5m +never +4 +2 +2 +overdue: no luck\\x0a$/m,
    ])
      expect(text).toMatch(line);
    serve({ "GET /v1/stats": json(200, { ...stats, capacity: null }), "GET /v1/alerts": alerts() });
    const quiet = (await holdfast("stats")).stdout.toString();
    expect(quiet).toMatch(/^disk free +not measured yet$/m);
    expect(quiet).toMatch(/^alerts firing +0$/m);
    expect(quiet).not.toContain("SEVERITY");
  });
});

import { describe, expect, it } from "vitest";
import { anEvent, aSandbox, json, lines, refuse } from "../../../../sdk/src/testing/faulty-server.ts";
import { useBench } from "../../testing/bench.ts";

const bench = useBench();
const { holdfast, start, serve, requests, atTerminal } = bench;
const id = "sbx_0000000000000000";
const asked = () => bench.server.seen.map(({ url }) => `${url.pathname}${url.search}`);
const text = async (...args: string[]) => (await holdfast(...args)).stdout.toString();
const ago = (seconds: number) => new Date(Date.now() - seconds * 1_000).toISOString();

describe("holdfast events", () => {
  const event = (seq: number, facts: object = {}) => anEvent({ seq, message: `event ${seq}`, ...facts });
  const list = (...items: object[]) => json(200, { items, nextCursor: null });

  it("applies every filter and escapes terminal control characters", async () => {
    serve({ "GET /v1/events": list(event(1, { message: "bad\x1b[2J", execId: "exe_1" })) });
    const shown = await text(
      ...["events", "box", "--drive", "data", "--exec", "exe_1", "--type", "exec.ended", "sandbox.oom"],
      ...["--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z"],
    );
    expect(shown).toBe(`2026-01-01T00:00:00.000Z  sandbox.ready         bad\\x1b[2J  [${id} exe_1]\n`);
    const { searchParams } = bench.server.seen.at(-1)?.url ?? new URL("http://none");
    expect(Object.fromEntries(searchParams)).toMatchObject({
      sandbox: id,
      drive: "data",
      exec: "exe_1",
      since: "2026-01-01T00:00:00.000Z",
      until: "2026-01-02T00:00:00.000Z",
    });
    expect(searchParams.getAll("type")).toEqual(["exec.ended", "sandbox.oom"]);
  });

  it("accepts the id of a deleted sandbox, and relative times", async () => {
    serve({ "GET /v1/events": list() });
    await holdfast("events", "--sandbox", "sbx_gone", "--since", "10m");
    expect(requests()).toEqual(["GET /v1/events"]);
    const { searchParams } = bench.server.seen[0]?.url ?? new URL("http://none");
    expect(searchParams.get("sandbox")).toBe("sbx_gone");
    const since = Date.now() - Date.parse(searchParams.get("since") ?? "");
    expect(since).toBeGreaterThan(590_000);
    expect(since).toBeLessThan(660_000);
    expect((await holdfast("events", "box", "--sandbox", "other")).code).toBe(2);
    expect((await holdfast("events", "--since", "lately")).code).toBe(2);
  });

  it("shows the last events, oldest first", async () => {
    serve({ "GET /v1/events": list(event(9), event(7)) });
    expect(
      JSON.parse(await text("events", "-n", "2", "--json")).map(({ seq }: { seq: number }) => seq),
    ).toEqual([7, 9]);
    expect(asked()).toEqual(["/v1/events?order=newest&limit=2"]);
  });

  it("follows across lost connections, each event once, until `--until` or an interruption", async () => {
    const record = (seq: number) => ({ type: "event", cursor: String(seq), event: event(seq) });
    bench.server.answer(
      lines([{ type: "start", cursor: "4" }, record(5)], "cut"),
      lines([{ type: "start", cursor: "5" }, record(6), { type: "end", error: null }]),
    );
    const { code, stdout } = await holdfast("events", "-f", "--json", "--until", "2030-01-01");
    expect(code).toBe(0);
    const shown = stdout.toString().trimEnd().split("\n");
    expect(shown.map((line) => JSON.parse(line).seq)).toEqual([5, 6]);
    expect(asked()).toEqual([
      "/v1/events?until=2030-01-01T00%3A00%3A00.000Z",
      "/v1/events?until=2030-01-01T00%3A00%3A00.000Z&cursor=5",
    ]);

    bench.server.answer(lines([{ type: "start", cursor: "4" }, record(5)], "silence"));
    const following = start("events", "-f");
    await new Promise<void>((resolve) => following.stdout?.once("data", () => resolve()));
    following.kill("SIGINT");
    expect((await following.ended).code).toBe(130);
  });

  it("says nothing of the connection when Ctrl-C ends it on a terminal", async () => {
    bench.server.answer(
      lines(
        [
          { type: "start", cursor: "4" },
          { type: "event", cursor: "5", event: event(5) },
        ],
        "silence",
      ),
    );
    await using typist = bench.atTerminal("events -f");
    await typist.sees("event 5");
    typist.type("\x03");
    const shown = await typist.sees("exit code 130");
    expect(shown).not.toContain("connection");
  });

  it("follows after the last events without a gap", async () => {
    serve({
      "GET /v1/events": ({ url, headers, ...rest }, response) => {
        const { searchParams } = url;
        if (headers.accept === "application/x-ndjson")
          return lines([
            { type: "start", cursor: "8" },
            { type: "end", error: null },
          ])({ url, headers, ...rest }, response);
        const items = searchParams.has("sandbox") ? [event(6), event(3)] : [event(8)];
        return list(...items)({ url, headers, ...rest }, response);
      },
    });
    const shown = await text("events", "-f", "-n", "2", "--sandbox", "sbx_x");
    expect(shown).toMatch(/event 3.*event 6/s);
    expect(asked().at(-1)).toBe("/v1/events?sandbox=sbx_x&cursor=8");
  });
});

describe("holdfast top", () => {
  const usage = (name: string, facts: object = {}) => ({
    sandboxId: id,
    name,
    status: "ready",
    cause: null,
    createdAt: ago(7_300),
    lastActivityAt: ago(61),
    operations: 3,
    measuredAt: ago(1),
    cpuPercent: 1,
    memoryBytes: 1_572_864,
    memoryLimitBytes: 1_073_741_824,
    processes: 4,
    processLimit: 512,
    ...facts,
  });
  const hostile = { code: "x", message: "bad\x1b]0;owned\x07" };
  const all = [
    usage("idle", { cpuPercent: 0.25, memoryBytes: 9_437_184 }),
    usage("busy", { cpuPercent: 199.96, status: "degraded", cause: hostile }),
    usage("asleep", {
      status: "standby",
      cpuPercent: null,
      memoryBytes: null,
      processes: null,
      operations: 99,
    }),
  ];
  const names = (table: string) =>
    table
      .trimEnd()
      .split("\n")
      .slice(1)
      .map((line) => line.split(" ", 1)[0]);

  it("prints one table when piped, busiest first, with one request", async () => {
    serve({ "GET /v1/resources": json(200, { at: ago(0), items: all }) });
    const table = await text("top");
    expect(table).toMatch(/^NAME +STATUS +AGE +CPU % +MEMORY +PROCS +OPS +ACTIVE +CAUSE\n/);
    expect(table).toMatch(
      /^busy +degraded +2h +200\.0 +1\.5 MB \/ 1\.0 GB +4 +3 +[1-9]\d*m ago +bad\\x1b\]0;owned\\x07$/m,
    );
    expect(table).toMatch(/^asleep +standby +2h +- +- \/ 1\.0 GB +- +99 +[1-9]\d*m ago$/m);
    expect(names(table)).toEqual(["busy", "idle", "asleep"]);
    expect(requests()).toEqual(["GET /v1/resources"]);
  });

  it.each([
    ["memory", ["idle", "busy", "asleep"]],
    ["operations", ["asleep", "busy", "idle"]],
    ["name", ["asleep", "busy", "idle"]],
    ["status", ["busy", "idle", "asleep"]],
  ])("sorts by %s", async (order, expected) => {
    serve({ "GET /v1/resources": json(200, { at: ago(0), items: all }) });
    expect(names(await text("top", "--once", "--sort", order))).toEqual(expected);
    const found = JSON.parse(await text("top", "--json", "--sort", order)) as { name: string }[];
    expect(found.map(({ name }) => name)).toEqual(expected);
  });

  it("updates a table on a terminal, through errors and resizes, until q", async () => {
    let turn = 0;
    serve({
      "GET /v1/resources": (request, response) => {
        turn += 1;
        if (turn === 2)
          return refuse(500, "internal", { retryable: true, message: "no luck\x1b[2J" })(request, response);
        return json(200, { at: ago(0), items: [usage(`turn-${turn}`), ...all] })(request, response);
      },
    });
    await using typist = atTerminal("top --every 300ms");
    expect(await typist.sees("turn-1")).toContain("\x1b[?1049h");
    expect(await typist.sees("no luck\\x1b[2J")).not.toContain("\x1b]0;");
    await typist.sees("turn-3");
    await typist.resize(6, 60);
    await typist.sees("… and 2 more");
    typist.type("xq");
    const end = await typist.sees("exit code 0");
    expect(end).toContain("\x1b[?7h\x1b[?25h\x1b[?1049l");
    expect(end).not.toContain("turn-999");
  }, 60_000);

  it("restores the terminal after Ctrl-C and after a server error", async () => {
    serve({ "GET /v1/resources": json(200, { at: ago(0), items: all }) });
    await using typist = atTerminal("top; stty -a | grep -o ' -*icanon\\|-*opost'");
    await typist.sees("busy");
    typist.type("\x03");
    const end = await typist.sees("opost");
    expect(end).toContain("\x1b[?1049l");
    expect(end).not.toMatch(/-icanon|-opost/);
    serve({ "GET /v1/resources": refuse(401, "unauthorized") });
    await using refused = atTerminal("top");
    expect(await refused.sees("exit code 1")).toMatch(/\[\?1049l.*holdfast: said unauthorized/s);
  }, 60_000);
});

describe("holdfast resources", () => {
  const report = {
    sandboxId: id,
    at: ago(0),
    status: "ready",
    durationMs: 7_200_000,
    lastActivityAt: ago(61),
    operations: 12,
    cpu: { percent: 99.5, totalMs: 61_000, limitCpus: 2, throttledMs: 0 },
    memory: { bytes: 5_242_880, limitBytes: 10_485_760, trendBytesPerMinute: 1_048_576, oomKills: 0 },
    io: { readBytes: 1_024, writtenBytes: 2_048, operations: 3 },
    disk: null,
    processes: {
      count: 5,
      limit: 512,
      refused: 0,
      items: [
        {
          pid: 7,
          parent: 1,
          name: "sh",
          commandLine: `sh -c evil\x1b[2J ${"x".repeat(100)}`,
          state: "S",
          threads: 4,
          waits: [
            { on: "futex", threads: 3, bounded: false, what: null },
            { on: "fifo", threads: 1, bounded: false, what: "/tmp/pipe\x07" },
          ],
          cpuMs: 65_000,
          rssBytes: 4_194_304,
          execId: "exe_1",
        },
      ],
      truncated: false,
    },
    history: [],
  };

  it("shows usage and what processes wait for, and escapes terminal control characters", async () => {
    serve({ [`GET /v1/sandboxes/${id}/resources`]: json(200, report) });
    const shown = await text("resources", "box");
    expect(shown).toMatch(/^CPU: +99\.5 % of one core, of 2; 1m in total$/m);
    expect(shown).toMatch(/^memory: +5\.0 MB of 10\.0 MB, growing by 1\.0 MB per minute$/m);
    expect(shown).toMatch(
      /^7 +1 +S +3 futex, fifo \/tmp\/pipe\\x07 +1m +4\.0 MB +exe_1 +sh -c evil\\x1b\[2J x+…$/m,
    );
    expect(shown).not.toMatch(/disk|refused|killed|throttled/);
    expect(JSON.parse(await text("resources", "--json", "box"))).toEqual(report);
  });
});

describe("holdfast diagnose", () => {
  const finding = {
    kind: "waiting_on_io",
    severity: "problem",
    summary: "It waits on a FIFO\x1b[2J.",
    evidence: ["cat waits on a fifo", "CPU 0 %"],
    confidence: "medium",
    holdfast: "Nothing: this alone is no reason to act.",
    you: ["write to it", "'holdfast kill' ends the command"],
  };
  const diagnosis = {
    sandboxId: id,
    name: "box",
    at: ago(0),
    windowMs: 2_500,
    status: "degraded",
    summary: finding.summary,
    findings: [finding, { ...finding, kind: "no_task", summary: "It has no task.", evidence: [], you: [] }],
    unseen: ["its disk"],
    nextAt: new Date(Date.now() + 9_000_000).toISOString(),
  };

  it("prints the summary first, then the evidence, what Holdfast does and what you can do", async () => {
    serve({ [`GET /v1/sandboxes/${id}/diagnosis`]: json(200, diagnosis) });
    const { code, stdout } = await holdfast("diagnose", "--window", "2.5s", "box");
    expect(code).toBe(0);
    expect(stdout.toString()).toBe(`It waits on a FIFO\\x1b[2J.
finding:        waiting_on_io, confidence medium
evidence:       cat waits on a fifo
evidence:       CPU 0 %
Holdfast:       Nothing: this alone is no reason to act.
you can:        write to it
you can:        'holdfast kill' ends the command

Also: It has no task.
finding:        no_task, confidence medium
Holdfast:       Nothing: this alone is no reason to act.

status:         degraded
observed for:   2.5 s
next step:      in 2h (${diagnosis.nextAt})
not examined:   its disk
`);
    expect(asked().at(-1)).toBe(`/v1/sandboxes/${id}/diagnosis?windowMs=2500`);
    expect(JSON.parse(await text("diagnose", "--json", "box"))).toEqual(diagnosis);
  });

  it("finds a failed sandbox by its former name", async () => {
    const failed = aSandbox({ id: "sbx_1111111111111111", name: "broken", status: "failed" });
    serve({
      "GET /v1/sandboxes/broken": refuse(404, "sandbox_not_found"),
      "GET /v1/sandboxes": json(200, { items: [failed], nextCursor: null }),
      "GET /v1/sandboxes/sbx_1111111111111111": json(200, failed),
      "GET /v1/sandboxes/sbx_1111111111111111/diagnosis": json(200, { ...diagnosis, nextAt: null }),
    });
    expect(await text("diagnose", "broken")).toContain("next step:      none\n");
  });
});

describe("holdfast alerts", () => {
  const alert = {
    key: "stuck:sbx_x",
    kind: "stuck",
    severity: "warning",
    state: "firing",
    sandboxId: "sbx_x",
    message: "It does not serve.\x1b[2J",
    unit: "ms",
    value: 660_000,
    threshold: 600_000,
    firedAt: ago(61),
    clearedAt: null,
  };
  const delivery = {
    id: "dlv_1",
    state: "dead",
    alert,
    attempts: 6,
    createdAt: ago(3_700),
    nextAttemptAt: null,
    deliveredAt: null,
    lastError: "refused\n",
  };

  it("lists firing alerts, or reports that there are none", async () => {
    serve({ "GET /v1/alerts": json(200, { items: [alert], evaluatedAt: ago(1) }) });
    expect(await text("alerts")).toMatch(
      /^warning +stuck +firing +[1-9]\d*m ago +11m +10m +sbx_x +It does not serve\.\\x1b\[2J$/m,
    );
    expect(JSON.parse(await text("alerts", "--all", "--json")).items).toEqual([alert]);
    expect(asked()).toEqual(["/v1/alerts", "/v1/alerts?cleared=true"]);
    serve({ "GET /v1/alerts": json(200, { items: [], evaluatedAt: ago(1) }) });
    expect(await text("alerts")).toBe("No alert is firing.\n");
    serve({ "GET /v1/alerts": json(200, { items: [], evaluatedAt: null }) });
    expect(await text("alerts")).toBe("Alerts have not been evaluated yet.\n");
  });

  it("lists deliveries and resends dead ones", async () => {
    serve({
      "GET /v1/alerts/deliveries": json(200, { items: [delivery], nextCursor: null }),
      "POST /v1/alerts/deliveries/dlv_1/retry": json(200, { ...delivery, state: "pending" }),
    });
    expect(await text("alerts", "deliveries", "--state", "dead")).toMatch(
      /^dlv_1 +dead +stuck:sbx_x firing +1h +6 +- +refused\\x0a$/m,
    );
    expect(bench.server.seen.at(-1)?.url.searchParams.get("state")).toBe("dead");
    expect(await text("alerts", "retry", "dlv_1")).toBe("dlv_1\n");
    const { code, stdout } = await holdfast("alerts", "retry", "dlv_2", "dlv_1");
    expect({ code, stdout: stdout.toString() }).toEqual({ code: 1, stdout: "dlv_1\n" });
    expect((await holdfast("alerts", "retry")).code).toBe(2);
  });

  it("every subcommand has an example", async () => {
    for (const command of ["deliveries", "retry"])
      expect(await text("alerts", command, "--help")).toContain(`Examples:\n  holdfast alerts ${command}`);
  });
});

describe("holdfast server-logs", () => {
  const line = (n: number, facts: object = {}) => ({
    at: `2026-01-01T00:00:0${n}.000Z`,
    level: "warn",
    message: `line ${n}`,
    sandboxId: null,
    execId: null,
    driveId: null,
    requestId: null,
    fields: {},
    ...facts,
  });

  it("shows the last lines, oldest first, across pages that may be empty", async () => {
    const pages: Record<string, object> = {
      "": { items: [line(3)], nextCursor: "a" },
      a: { items: [], nextCursor: "b" },
      b: {
        items: [line(1, { sandboxId: "sbx_x", fields: { cause: { code: "x\x9b" }, step: "a\x1b" } })],
        nextCursor: null,
      },
    };
    serve({
      "GET /v1/logs": (request, response) =>
        json(200, pages[request.url.searchParams.get("cursor") ?? ""])(request, response),
    });
    expect(await text("server-logs", "--level", "warn")).toBe(
      '2026-01-01T00:00:01.000Z  warn   line 1  sandbox=sbx_x  cause={"code":"x\\u009b"}  step=a\\x1b\n' +
        "2026-01-01T00:00:03.000Z  warn   line 3\n",
    );
    expect(bench.server.seen[0]?.url.searchParams.get("level")).toBe("warn");
    expect(JSON.parse(await text("server-logs", "-n", "1", "--json"))).toEqual([line(3)]);
  });

  it("filters by sandbox name or id, exec, drive, request, text and time", async () => {
    serve({ "GET /v1/logs": json(200, { items: [], nextCursor: null }) });
    await holdfast(
      ...["server-logs", "--sandbox", "box", "--exec", "exe_1", "--drive", "data", "--request", "req_1"],
      ...["--text", "no luck", "--since", "2026-01-01T00:00:00Z"],
    );
    expect(Object.fromEntries(bench.server.seen.at(-1)?.url.searchParams ?? [])).toEqual({
      sandbox: id,
      exec: "exe_1",
      drive: "data",
      request: "req_1",
      text: "no luck",
      since: "2026-01-01T00:00:00.000Z",
      limit: "100",
    });
    expect((await holdfast("server-logs", "--level", "loud")).code).toBe(2);
  });
});

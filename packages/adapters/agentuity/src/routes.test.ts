import { once } from "node:events";
import { request } from "node:http";
import { ListOrganizationsResponseSchema, ListRegionsResponseSchema } from "@agentuity/core";
import * as theirs from "@agentuity/core/sandbox";
import { HoldfastError, type Sandbox, STATUSES, type StartExec } from "@holdfast/contract";
import type { EngineApi, OutputRecord } from "@holdfast/engine";
import {
  aCheckpoint,
  aFile,
  anEvent,
  anExec,
  aSandbox,
  authorized,
  type EngineDouble,
  json,
  serve as serveApp,
  type TestServer,
  until,
} from "@holdfast/server/testing";
import { describe, expect, test } from "vitest";
import { agentuityAdapter } from "./index.ts";

const serve: typeof serveApp = (engine, options) =>
  serveApp(engine, { ...options, adapters: [agentuityAdapter] });

const BASE = "/compat/agentuity";
const SANDBOX = aSandbox().id;
const noExecs = { list: async () => ({ items: [], nextCursor: null }) };
const box = (over: Partial<Sandbox> = {}) => ({ get: async () => aSandbox(over) });
const started = anExec({ id: "exe_1", status: "running", exitCode: null, endedAt: null });

const fetchJson = async (server: TestServer, path: string, init?: RequestInit): Promise<unknown> =>
  (await server.fetch(`${BASE}${path}`, init)).json();
/** Parses a response as the client does: throws if it is not what the client expects. */
const read = <Shape>(schema: { parse(value: unknown): Shape }, value: unknown): Shape => schema.parse(value);

describe("errors", () => {
  const failing = (error: Error): EngineDouble => ({
    sandboxes: { ...box(), wake: () => Promise.reject(error), standby: () => Promise.reject(error) },
    execs: { start: () => Promise.reject(error), get: () => Promise.reject(error) },
    files: { list: () => Promise.reject(error) },
  });

  test("have the client's envelope, with Holdfast's code and the request id in the displayed text", async () => {
    const cause = new Error("below");
    await using server = await serve(
      failing(new HoldfastError("wake_timeout", { sandboxId: "sbx_1", cause })),
    );
    const answer = await server.fetch(`${BASE}/sandbox/${SANDBOX}/resume`, { method: "POST" });
    expect([answer.status, await answer.json()]).toEqual([
      503,
      {
        success: false,
        code: "WAKE_TIMEOUT",
        message: expect.stringMatching(/^The sandbox did not wake in time\. \(wake_timeout, req_\w+\)$/),
        errorCode: "wake_timeout",
        requestId: answer.headers.get("x-request-id"),
        hint: expect.any(String),
        retryable: true,
        dispatched: "no",
        sandboxId: "sbx_1",
        cause: { code: "Error", message: "below" },
      },
    ]);
    const ours = await server.fetch(`/v1/sandboxes/${SANDBOX}/wake`, { method: "POST" });
    expect(await ours.json()).toMatchObject({ error: { code: "wake_timeout" } });
  });

  test.each([
    ["sandbox_not_found", 404, "SANDBOX_NOT_FOUND"],
    ["sandbox_gone", 410, "SANDBOX_TERMINATED"],
    ["sandbox_failed", 410, "SANDBOX_TERMINATED"],
    ["too_many_execs", 429, "SANDBOX_BUSY"],
    ["file_not_found", 404, "FILE_NOT_FOUND"],
  ] as const)("%s is %d and called %s", async (code, status, called) => {
    await using server = await serve(failing(new HoldfastError(code)));
    const answer = await server.fetch(`${BASE}/sandbox/${SANDBOX}/execute`, json({ command: ["true"] }));
    expect([answer.status, await answer.json()]).toEqual([
      status,
      expect.objectContaining({ success: false, code: called, errorCode: code }),
    ]);
  });

  test.each([
    ["link_lost", "no", 503],
    ["link_lost", "unknown", 504],
    ["link_lost", "yes", 504],
    ["sandbox_degraded", "no", 503],
    ["shutting_down", "unknown", 504],
    ["launch_failed", "no", 502],
    ["proof_failed", "unknown", 504],
    ["internal", "unknown", 500],
  ] as const)(
    "%s, dispatched %s, is %d: the client repeats only requests that were not started",
    async (code, dispatched, status) => {
      await using server = await serve(failing(new HoldfastError(code, { dispatched })));
      const answer = await server.fetch(`${BASE}/sandbox/${SANDBOX}/execute`, json({ command: ["true"] }));
      expect([answer.status, await answer.json()]).toEqual([
        status,
        expect.objectContaining({ errorCode: code, dispatched }),
      ]);
    },
  );

  test("report a conflict of a command with a status that the client does not call busy", async () => {
    await using server = await serve(failing(new HoldfastError("wrong_state", { message: "It is paused." })));
    const run = await server.fetch(`${BASE}/sandbox/${SANDBOX}/execute`, json({ command: ["true"] }));
    expect([run.status, await run.json()]).toEqual([
      422,
      expect.objectContaining({ code: "WRONG_STATE", message: expect.stringContaining("It is paused.") }),
    ]);
    const pause = await server.fetch(`${BASE}/sandbox/${SANDBOX}/pause`, { method: "POST" });
    expect(pause.status).toBe(409);
  });

  test("report server-side file errors as typed 5xx without host paths, and a wrong path as 404", async () => {
    const gone = new HoldfastError("sandbox_degraded", {
      message: "The root at /srv/holdfast/sandboxes/x/root is gone.",
      cause: new Error("ENOENT: /srv/holdfast/sandboxes/x/root/etc"),
    });
    await using ill = await serve(failing(gone), { hostPaths: ["/srv/holdfast"] });
    const answer = await ill.fetch(`${BASE}/fs/list/${SANDBOX}`);
    const text = await answer.text();
    expect(answer.status).toBe(503);
    expect(text).not.toContain("/srv/holdfast");
    expect(JSON.parse(text)).toMatchObject({ errorCode: "sandbox_degraded", cause: { message: /ENOENT/ } });
    await using well = await serve(failing(new HoldfastError("file_not_found")));
    expect((await well.fetch(`${BASE}/fs/list/${SANDBOX}?path=no`)).status).toBe(404);
    await using odd = await serve(failing(new Error("ENOENT: no such file or directory")));
    expect((await odd.fetch(`${BASE}/fs/list/${SANDBOX}`)).status).toBe(500);
  });

  test("report a missing key as 401 and an unsupported path as 501 with the reason", async () => {
    await using server = await serve({});
    expect((await fetch(`${server.url}${BASE}/sandbox`)).status).toBe(401);
    expect(
      (await fetch(`${server.url}${BASE}/sandbox`, { headers: { authorization: "Bearer no" } })).status,
    ).toBe(401);
    for (const [method, path] of [
      ["GET", "/sandbox/snapshots"],
      ["PATCH", "/sandbox/snapshots/snp_1"],
      ["GET", "/sandbox/snapshots/public/a%2Fb"],
      ["POST", `/sandbox/${SANDBOX}/snapshot`],
      ["GET", "/nowhere"],
    ]) {
      const answer = await server.fetch(`${BASE}${path}`, { method: method ?? "" });
      expect([answer.status, await answer.json()]).toEqual([
        501,
        expect.objectContaining({
          success: false,
          code: "NOT_SUPPORTED",
          message: expect.stringContaining(path?.split("%")[0] ?? ""),
        }),
      ]);
    }
  });
});

describe("a sandbox", () => {
  const all = (sandbox: Sandbox): EngineDouble => ({
    sandboxes: {
      get: async () => sandbox,
      list: async () => ({ items: [sandbox], nextCursor: null }),
      standby: async () => sandbox,
      remove: async () => sandbox,
    },
    execs: noExecs,
  });

  test.each(STATUSES)("with status %s is parsed by the client, alone and in a list", async (status) => {
    await using server = await serve(all(aSandbox({ status })));
    const shown = read(
      theirs.SandboxGetResponseSchema,
      await fetchJson(server, `/sandbox/${SANDBOX}?includeDeleted=true`),
    );
    const list = read(theirs.ListSandboxesResponseSchema, await fetchJson(server, "/sandbox"));
    if (!shown.success || !list.success) throw new Error("it was not");
    expect(list.data).toMatchObject({ total: 1, sandboxes: [{ sandboxId: SANDBOX, name: "demo" }] });
    // Only sandboxes that accept commands are reported as idle or running, so unproven ones are reported as neither.
    expect(shown.data.status === "idle").toBe(status === "ready");
  });

  test("is running while a command runs, and idle while only jobs run", async () => {
    const running = (id: string): EngineDouble => ({
      sandboxes: box(),
      execs: { list: async () => ({ items: [{ ...started, id }], nextCursor: null }) },
    });
    await using busy = await serve(running("exe_1"));
    expect(await fetchJson(busy, `/sandbox/status/${SANDBOX}`)).toMatchObject({
      data: { status: "running" },
    });
    await using idle = await serve(running("job_1"));
    expect(await fetchJson(idle, `/sandbox/status/${SANDBOX}`)).toMatchObject({ data: { status: "idle" } });
  });

  test("that was destroyed is returned only with includeDeleted", async () => {
    await using server = await serve(all(aSandbox({ status: "terminated" })));
    expect((await server.fetch(`${BASE}/sandbox/${SANDBOX}`)).status).toBe(404);
    const shown = await fetchJson(server, `/sandbox/${SANDBOX}?includeDeleted=true`);
    expect(shown).toMatchObject({ success: true, data: { status: "deleted" } });
  });

  test("that is paused has a flat response", async () => {
    const checkpoint = { id: "ckp_1", takenAt: "2025-01-01T00:00:00.000Z", sizeBytes: 1 };
    await using server = await serve(all(aSandbox({ status: "standby", checkpoint })));
    const answer = await fetchJson(server, `/sandbox/${SANDBOX}/pause`, { method: "POST" });
    expect(read(theirs.PauseResponseSchema, answer)).toEqual({
      ...{ success: true, sandboxId: SANDBOX, status: "suspended", checkpointId: "ckp_1" },
    });
  });

  test("that is still being deleted is not reported as deleted", async () => {
    await using server = await serve(all(aSandbox({ status: "stopping" })));
    const answer = await server.fetch(`${BASE}/sandbox/${SANDBOX}`, { method: "DELETE" });
    expect([answer.status, await answer.json()]).toEqual([
      504,
      expect.objectContaining({ success: false, errorCode: "deadline", dispatched: "yes" }),
    ]);
  });

  test("is awaited without polling", async () => {
    let status: Sandbox["status"] = "waking";
    let looks = 0;
    const page = { events: [], cursor: "1" };
    const woken = Promise.withResolvers<void>();
    await using server = await serve({
      sandboxes: {
        get: async () => {
          looks += 1;
          return aSandbox({ status });
        },
      },
      execs: noExecs,
      followEvents: async function* () {
        yield page;
        await woken.promise;
        yield page;
      },
    });
    const wait = fetchJson(server, `/sandbox/status/${SANDBOX}?waitForStatus=idle,failed&waitMs=60000`);
    await until(() => looks === 2);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(looks).toBe(2);
    status = "ready";
    woken.resolve();
    expect(await wait).toEqual({ success: true, data: { sandboxId: SANDBOX, status: "idle" } });
  });

  test("is returned in its current state when the wait times out", async () => {
    await using server = await serve({
      sandboxes: box({ status: "waking" }),
      execs: noExecs,
      followEvents: async function* (_filter, signal) {
        yield { events: [], cursor: "1" };
        await once(signal, "abort");
        throw signal.reason;
      },
    });
    const answer = await fetchJson(server, `/sandbox/status/${SANDBOX}?waitForStatus=idle&waitMs=50`);
    expect(answer).toMatchObject({ success: true, data: { status: "suspended" } });
  });

  test("in one-shot mode is deleted when a client learns of its command's end, and keeps its exit code", async () => {
    const removed: string[] = [];
    const details = JSON.stringify({ mode: "oneshot", executionId: "exe_1" });
    const ended = anExec({ id: "exe_1", exitCode: 7 });
    await using server = await serve({
      sandboxes: {
        ...box({ labels: { "agentuity/details-00": details } }),
        remove: async (ref) => {
          removed.push(ref);
          return aSandbox({ status: "stopping" });
        },
      },
      execs: { ...noExecs, get: async () => ended, wait: async () => ended },
    });
    expect(await fetchJson(server, "/sandbox/execution/exe_1?wait=5m")).toMatchObject({
      data: { exitCode: 7 },
    });
    expect(removed).toEqual([SANDBOX]);
    expect(await fetchJson(server, `/sandbox/status/${SANDBOX}`)).toMatchObject({
      data: { status: "stopping", exitCode: 7 },
    });
  });
});

describe("unsupported fields of a create are refused by name", () => {
  test.each([
    [{ network: { enabled: true } }, "network.enabled"],
    [{ dependencies: ["git"] }, "sandbox.dependencies"],
    [{ packages: ["typescript"] }, "sandbox.packages"],
    [{ scopes: ["services:read"] }, "sandbox.scopes"],
    [{ timeout: { paused: "24h" } }, "timeout.paused"],
    [{ stream: { stdout: "stream_1" } }, "stream.stdout"],
    [{ stream: { timestamps: true } }, "stream.timestamps"],
    [{ snapshot: "snp_1" }, "snp_1"],
    [{ unheardOf: 1 }, "sandbox.unheardOf"],
  ])("%j", async (body, name) => {
    await using server = await serve({});
    const answer = await server.fetch(`${BASE}/sandbox`, json(body));
    expect([answer.status, await answer.json()]).toEqual([
      501,
      expect.objectContaining({ errorCode: "not_supported", message: expect.stringContaining(name) }),
    ]);
  });

  test.each([
    [{ runtime: "bun:1" }, 404, "image_not_found"],
    [{ resources: { memory: "lots" } }, 400, "invalid_request"],
    [{ timeout: { idle: "soon" } }, 400, "invalid_request"],
    [{ name: "Not A Name" }, 400, "invalid_request"],
    [{ stream: { stdin: "elsewhere" }, command: { exec: ["cat"] } }, 400, "invalid_request"],
    [{ command: { exec: [] } }, 400, "invalid_request"],
  ])("%j is %d %s", async (body, status, code) => {
    await using server = await serve({});
    const answer = await server.fetch(`${BASE}/sandbox`, json(body));
    expect([answer.status, await answer.json()]).toEqual([
      status,
      expect.objectContaining({ errorCode: code }),
    ]);
  });

  test("a sandbox whose setup fails is deleted and its name freed", async () => {
    const removed: string[] = [];
    await using server = await serve({
      sandboxes: {
        ...box(),
        create: async () => ({ sandbox: aSandbox(), existed: false }),
        remove: async (ref) => {
          removed.push(ref);
          return aSandbox({ status: "stopping" });
        },
      },
      files: { write: () => Promise.reject(new HoldfastError("permission_denied", { dispatched: "yes" })) },
    });
    const files = [{ path: "/etc/shadow", content: "" }];
    const answer = await server.fetch(`${BASE}/sandbox`, json({ files }));
    expect([answer.status, removed]).toEqual([403, [SANDBOX]]);
  });

  test("a port is made public once, and reported while it is public", async () => {
    const opened: unknown[] = [];
    const preview = {
      ...{ id: "prv_1", name: "agentuity", sandboxId: SANDBOX, port: 3_000, public: true },
      ...{ createdAt: "2025-01-01T00:00:00.000Z", expiresAt: null },
    };
    let labels = {};
    let isOpen = true;
    await using server = await serve({
      sandboxes: {
        get: async () => aSandbox({ labels }),
        create: async (input) => {
          labels = input.labels ?? {};
          return { sandbox: aSandbox({ labels }), existed: false };
        },
      },
      execs: noExecs,
      previews: {
        create: async (_ref, input) => {
          opened.push(input);
          if (opened.length > 1) throw new HoldfastError("preview_exists");
          return { preview, token: null };
        },
        list: async () => (isOpen ? [preview] : []),
      },
    });
    const url = `http://3000-${SANDBOX}.localhost${/:\d+$/.exec(server.url)?.[0]}/`;
    for (let count = 0; count < 2; count += 1) {
      const made = await fetchJson(server, "/sandbox", json({ network: { port: 3_000 } }));
      expect(read(theirs.SandboxCreateResponseSchema, made)).toMatchObject({ success: true, data: { url } });
    }
    expect(opened[0]).toEqual({ name: "agentuity", port: 3_000, public: true });
    expect(await fetchJson(server, `/sandbox/${SANDBOX}`)).toMatchObject({
      data: { networkPort: 3_000, url },
    });
    isOpen = false;
    const closed = (await fetchJson(server, `/sandbox/${SANDBOX}`)) as { data: object };
    expect(closed.data).not.toHaveProperty("url");
  });

  test("supported fields of a create are translated for the engine", async () => {
    const asked: unknown[] = [];
    await using server = await serve({
      sandboxes: {
        ...box(),
        create: async (input) => {
          asked.push(input);
          return { sandbox: aSandbox(), existed: false };
        },
      },
      execs: noExecs,
    });
    const answer = await server.fetch(
      `${BASE}/sandbox`,
      json({
        name: "demo",
        env: { A: "1" },
        resources: { memory: "1Gi", cpu: "500m", disk: "2Gi" },
        timeout: { idle: "10m", execution: "1h", paused: "0s" },
        network: { enabled: false },
      }),
    );
    expect(answer.status).toBe(201);
    expect(read(theirs.SandboxCreateResponseSchema, await answer.json())).toMatchObject({
      data: { sandboxId: SANDBOX, status: "idle" },
    });
    expect(asked).toEqual([
      {
        name: "demo",
        image: "host",
        env: { A: "1" },
        resources: { memoryMb: 1_024, cpus: 0.5, diskMb: 2_048 },
        lifecycle: { idleStandbyMs: 600_000, maxExecMs: 3_600_000 },
        labels: expect.any(Object),
      },
    ]);
  });
});

test.each([
  [{ memory: "1Gi", cpu: "2", disk: "2Gi" }, {}, { memory: "1Gi", cpu: "2", disk: "2Gi" }],
  [{ memory: "1024Mi", cpu: "2000m" }, {}, { memory: "1024Mi", cpu: "2000m", disk: "2048Mi" }],
  [undefined, {}, { memory: "1024Mi", cpu: "2000m", disk: "2048Mi" }],
  // The sandbox's record was changed after the request.
  [{ memory: "1Gi", cpu: "2" }, { memoryMb: 512 }, { memory: "512Mi", cpu: "2", disk: "2048Mi" }],
])("resources requested as %j are returned in those units", async (resources, changed, shown) => {
  let labels = {};
  const resourcesNow = { cpus: 2, pids: 9, memoryMb: 1_024, diskMb: 2_048, ...changed };
  await using server = await serve({
    sandboxes: {
      get: async () => aSandbox({ labels, resources: resourcesNow }),
      create: async (input) => {
        labels = input.labels ?? {};
        return { sandbox: aSandbox({ labels }), existed: false };
      },
    },
    execs: noExecs,
  });
  await fetchJson(server, "/sandbox", json({ resources }));
  expect(await fetchJson(server, `/sandbox/${SANDBOX}`)).toMatchObject({ data: { resources: shown } });
});

test("the regions are this server, under the name that listings report", async () => {
  await using server = await serve({ sandboxes: box(), execs: noExecs });
  const regions = await fetchJson(server, "/cli/region");
  expect(read(ListRegionsResponseSchema, regions)).toEqual({
    success: true,
    data: [{ region: "local", description: expect.any(String) }],
  });
  const row = await fetchJson(server, `/cli/sandbox/${SANDBOX}`);
  expect(row).toMatchObject({ data: { region: "local" } });
});

test("there is one organization, the one that listings report", async () => {
  await using server = await serve({ sandboxes: box(), execs: noExecs });
  const listed = read(ListOrganizationsResponseSchema, await fetchJson(server, "/cli/organization"));
  expect(listed).toEqual({ success: true, data: [{ id: "holdfast", name: "holdfast" }] });
  expect(await fetchJson(server, `/cli/sandbox/${SANDBOX}`)).toMatchObject({ data: { orgId: "holdfast" } });
});

describe("a command", () => {
  test("is started under its own id, and returns the URLs of its output", async () => {
    const orders: StartExec[] = [];
    await using server = await serve({
      sandboxes: box(),
      execs: {
        start: async (_ref, input) => {
          orders.push(input);
          return { exec: { ...started, id: input.id ?? "" }, followed: false };
        },
      },
    });
    const body = { command: ["sh", "-c", "true"], timeout: "30s", stream: { stderr: "ignore" } };
    const answer = read(
      theirs.ExecuteResponseSchema,
      await fetchJson(server, `/sandbox/${SANDBOX}/execute`, json(body)),
    );
    if (!answer.success) throw new Error("it was refused");
    const id = orders[0]?.id ?? "";
    expect(orders).toEqual([{ id, argv: ["sh", "-c", "true"], timeoutMs: 30_000, keepAwake: true }]);
    expect(answer.data).toMatchObject({
      executionId: id,
      status: "running",
      stdoutStreamUrl: expect.stringContaining(`${server.url}${BASE}/streams/${id}/stdout?token=`),
    });
    expect(answer.data.stderrStreamUrl).toBeUndefined();
    expect(answer.autoResumed).toBeUndefined();
  });

  test.each(["standby", "waking"] as const)(
    "that is the first after %s reports that it woke the sandbox",
    async (status) => {
      await using server = await serve({
        sandboxes: box({ status }),
        execs: { start: async () => ({ exec: started, followed: false }) },
      });
      const answer = await fetchJson(server, `/sandbox/${SANDBOX}/execute`, json({ command: ["true"] }));
      expect(answer).toMatchObject({ success: true, autoResumed: true });
    },
  );

  test("is awaited by one held request, up to the longest wait", async () => {
    const waits: number[] = [];
    const over = Promise.withResolvers<void>();
    let exec = started;
    await using server = await serve({
      sandboxes: box(),
      execs: {
        ...noExecs,
        get: async () => exec,
        wait: async (_id, { waitMs }) => {
          waits.push(waitMs);
          await over.promise;
          return exec;
        },
      },
    });
    const poll = fetchJson(server, "/sandbox/execution/exe_1?wait=5m");
    await until(() => waits.length === 1);
    exec = anExec({ id: "exe_1", exitCode: 0 });
    over.resolve();
    const answer = read(theirs.ExecutionGetResponseSchema, await poll);
    expect(answer).toMatchObject({
      data: { executionId: "exe_1", status: "completed", exitCode: 0, durationMs: 0 },
    });
    expect(waits).toEqual([240_000]);
    expect(await fetchJson(server, "/sandbox/execution/exe_1")).toMatchObject({
      data: { status: "completed" },
    });
    expect(waits).toHaveLength(1);
  });

  test.each([
    [{ status: "queued" }, "queued", "pending"],
    [{ status: "running" }, "running", "running"],
    [{ status: "exited", exitCode: 0 }, "completed", "completed"],
    [{ status: "exited", exitCode: 3 }, "failed", "failed"],
    [{ status: "exited", exitCode: null, signal: "SIGKILL" }, "failed", "failed"],
    [{ status: "exited", exitCode: null, signal: "SIGTERM" }, "failed", "cancelled"],
    [{ status: "timed_out", exitCode: null }, "timeout", "failed"],
    [{ status: "cancelled", exitCode: null }, "cancelled", "cancelled"],
    [
      { status: "lost", exitCode: null, cause: { code: "keeper_died", message: "Its keeper died." } },
      "failed",
      "failed",
    ],
    [{ status: "refused", exitCode: null }, "failed", "failed"],
  ] as const)("that is %j is %s, and as a job %s", async (over, execution, job) => {
    const exec = anExec({ id: "job_1", ...over });
    const list = async () => ({ items: [exec, { ...exec, id: "exe_1" }], nextCursor: null });
    await using server = await serve({ sandboxes: box(), execs: { list, get: async () => exec } });
    const executions = await fetchJson(server, `/sandbox/sandboxes/${SANDBOX}/executions`);
    expect(read(theirs.ExecutionListResponseSchema, executions)).toMatchObject({
      data: { executions: [{ executionId: "exe_1", status: execution }] },
    });
    const jobs = await fetchJson(server, `/sandbox/sandboxes/${SANDBOX}/jobs`);
    expect(read(theirs.JobListResponseSchema, jobs)).toMatchObject({
      data: { jobs: [{ jobId: "job_1", status: job }] },
    });
  });

  test("of a job is not found in another sandbox, nor is an execution found as a job", async () => {
    await using server = await serve({
      sandboxes: box(),
      execs: { get: async (id) => anExec({ id, sandboxId: "sbx_aaaaaaaaaaaaaaaa" }) },
    });
    for (const id of ["job_1", "exe_1"]) {
      const answer = await server.fetch(`${BASE}/sandbox/sandboxes/${SANDBOX}/jobs/${id}`);
      expect([answer.status, await answer.json()]).toEqual([
        404,
        expect.objectContaining({ code: "EXECUTION_NOT_FOUND" }),
      ]);
    }
  });
});

describe("a request whose connection broke before its response", () => {
  /** Creates an engine that holds every start until released, and records the requested starts. */
  function held() {
    const gate = Promise.withResolvers<void>();
    const ids: (string | undefined)[] = [];
    const keys: (string | undefined)[] = [];
    const engine: EngineDouble = {
      sandboxes: {
        ...box(),
        create: async (_input, { idempotencyKey }) => {
          keys.push(idempotencyKey);
          await gate.promise;
          return { sandbox: aSandbox(), existed: false };
        },
      },
      execs: {
        ...noExecs,
        start: async (_ref, { id }) => {
          ids.push(id);
          await gate.promise;
          return { exec: { ...started, id: id ?? "" }, followed: false };
        },
      },
    };
    return { engine, ids, keys, letGo: () => gate.resolve() };
  }

  async function broken(
    server: TestServer,
    path: string,
    body: object,
    hasArrived: () => boolean,
  ): Promise<void> {
    const headers = { ...authorized, "content-type": "application/json" };
    const asked = request(`${server.url}${BASE}${path}`, { method: "POST", headers });
    const closed = new Promise((resolve) => asked.on("error", () => {}).on("close", resolve));
    asked.end(JSON.stringify(body));
    await until(hasArrived);
    asked.destroy();
    await closed;
  }

  test.each([
    ["execute", `/sandbox/${SANDBOX}/execute`],
    ["job", `/sandbox/sandboxes/${SANDBOX}/jobs`],
  ])("follows the %s that it began, once", async (_what, path) => {
    const { engine, ids, letGo } = held();
    await using server = await serve(engine);
    const body = { command: ["echo", "once"] };
    await broken(server, path, body, () => ids.length === 1);
    const again = server.fetch(`${BASE}${path}`, json(body));
    await until(() => ids.length === 2);
    letGo();
    expect((await again).ok).toBe(true);
    await server.fetch(`${BASE}${path}`, json(body));
    const [first, second, third] = ids;
    expect(second).toBe(first);
    expect(third).not.toBe(first);
  });

  test("creates no second sandbox", async () => {
    const { engine, keys, letGo } = held();
    await using server = await serve(engine);
    await broken(server, "/sandbox", { env: { A: "1" } }, () => keys.length === 1);
    letGo();
    for (let count = 0; count < 2; count += 1)
      await server.fetch(`${BASE}/sandbox`, json({ env: { A: "1" } }));
    expect(keys[1]).toBe(keys[0]);
    expect(keys[2]).not.toBe(keys[0]);
  });

  test("does not affect requests of other callers or other commands", async () => {
    const { engine, ids, letGo } = held();
    await using server = await serve(engine, { keys: ["hf_other"] });
    const path = `/sandbox/${SANDBOX}/execute`;
    await broken(server, path, { command: ["echo", "a"] }, () => ids.length === 1);
    letGo();
    await server.fetch(`${BASE}${path}`, { ...json({ command: ["echo", "b"] }) });
    const theirsToo = json({ command: ["echo", "a"] });
    const headers = { ...theirsToo.headers, authorization: "Bearer hf_other" };
    await fetch(`${server.url}${BASE}${path}`, { ...theirsToo, headers } as RequestInit);
    expect(new Set(ids).size).toBe(3);
  });

  test("does not deduplicate two completed requests", async () => {
    const { engine, ids, letGo } = held();
    letGo();
    await using server = await serve(engine);
    const ask = () => server.fetch(`${BASE}/sandbox/${SANDBOX}/execute`, json({ command: ["date"] }));
    await Promise.all([ask(), ask(), ask()]);
    expect(new Set(ids).size).toBe(3);
  });
});

describe("output", () => {
  const outputRecord = (type: "stdout" | "stderr", text: string): OutputRecord => ({
    ...{ type, cursor: "c", at: 0 },
    data: Buffer.from(text),
  });
  const telling = (output: EngineApi["execs"]["output"]): EngineDouble => ({
    sandboxes: box(),
    execs: { get: async () => started, output },
  });
  const urlsOf = async (server: TestServer) => {
    const answer = read(
      theirs.ExecutionGetResponseSchema,
      await fetchJson(server, "/sandbox/execution/exe_1"),
    );
    if (!answer.success) throw new Error("it was refused");
    return { stdout: answer.data.stdoutStreamUrl ?? "", stderr: answer.data.stderrStreamUrl ?? "" };
  };

  test("is read without a key through its URL, each stream separately, beyond a reader's maximum time", async () => {
    let reads = 0;
    await using server = await serve(
      telling(async function* (_id, { stream = "stdout" }) {
        reads += 1;
        yield outputRecord(stream, `${stream} ${reads}\n`);
        if (reads % 2 === 0) yield { type: "end", cursor: "c", exec: started };
      }),
    );
    const { stdout, stderr } = await urlsOf(server);
    expect(await (await fetch(`${stdout}&v=2`)).text()).toBe("stdout 1\nstdout 2\n");
    expect(await (await fetch(stderr)).text()).toBe("stderr 3\nstderr 4\n");
  });

  test("starts streaming before there is any", async () => {
    const gate = Promise.withResolvers<void>();
    await using server = await serve(
      telling(async function* () {
        yield { type: "start", cursor: "c", exec: started };
        await gate.promise;
        yield outputRecord("stdout", "late\n");
        yield { type: "end", cursor: "c", exec: started };
      }),
    );
    const { stdout } = await urlsOf(server);
    const answer = await fetch(stdout);
    expect(answer.status).toBe(200);
    gate.resolve();
    expect(await answer.text()).toBe("late\n");
  });

  test("whose beginning is no longer kept is an error, and output that lacks its end is cut", async () => {
    const cut = anExec({ id: "exe_1", truncated: true });
    await using late = await serve(
      telling(async function* () {
        yield { type: "start", cursor: "c", exec: cut };
        yield outputRecord("stdout", "the rest\n");
        yield { type: "end", cursor: "c", exec: cut };
      }),
    );
    const answer = await fetch((await urlsOf(late)).stdout);
    expect([answer.status, await answer.json()]).toMatchObject([410, { errorCode: "output_dropped" }]);
    await using short = await serve(
      telling(async function* () {
        yield { type: "start", cursor: "c", exec: started };
        yield outputRecord("stdout", "the beginning\n");
        yield { type: "end", cursor: "c", exec: cut };
      }),
    );
    const { stdout } = await urlsOf(short);
    await expect(fetch(stdout).then((response) => response.text())).rejects.toThrow();
  });

  test("of a command waits for its reader; that of a job does not", async () => {
    const waits: (boolean | undefined)[] = [];
    await using server = await serve({
      sandboxes: box(),
      execs: {
        ...noExecs,
        get: () => Promise.reject(new HoldfastError("exec_not_found")),
        start: async (_ref, _order, { expectsReader }) => {
          waits.push(expectsReader);
          return { exec: started, followed: false };
        },
      },
    });
    const ask = (path: string) => server.fetch(`${BASE}/sandbox/${path}`, json({ command: ["date"] }));
    await ask(`${SANDBOX}/execute`);
    await ask(`sandboxes/${SANDBOX}/jobs`);
    expect(waits).toEqual([true, false]);
  });

  test("is refused for a forged URL or the URL of another stream", async () => {
    await using server = await serve(telling(async function* () {}));
    const { stdout, stderr } = await urlsOf(server);
    const token = new URL(stderr).searchParams.get("token");
    for (const url of [
      stdout.replace(/token=.*/, "token=x"),
      stdout.replace(/token=.*/, `token=${token}`),
      stdout.replace("exe_1", "exe_2"),
    ])
      expect((await fetch(url)).status).toBe(401);
    expect((await fetch(stdout.replace(/\?.*/, ""))).status).toBe(400);
  });

  test("that cannot be read leaves no usable URL in the log", async () => {
    let isBroken = false;
    const get = async () => {
      if (isBroken) throw new Error("unforeseen");
      return started;
    };
    await using server = await serve({ sandboxes: box(), execs: { get } });
    const { stdout } = await urlsOf(server);
    isBroken = true;
    expect((await fetch(stdout)).status).toBe(500);
    const line = server.lines.find(({ message }) => message === "request failed");
    expect(line?.fields).toMatchObject({ url: `${BASE}/streams/exe_1/stdout` });
    expect(JSON.stringify(server.lines)).not.toContain(new URL(stdout).searchParams.get("token"));
  });

  test.each([
    ["honours", "a secret", "a secret", 200],
    ["refuses", "a secret", "another", 401],
  ])("has URLs that the next server %s, depending on its secret", async (_does, secret, next, status) => {
    const engine = telling(async function* () {
      yield { type: "end", cursor: "c", exec: started };
    });
    await using first = await serve(engine, { linkSecret: secret });
    await using second = await serve(engine, { linkSecret: next });
    const { stdout } = await urlsOf(first);
    expect((await fetch(stdout.replace(first.url, second.url))).status).toBe(status);
  });
});

test("events, files, checkpoints and runtimes are parsed by the client", async () => {
  const image = {
    name: "host",
    kind: "host" as const,
    fingerprint: "f",
    createdAt: "2025-01-01T00:00:00.000Z",
  };
  await using server = await serve(
    {
      sandboxes: box(),
      events: async ({ order }) => ({
        items: [anEvent({ message: order ?? "", data: { path: "/srv/holdfast/x" } })],
        nextCursor: null,
      }),
      files: {
        list: async () => ({
          path: "/home/user",
          items: [aFile(3), { ...aFile(1), name: "l", kind: "symlink", target: "a" }],
          truncated: false,
        }),
        stat: async () => aFile(1),
      },
      checkpoints: {
        list: async () => ({ items: [aCheckpoint()], nextCursor: null }),
        create: async (_ref, { name }) => aCheckpoint({ name: name ?? "" }),
        remove: async () => {},
      },
      images: { list: async () => [{ ...image, sizeBytes: 1, files: 1 }] },
    },
    { hostPaths: ["/srv/holdfast"] },
  );
  const events = await fetchJson(server, `/sandbox/sandboxes/${SANDBOX}/events?direction=desc`);
  expect(read(theirs.SandboxEventListResponseSchema, events)).toMatchObject({
    data: {
      events: [{ eventId: "1", type: "sandbox.ready", event: { message: "newest", path: "<host path>" } }],
    },
  });
  expect(read(theirs.ListFilesResponseSchema, await fetchJson(server, `/fs/list/${SANDBOX}`))).toMatchObject({
    data: {
      files: [
        { path: "a", size: 3, isDir: false, mode: "0644" },
        { isSymlink: true, linkTarget: "a" },
      ],
    },
  });
  const list = await fetchJson(server, `/sandbox/checkpoints/${SANDBOX}`);
  expect(read(theirs.ListDiskCheckpointsResponseSchema, list)).toMatchObject({
    data: { checkpoints: [{ id: "ckp_0123456789abcdef", name: "before", parent: "" }] },
  });
  const made = await fetchJson(server, `/sandbox/${SANDBOX}/checkpoint`, json({ name: "one" }));
  expect(read(theirs.CreateDiskCheckpointResponseSchema, made)).toMatchObject({ data: { name: "one" } });
  expect(read(theirs.ListRuntimesResponseSchema, await fetchJson(server, "/sandbox/runtimes"))).toMatchObject(
    {
      data: { total: 1, runtimes: [{ id: "host" }] },
    },
  );
  // A file is not a directory: only an entry of the requested kind is removed.
  const wrong = await server.fetch(`${BASE}/fs/rmdir/${SANDBOX}`, json({ path: "a", recursive: true }));
  expect(wrong.status).toBe(409);
});

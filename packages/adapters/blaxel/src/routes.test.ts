import { once } from "@holdfast/adapter-shared";
import type { Exec, FileChange, PreviewInfo } from "@holdfast/contract";
import { HoldfastError } from "@holdfast/contract";
import type { OutputRecord, PreviewHeaders } from "@holdfast/engine";
import {
  aCheckpoint,
  aDrive,
  aFile,
  aMount,
  anExec,
  aSandbox,
  authorized,
  json,
  KEY,
  serve as serveApp,
  until,
} from "@holdfast/server/testing";
import { expect, test } from "vitest";
import { blaxelAdapter } from "./index.ts";

const serve: typeof serveApp = (engine, options) =>
  serveApp(engine, { ...options, adapters: [blaxelAdapter] });

const DATA = "/compat/blaxel/run/demo/sandboxes/demo";
const CONTROL = "/compat/blaxel/v0";
const box = { get: async () => aSandbox(), wake: async () => aSandbox() };
const outputRecord = (type: "stdout" | "stderr", text: string | Uint8Array): OutputRecord => ({
  ...{ type, cursor: "c", at: 0 },
  data: typeof text === "string" ? Buffer.from(text) : text,
});
const begun = (exec: Exec): OutputRecord => ({ type: "start", cursor: "c", exec });
const over = (exec: Exec): OutputRecord => ({ type: "end", cursor: "c", exec });
const quiet: OutputRecord = { type: "keepalive", cursor: "c" };

/** An engine with an exec and its output records, for any reader. */
function execsWith(exec: Exec, ...streams: OutputRecord[][]) {
  const cursors: (string | undefined)[] = [];
  const execs = {
    start: async () => ({ exec, followed: false }),
    get: async () => exec,
    list: async () => ({ items: [exec], nextCursor: null }),
    output: async function* (_id: string, { cursor }: { cursor?: string | undefined }) {
      cursors.push(cursor);
      yield* streams[Math.min(cursors.length, streams.length) - 1] ?? [];
    },
  };
  return { execs, cursors };
}

const ended = anExec({ id: "exe_1", status: "exited", exitCode: 0 });
const running = anExec({ id: "exe_1", status: "running" });

test("the client's own header carries the key, and a valid Authorization header does not override a wrong one", async () => {
  await using server = await serve({ sandboxes: { list: async () => ({ items: [], nextCursor: null }) } });
  const get = (headers: Record<string, string>) => fetch(`${server.url}${CONTROL}/sandboxes`, { headers });
  expect((await get({ "x-blaxel-authorization": `Bearer ${KEY}` })).status).toBe(200);
  expect((await get(authorized)).status).toBe(200);
  expect((await get({ ...authorized, "x-blaxel-authorization": "Bearer hf_nobody" })).status).toBe(401);
  expect((await get({})).status).toBe(401);
});

test("the client's header is accepted only on the client's own routes", async () => {
  await using server = await serve({ sandboxes: { list: async () => ({ items: [], nextCursor: null }) } });
  const headers = { "x-blaxel-authorization": `Bearer ${KEY}` };
  expect((await fetch(`${server.url}/v1/sandboxes`, { headers })).status).toBe(401);
});

test("errors of the engine and of the HTTP layer have the client's shape", async () => {
  await using server = await serve({
    sandboxes: {
      get: async () => {
        throw new HoldfastError("wake_timeout", { sandboxId: "sbx_1", cause: new Error("below") });
      },
    },
  });
  const thrown = await server.fetch(`${CONTROL}/sandboxes/demo`);
  expect([thrown.status, thrown.headers.get("retry-after")]).toEqual([503, "1"]);
  expect(await thrown.json()).toEqual({
    code: 503,
    error: expect.stringMatching(/^The sandbox did not wake in time\. \(wake_timeout, req_\w+\)$/),
    message: "The sandbox did not wake in time.",
    errorCode: "wake_timeout",
    requestId: thrown.headers.get("x-request-id"),
    hint: expect.any(String),
    retryable: true,
    dispatched: "no",
    sandboxId: "sbx_1",
    cause: { code: "Error", message: "below" },
  });
  const invalid = await server.fetch(`${CONTROL}/sandboxes`, json({ metadata: { name: 1 } }));
  expect([invalid.status, await invalid.json()]).toEqual([
    400,
    expect.objectContaining({ code: 400, errorCode: "invalid_request" }),
  ]);
  const ours = await server.fetch("/v1/sandboxes/demo");
  expect(await ours.json()).toMatchObject({ error: { code: "wake_timeout" } });
});

test("a sandbox that is being deleted is reported as a taken name, which makes the client wait", async () => {
  await using server = await serve({
    sandboxes: {
      create: async () => {
        throw new HoldfastError("sandbox_gone", { sandboxId: "sbx_1" });
      },
    },
  });
  const answer = await server.fetch(`${CONTROL}/sandboxes?createIfNotExist=true`, json({}));
  expect(await answer.json()).toMatchObject({ code: 409, errorCode: "name_taken", sandboxId: "sbx_1" });
});

const run = (fields: object, accept = "text/event-stream"): RequestInit => {
  const init = json({ command: "true", waitForCompletion: true, ...fields });
  return { ...init, headers: { ...init.headers, accept } };
};
const linesOf = async (answer: Response) =>
  (await answer.text())
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { type: string; data: string });

test("a stream has output pieces, keepalives, and the process at the end", async () => {
  const [half, rest] = [Buffer.from([0xc3]), Buffer.from([0xa4, 0x0a])];
  const { execs } = execsWith(running, [
    begun(running),
    outputRecord("stdout", half),
    outputRecord("stderr", "oops"),
    quiet,
    outputRecord("stdout", rest),
    over(ended),
  ]);
  await using server = await serve({ sandboxes: box, execs });
  const answer = await server.fetch(`${DATA}/process`, run({ workingDir: "~/x" }));
  expect(answer.headers.get("content-type")).toContain("application/x-ndjson");
  const lines = await linesOf(answer);
  const result = lines.pop();
  expect(lines).toEqual([
    { type: "keepalive", data: "" },
    { type: "stderr", data: "oops" },
    { type: "keepalive", data: "" },
    { type: "stdout", data: "ä\n" },
  ]);
  expect(JSON.parse(result?.data ?? "")).toMatchObject({
    ...{ pid: "exe_1", status: "completed", exitCode: 0, workingDir: "/root/x" },
    ...{ stdout: "ä\n", stderr: "oops", logs: "oopsä\n" },
  });
});

test("a stream that the engine ends for its age is resumed where it stopped", async () => {
  const later = { ...outputRecord("stdout", "two"), cursor: "d" };
  const { execs, cursors } = execsWith(
    running,
    [begun(running), outputRecord("stdout", "one")],
    [later, over(ended)],
  );
  await using server = await serve({ sandboxes: box, execs });
  const lines = await linesOf(await server.fetch(`${DATA}/process`, run({})));
  expect(lines.map(({ type }) => type)).toEqual(["keepalive", "stdout", "stdout", "result"]);
  expect(cursors).toEqual([undefined, "c"]);
});

test("an interrupted stream does not look complete", async () => {
  const { execs } = execsWith(running, []);
  execs.output = async function* () {
    yield begun(running);
    throw new HoldfastError("link_lost");
  };
  await using server = await serve({ sandboxes: box, execs });
  const lines = server.fetch(`${DATA}/process`, run({})).then(linesOf);
  await expect(lines).rejects.toThrow();
});

test("a log has complete lines, each with its stream, however they were written", async () => {
  const { execs } = execsWith(running, [
    begun(running),
    outputRecord("stdout", "one\ntw"),
    outputRecord("stderr", "oops"),
    quiet,
    outputRecord("stdout", "o\nstdout:three\n"),
    outputRecord("stderr", "!"),
    outputRecord("stdout", "last"),
    over(ended),
  ]);
  await using server = await serve({ sandboxes: box, execs });
  const answer = await server.fetch(`${DATA}/process/exe_1/logs/stream`);
  expect((await answer.text()).split("\n").filter((line) => line !== "[keepalive]")).toEqual([
    "stdout:one",
    "stdout:two",
    "stdout:stdout:three",
    "stdout:last",
    "stderr:oops!",
    "",
  ]);
});

test("a log that lacks output, even if only its first stream said so, has the rest and is then cut", async () => {
  const { execs } = execsWith(
    ended,
    [begun({ ...running, truncated: true }), outputRecord("stdout", "late\n")],
    [{ ...outputRecord("stdout", "later\n"), cursor: "d" }, over(ended)],
  );
  await using server = await serve({ sandboxes: box, execs });
  const answer = await server.fetch(`${DATA}/process/exe_1/logs/stream`);
  let text = "";
  const decoder = new TextDecoder();
  const reading = async () => {
    for await (const piece of answer.body ?? []) text += decoder.decode(piece as Uint8Array);
  };
  await expect(reading()).rejects.toThrow();
  expect(text).toContain("stdout:late\nstdout:later\n");
});

test("a process waits for a reader of its output, unless its caller waits for the whole result", async () => {
  const waits: (boolean | undefined)[] = [];
  const { execs } = execsWith(ended, [begun(ended), over(ended)]);
  const start = async (_ref: string, _order: object, options: { expectsReader?: boolean }) => {
    waits.push(options.expectsReader);
    return { exec: ended, followed: false };
  };
  await using server = await serve({ sandboxes: box, execs: { ...execs, start, wait: async () => ended } });
  await server.fetch(`${DATA}/process`, json({ command: "true" }));
  await (await server.fetch(`${DATA}/process`, run({}))).text();
  await server.fetch(`${DATA}/process`, run({}, "application/json"));
  expect(waits).toEqual([true, true, false]);
});

test("of two callers that take a name at the same time one is refused", async () => {
  const { execs } = execsWith(running);
  execs.list = async () => ({ items: [], nextCursor: null });
  execs.start = async () => ({ exec: running, followed: true });
  await using server = await serve({ sandboxes: box, execs });
  const followed = await server.fetch(`${DATA}/process`, json({ command: "true", name: "web" }));
  expect([followed.status, await followed.json()]).toMatchObject([400, { errorCode: "invalid_request" }]);
  execs.start = async () => {
    throw new HoldfastError("exec_conflict");
  };
  const other = await server.fetch(`${DATA}/process`, json({ command: "true", name: "web" }));
  expect([other.status, await other.json()]).toMatchObject([400, { errorCode: "invalid_request" }]);
});

test("a command that never ran is an error, and an unknown outcome is reported as such", async () => {
  const refused = anExec({ status: "refused", cause: { code: "queue_timeout", message: "No turn." } });
  const { execs } = execsWith(refused);
  await using server = await serve({ sandboxes: box, execs });
  const unstarted = await server.fetch(`${DATA}/process`, json({ command: "true" }));
  expect([unstarted.status, await unstarted.json()]).toMatchObject([429, { errorCode: "too_many_execs" }]);

  const lost = anExec({
    status: "lost",
    exitCode: null,
    cause: { code: "keeper_lost", message: "Gone." },
    dispatched: "unknown",
  });
  const { execs: others } = execsWith(lost, [over(lost)]);
  await using second = await serve({ sandboxes: box, execs: others });
  const unknown = await second.fetch(`${DATA}/process/exe_1`);
  expect(await unknown.json()).toMatchObject({
    ...{ status: "failed", exitCode: -1 },
    holdfast: { status: "lost", dispatched: "unknown", cause: { code: "keeper_lost" } },
  });
});

test("a background process keeps its sandbox awake if standby keeps files only", async () => {
  const orders: { keepAwake?: boolean | undefined }[] = [];
  const { execs } = execsWith(running);
  const start = async (_ref: string, order: object) => {
    orders.push(order);
    return { exec: running, followed: false };
  };
  for (const standbyKind of ["memory", "files"] as const) {
    const get = async () => aSandbox({ standbyKind });
    await using server = await serve({ sandboxes: { ...box, get }, execs: { ...execs, start } });
    await server.fetch(`${DATA}/process`, json({ command: "sleep 9" }));
  }
  expect(orders.map(({ keepAwake }) => keepAwake)).toEqual([false, true]);
});

test.each([
  ["%2Froot%2Fa%20b", "/root/a b"],
  ["/root//b.bin", "/root/b.bin"],
  ["root/c", "/root/c"],
  ["~/d", "/root/d"],
  ["%2F~%2Fd", "/root/d"],
  ["/~d", "/~d"],
  ["", "/"],
  ["%2Fa%2F..%2Fb/", "/a/../b"],
])("the rest of a URL %j means %j", async (rest, path) => {
  const asked: string[] = [];
  const read = async (_ref: string, at: string) => {
    asked.push(at);
    return { stat: aFile(2), body: (async function* () {})() };
  };
  await using server = await serve({ files: { read } });
  await server.fetch(`${DATA}/filesystem/${rest}`);
  expect(asked).toEqual([path]);
});

test("an incomplete listing or search is an error", async () => {
  const part = { path: "/", items: [], truncated: true };
  await using server = await serve({
    files: {
      read: async () => {
        throw new HoldfastError("not_a_file");
      },
      list: async () => part,
      search: async () => part,
    },
  });
  for (const path of ["filesystem/%2F", "filesystem-find/%2F", "filesystem-content-search/%2F?query=x"]) {
    const answer = await server.fetch(`${DATA}/${path}`);
    expect([answer.status, await answer.json()]).toMatchObject([413, { errorCode: "too_large" }]);
  }
});

test("a file is written from JSON, from a form with fields in any order, and from bytes", async () => {
  const written: [path: string, content: string, mode: number | undefined][] = [];
  const write = async (
    _ref: string,
    path: string,
    body: AsyncIterable<Uint8Array>,
    { mode }: { mode?: number | undefined },
  ) => {
    written.push([path, Buffer.concat(await Array.fromAsync(body)).toString(), mode]);
    return aFile(1);
  };
  await using server = await serve({ files: { write } });
  const put = (path: string, body: NonNullable<RequestInit["body"]>, headers: Record<string, string> = {}) =>
    server.fetch(`${DATA}/filesystem/${path}`, { method: "PUT", body, headers });
  const form = new FormData();
  form.append("file", new Blob(["form"]), "x.bin");
  form.append("permissions", "0755");
  const type = { "content-type": "application/json" };
  const answers = [
    await put("/a", JSON.stringify({ content: "json", permissions: "600" }), type),
    await put("/b", form),
    await put("/c", "bytes", { "content-type": "application/octet-stream" }),
  ];
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 200]);
  expect(written).toEqual([
    ["/a", "json", 0o600],
    ["/b", "form", 0o755],
    ["/c", "bytes", undefined],
  ]);
  const empty = new FormData();
  empty.append("path", "/d");
  expect((await put("/d", empty)).status).toBe(400);
  expect((await put("/e", "--x", { "content-type": "multipart/form-data; boundary=y" })).status).toBe(400);
});

test("a broken mount is not listed among the serving ones", async () => {
  const cause = { code: "drive_gone", message: "Its files are gone." };
  const items = [aMount(), aMount({ path: "/other", state: "broken", cause })];
  await using server = await serve({ mounts: { list: async () => ({ items }) } });
  expect(await (await server.fetch(`${DATA}/drives/mount`)).json()).toEqual({
    mounts: [
      { driveName: "data", mountPath: "/workspace", drivePath: "/", readOnly: false, state: "proven" },
    ],
    broken: [expect.objectContaining({ mountPath: "/other", state: "broken", cause })],
  });
});

test("a watch reports that it is established, and sends keepalives", async () => {
  const changes = Promise.withResolvers<void>();
  const watched: [path: string, recursive: boolean][] = [];
  async function* seen(): AsyncGenerator<FileChange> {
    await changes.promise;
    yield { kind: "created", path: "/root/a/b.txt", directory: false };
    yield { kind: "modified", path: "/root/skip/b.txt", directory: false };
    yield { kind: "overflow", path: "/root", directory: true };
  }
  const watch = async (_ref: string, path: string, { recursive }: { recursive: boolean }) => {
    watched.push([path, recursive]);
    return seen();
  };
  await using server = await serve({ files: { watch } }, { numbers: { streamKeepaliveMs: 20 } });
  const answer = await server.fetch(`${DATA}/watch/filesystem/%2Froot%2F**?ignore=skip`);
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const readUntil = async (isThere: () => boolean) => {
    while (!isThere()) {
      const step = await reader?.read();
      if (step?.done) return;
      text += step?.value ?? "";
    }
  };
  await readUntil(() => text.split("[keepalive]").length > 3);
  changes.resolve();
  await readUntil(() => false);
  expect(watched).toEqual([["/root", true]]);
  const lines = text.split("\n").filter((line) => line.startsWith("{"));
  expect(lines.map((line) => JSON.parse(line))).toEqual([
    { op: "CREATE", name: "b.txt", path: "/root/a", error: null },
    { op: "OVERFLOW", name: "root", path: "/", error: expect.any(String) },
  ]);
});

test("the health of a sandbox comes from existing evidence, without waking it", async () => {
  for (const [status, expected] of [
    ["ready", 200],
    ["standby", 200],
    ["degraded", 503],
    ["failed", 503],
  ] as const) {
    const cause = expected === 200 ? null : { code: "proof", message: "No exec." };
    await using server = await serve({ sandboxes: { get: async () => aSandbox({ status, cause }) } });
    const answer = await server.fetch(`${DATA}/health`);
    expect([answer.status, await answer.json()]).toMatchObject([
      expected,
      expected === 200 ? { status: "ok", holdfast: { status } } : { errorCode: "sandbox_degraded" },
    ]);
  }
});

test.each([
  [`${DATA}/process`, { command: "true", pty: true }, "process.pty"],
  [`${DATA}/drives/mount`, { driveName: "d", mountPath: "/d", cache: "all" }, "mount.cache"],
  [`${CONTROL}/drives`, { metadata: { name: "d" }, spec: { tier: "fast" } }, "spec.tier"],
])("an unknown field of %s is refused by name", async (path, body, field) => {
  await using server = await serve({ sandboxes: box });
  const answer = await server.fetch(path, json(body));
  expect([answer.status, await answer.json()]).toMatchObject([
    501,
    { errorCode: "not_supported", message: expect.stringContaining(`: ${field}.`) },
  ]);
});

test.each([
  ["has ended", 2, "completed"],
  ["still runs when the time is over", Number.POSITIVE_INFINITY, "running"],
])("a wait for a process responds when it %s, and keeps its sandbox awake", async (_what, slices, status) => {
  const { execs } = execsWith(running, [over(ended)]);
  let [waits, wakes] = [0, 0];
  const now = () => (waits >= slices ? ended : running);
  await using server = await serve({
    sandboxes: {
      ...box,
      wake: async () => {
        wakes += 1;
        return aSandbox();
      },
    },
    execs: {
      ...execs,
      get: async () => now(),
      wait: async (_id, { waitMs }) => {
        waits += 1;
        await new Promise((resolve) => setTimeout(resolve, Math.min(waitMs, 200)));
        return now();
      },
    },
  });
  const answer = await server.fetch(`${DATA}/process/exe_1/wait?timeout=1`);
  expect([answer.status, await answer.json()]).toMatchObject([200, { pid: "exe_1", status }]);
  expect(wakes).toBeGreaterThan(1);
  expect(waits).toBeGreaterThan(1);
});

const aPreview = (given: Partial<PreviewInfo>): PreviewInfo => ({
  ...{ id: "prv_0123456789abcdef", name: "web", sandboxId: aSandbox().id, port: 3_000, public: false },
  ...{ createdAt: "2025-01-01T00:00:00.000Z", expiresAt: null },
  ...given,
});
const noHeaders = { request: {}, response: {} };

test("headers of a preview are stored, returned, and changed one direction at a time", async () => {
  let headers: PreviewHeaders = noHeaders;
  const keep = async (_ref: string, _name: unknown, change: { headers?: PreviewHeaders | undefined }) => {
    headers = change.headers ?? headers;
    return aPreview({});
  };
  await using server = await serve({
    sandboxes: box,
    previews: {
      list: async () => [aPreview({})],
      create: async (ref, input, options = {}) => ({ preview: await keep(ref, input, options), token: null }),
      update: keep,
      headersOf: () => headers,
    },
  });
  const url = `${CONTROL}/sandboxes/demo/previews`;
  const send = async (path: string, method: string, spec: object) => {
    const answer = await server.fetch(path, { ...json({ metadata: { name: "new" }, spec }), method });
    return [answer.status, await answer.json()];
  };
  const cors = { "Access-Control-Allow-Origin": "*" };
  const asked = { port: 3_000, requestHeaders: { "X-Tenant": "7" }, responseHeaders: cors };
  expect(await send(url, "POST", asked)).toMatchObject([
    200,
    { spec: { requestHeaders: { "X-Tenant": "7" }, responseHeaders: cors } },
  ]);
  await send(`${url}/web`, "PUT", { public: true });
  expect(headers).toEqual({ request: { "X-Tenant": "7" }, response: cors });
  await send(`${url}/web`, "PUT", { requestHeaders: {}, responseHeaders: { Vary: "Origin" } });
  expect(headers).toEqual({ request: {}, response: { Vary: "Origin" } });
  await send(`${url}/web`, "PUT", { responseHeaders: null });
  expect(headers).toEqual(noHeaders);
  expect(await send(url, "POST", { port: 3_000, responseHeaders: { "Content-Length": "1" } })).toMatchObject([
    400,
    { message: expect.stringContaining("body/spec.responseHeaders") },
  ]);
});

test.each([
  ["its name", "b".repeat(16), 200],
  ["its value", `hfp_${"b".repeat(16)}_${"B".repeat(43)}`, 200],
  ["a value that differs in one character", `hfp_${"b".repeat(16)}_${"B".repeat(42)}C`, 404],
])("a preview's token is revoked by %s", async (_by, given, status) => {
  const ids = ["a", "b"].map((letter) => letter.repeat(16));
  const left = new Set(ids);
  const times = { createdAt: "2025-01-01T00:00:00.000Z", expiresAt: "2100-01-01T00:00:00.000Z" };
  await using server = await serve({
    sandboxes: box,
    previews: {
      list: async () => [aPreview({})],
      tokens: async () => ids.map((id) => ({ id, ...times, expired: false })),
      token: async (_ref, _name, id) => `hfp_${id}_${(id[0] ?? "").toUpperCase().repeat(43)}`,
      removeToken: async (_ref, _name, id) => {
        if (!left.delete(id)) throw new HoldfastError("preview_not_found");
      },
    },
  });
  const path = `${CONTROL}/sandboxes/demo/previews/web/tokens/${given}`;
  expect((await server.fetch(path, { method: "DELETE" })).status).toBe(status);
  expect([...left]).toEqual(status === 200 ? [ids[0]] : ids);
});

test("a session is found by its name, although a port's preview has the same one", async () => {
  const session = aPreview({ id: "prv_1111111111111111", name: "blaxel:session-1", port: 443 });
  const port = aPreview({ id: "prv_2222222222222222", name: "session-1", port: 443 });
  const removed: string[] = [];
  await using server = await serve({
    sandboxes: box,
    previews: {
      list: async () => [port, session],
      remove: async (_ref, id) => {
        removed.push(id);
      },
      headersOf: () => noHeaders,
    },
  });
  const path = `${CONTROL}/sandboxes/demo/previews/session-1`;
  expect((await server.fetch(path, { method: "DELETE" })).status).toBe(200);
  expect(removed).toEqual([session.id]);
});

test.each([
  [["stopping", "ready", "failed"], 1],
  [["failed", "standby"], 1],
  [["ready", "ready"], 0],
  [["failed", "failed"], 1],
] as const)(
  "of sandboxes with the same external id that are %j, number %i is found",
  async (statuses, which) => {
    const all = statuses.map((status, at) => aSandbox({ id: `sbx_${String(at).padStart(16, "0")}`, status }));
    await using server = await serve({
      sandboxes: { list: async () => ({ items: all, nextCursor: null }), environment: async () => ({}) },
      events: async () => ({ items: [], nextCursor: null }),
    });
    const answer = await server.fetch(`${CONTROL}/sandboxes/by-external-id/one`);
    expect(await answer.json()).toMatchObject({ holdfast: { id: all[which]?.id } });
  },
);

test.each([
  ["without an expiry keeps the current one", {}, undefined],
  ["with the current expiry keeps it", { expires: "2100-01-01T00:00:00.000Z" }, undefined],
  ["with another expiry sets it", { ttl: "1h" }, 3_600_000],
  ["with a null expiry removes it", { expires: null }, null],
])("an update of a preview %s", async (_what, given, ttlMs) => {
  const preview: PreviewInfo = {
    ...{ id: "prv_0123456789abcdef", name: "web", sandboxId: aSandbox().id, port: 3_000, public: true },
    ...{ createdAt: "2025-01-01T00:00:00.000Z", expiresAt: "2100-01-01T00:00:00.000Z" },
  };
  const changes: unknown[] = [];
  const update = async (_ref: string, _name: string, change: object) => {
    changes.push(change);
    return preview;
  };
  const headersOf = () => ({ request: { "x-a": "1" }, response: {} });
  await using server = await serve({
    sandboxes: box,
    previews: { list: async () => [preview], update, headersOf },
  });
  const answer = await server.fetch(`${CONTROL}/sandboxes/demo/previews/web`, {
    ...json({ spec: { public: false, ...given } }),
    method: "PUT",
  });
  expect(answer.status).toBe(200);
  expect(changes).toEqual([{ port: 3_000, public: false, ...(ttlMs === undefined ? {} : { ttlMs }) }]);
});

test.each([
  ["is deleted by the next one", null],
  ["does not block the next one if it cannot be deleted", new HoldfastError("permission_denied")],
])("an upload without activity for a day %s", async (_what, failure) => {
  const [old, recent] = ["a", "b"].map((letter) => letter.repeat(24));
  const directory = (name = "", ageMs = 0) => ({
    ...aFile(0),
    ...{ name, kind: "directory" as const, modifiedAt: new Date(Date.now() - ageMs).toISOString() },
  });
  const items = [directory(old, 90_000_000), directory(recent, 80_000_000), directory("others", 90_000_000)];
  const removed: string[] = [];
  const remove = async (_ref: string, path: string) => {
    removed.push(path);
    if (failure) throw failure;
  };
  const list = async () => ({ path: "/var/tmp/.blaxel-uploads", items, truncated: false });
  const write = async () => aFile(1);
  await using server = await serve({ sandboxes: box, files: { list, remove, write } });
  const answer = await server.fetch(`${DATA}/filesystem-multipart/initiate/%2Fa`, json({}));
  expect([answer.status, await answer.json()]).toEqual([200, { uploadId: expect.any(String), path: "/a" }]);
  expect(removed).toEqual([`/var/tmp/.blaxel-uploads/${old}`]);
});

test.each([
  ["a delete of a sandbox", `${CONTROL}/sandboxes/demo`, { method: "DELETE" }],
  ["a new drive", `${CONTROL}/drives`, json({ metadata: { name: "data" } })],
  ["an update of a drive", `${CONTROL}/drives/data`, { ...json({ metadata: {} }), method: "PUT" }],
  ["a delete of a drive", `${CONTROL}/drives/data`, { method: "DELETE" }],
  ["a mount", `${DATA}/drives/mount`, json({ driveName: "data", mountPath: "/mnt" })],
  ["an unmount", `${DATA}/drives/mount/mnt`, { method: "DELETE" }],
  ["a delete of a snapshot", `${CONTROL}/sandboxes/demo/snapshots/before`, { method: "DELETE" }],
  ["the start of a supervised process", `${DATA}/process`, json({ command: "true", restartOnFailure: true })],
])("%s interrupted by a shutdown reports that it may have been done", async (_what, path, init) => {
  let waits = false;
  const held = (...given: unknown[]): Promise<never> => {
    waits = true;
    const last = given.at(-1);
    const signal = last instanceof AbortSignal ? last : (last as { signal: AbortSignal }).signal;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  await using server = await serve({
    sandboxes: { ...box, remove: held },
    drives: { get: async () => aDrive(), create: held, update: held, remove: held },
    mounts: { mount: held, unmount: held },
    checkpoints: { list: async () => ({ items: [aCheckpoint()], nextCursor: null }), remove: held },
    processes: { start: held },
  });
  const call = server.fetch(path, init);
  await until(() => waits);
  const closed = server.app.close();
  expect(await (await call).json()).toMatchObject({ errorCode: "shutting_down", dispatched: "unknown" });
  await closed;
});

test.each([
  ["its end", { waitForCompletion: true }],
  ["its ports", { waitForPorts: [3_000] }],
  ["its ports, between two checks", { waitForPorts: [3_001] }],
])("a command is reported as started if a shutdown interrupts the wait for %s", async (what, given) => {
  let waits = false;
  const nothing = async () => {
    waits = true;
    return { stat: aFile(0), body: once(new Uint8Array(0)) };
  };
  const held = (signal: AbortSignal): Promise<never> => {
    waits = true;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  await using server = await serve({
    sandboxes: box,
    execs: {
      ...execsWith(running).execs,
      wait: (_id: string, { signal }: { signal: AbortSignal }) => held(signal),
    },
    files: {
      read: (_ref: string, _path: string, _options: object, signal: AbortSignal) =>
        what.includes("between") ? nothing() : held(signal),
    },
  });
  const call = server.fetch(`${DATA}/process`, json({ command: "sleep 9", ...given }));
  await until(() => waits);
  const closed = server.app.close();
  expect(await (await call).json()).toMatchObject({
    ...{ errorCode: "shutting_down", dispatched: "yes", execId: "exe_1" },
  });
  await closed;
});

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import {
  type AuditReport,
  HoldfastError,
  type PreviewId,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import {
  aDrive,
  aFile,
  aMount,
  anExec,
  aSandbox,
  aStats,
  type EngineDouble,
  KEY,
  serve,
} from "@holdfast/server/testing";
import { expect, onTestFinished, test } from "vitest";
import { selfTest } from "./selftest.ts";

test("a sandbox that is not ready fails the self-test with the reason, and is deleted", async () => {
  const removed: string[] = [];
  const sandbox = (status: string) => ({ id: "sbx_a", status }) as Sandbox;
  await using server = await serve({
    stats: async () => ({ totals: {} }) as never,
    sandboxes: {
      create: async () => ({ sandbox: sandbox("degraded"), existed: false }),
      remove: async (ref) => {
        removed.push(ref);
        return sandbox("terminated");
      },
    },
  });
  const lines: string[] = [];
  const passed = await selfTest({
    url: server.url,
    key: KEY,
    keeperPid: async () => expect.unreachable(),
    remains: async () => [],
    print: (line) => lines.push(line),
  });
  expect(passed).toBe(false);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatch(/✗ .*the status is degraded/);
  expect(removed).toEqual(["sbx_a"]);
});

test("an interrupted self-test reports no failed step, and deletes what it created", async () => {
  const interrupt = new AbortController();
  const removed: string[] = [];
  await using server = await serve({
    stats: async () => ({ totals: {} }) as never,
    sandboxes: {
      create: async () => {
        interrupt.abort();
        return { sandbox: { id: "sbx_a", status: "ready" } as Sandbox, existed: false };
      },
      remove: async (ref) => {
        removed.push(ref);
        return { id: "sbx_a", status: "terminated" } as Sandbox;
      },
    },
  });
  const lines: string[] = [];
  const passed = await selfTest({
    url: server.url,
    key: KEY,
    keeperPid: async () => expect.unreachable(),
    remains: async () => [],
    print: (line) => lines.push(line),
    signal: interrupt.signal,
  });
  expect(passed).toBe(false);
  expect(lines).toEqual([]);
  expect(removed).toEqual(["sbx_a"]);
});

const idAt = (number: number): string => `sbx_${String(number).padStart(16, "0")}`;

/** An engine that passes every step of the self-test and then reports these audit findings. */
function flawless(found: AuditReport): EngineDouble {
  const ids: string[] = [];
  const removed: string[] = [];
  let content = Buffer.alloc(0);
  const files: EngineDouble["files"] = {
    write: async (_ref, _path, body) => {
      content = Buffer.concat(await Array.fromAsync(body));
      return aFile(content.length);
    },
    read: async () => ({
      stat: aFile(content.length),
      body: (async function* () {
        yield content;
      })(),
    }),
  };
  const cause = { code: "keeper_died", message: "its keeper is gone" };
  const totals = () => ({ ...aStats().totals, created: ids.length, terminated: removed.length });
  return {
    stats: async () => aStats({ totals: totals() }),
    audit: async () => found,
    sandboxes: {
      create: async () => {
        ids.push(idAt(ids.length));
        return { sandbox: aSandbox({ id: ids.at(-1) ?? "" }), existed: false };
      },
      get: async (id) => aSandbox({ id, status: "failed", cause }),
      verify: async () => ({ at: "", generation: 1, ok: true, checks: [] }),
      remove: async (id) => {
        removed.push(id);
        return aSandbox({ id, status: "terminated" });
      },
    },
    execs: {
      start: async () => ({ exec: anExec(), followed: false }),
      wait: async () => anExec({ exitCode: 3, stdout: "out\n", stderr: "err\n" }),
      // The exit code of a listener for which the image has no interpreter.
      get: async () => anExec({ exitCode: 127 }),
    },
    ports: {
      connect: async () => {
        throw new HoldfastError("port_closed");
      },
    },
    files,
    driveFiles: files,
    drives: {
      create: async () => ({ drive: aDrive(), existed: false }),
      remove: async () => null,
    },
    mounts: {
      mount: async () => ({ mount: aMount({ state: "proven" }), existed: false }),
      unmount: async () => undefined,
    },
  };
}

const found = (...sandboxIds: string[]): AuditReport => ({
  at: "2025-01-01T00:00:00.000Z",
  ms: 1,
  trigger: "request",
  complete: true,
  records: 0,
  things: 0,
  findings: sandboxIds.map((sandboxId) => ({
    kind: "orphan",
    sandboxId,
    things: ["cgroup"],
    action: "waits",
    message: "no record owns it",
  })),
});

test.each([
  ["about its own sandboxes fails it", found("sbx_other", idAt(1)), false, /✗ .*orphan: no record owns it/],
  [
    "about other sandboxes is reported and does not fail it",
    found("sbx_other"),
    true,
    /✓ .*audit found 1 difference$/,
  ],
  ["is absent when it passes", found(), true, /✓ .*audit found 0 differences$/],
  [
    "is unknown if the audit is incomplete, which fails it",
    { ...found(), complete: false },
    false,
    /✗ .*could not list everything/,
  ],
])("a difference that the self-test's audit finds %s", async (_claim, report, passes, last) => {
  await using server = await serve(flawless(report));
  const keeper = spawn("sleep", ["60"], { stdio: "ignore" });
  const ended = once(keeper, "exit");
  const lines: string[] = [];
  const passed = await selfTest({
    url: server.url,
    key: KEY,
    keeperPid: async () => keeper.pid ?? expect.unreachable(),
    remains: async () => [],
    print: (line) => lines.push(line),
  });
  keeper.kill("SIGKILL");
  await ended;
  expect(lines.at(-1)).toMatch(last);
  expect(passed).toBe(passes);
  expect(lines.find((line) => line.includes("port"))).toMatch(/✓ .*skipped: the image has no perl/);
});

test.each([
  ["that is closed by the revocation passes", true, /✓ serve a port.* reached by key and by link$/],
  ["that stays open after the revocation fails", false, /✗ serve a port.*returned 200 after it was revoked$/],
])("a link to a port %s", async (_claim, closes, expectedLine) => {
  const program = createServer((_request, response) => response.end("served")).listen(0, "127.0.0.1");
  await once(program, "listening");
  onTestFinished(() => {
    program.closeAllConnections();
    program.close();
  });
  let isOpen = true;
  const sandboxId = idAt(0) as SandboxId;
  const preview = { id: "prv_0123456789abcdef", name: "own", sandboxId, port: 8765, public: false };
  const engine = flawless(found());
  await using server = await serve({
    ...engine,
    ports: {
      connect: async () => {
        const bytes = connect((program.address() as AddressInfo).port, "127.0.0.1");
        await once(bytes, "connect");
        return { sandboxId, bytes, settled: () => undefined, used: () => undefined };
      },
    },
    previews: {
      create: async () => ({
        preview: { ...preview, createdAt: "", expiresAt: null },
        token: `hfp_0123456789abcdef_${"A".repeat(43)}`,
      }),
      remove: async () => {
        isOpen = !closes;
      },
      headersOf: () => ({ request: {}, response: {} }),
      admit: () => {
        if (!isOpen) throw new HoldfastError("preview_denied");
        const { signal } = new AbortController();
        const headers = { request: {}, response: {} };
        return {
          previewId: preview.id as PreviewId,
          sandboxId,
          port: 8765,
          expiresAt: null,
          headers,
          signal,
        };
      },
    },
  });
  const lines: string[] = [];
  await selfTest({
    url: server.url,
    key: KEY,
    // The self-test ends at this step, because the remaining ones are not part of this test.
    keeperPid: async () => {
      throw new Error("no");
    },
    remains: async () => [],
    print: (line) => lines.push(line),
  });
  expect(lines.find((line) => line.includes("port"))).toMatch(expectedLine);
});

import { spawn } from "node:child_process";
import { once } from "node:events";
import type { AuditReport, Sandbox } from "@holdfast/contract";
import { expect, test } from "vitest";
import { selfTest } from "./selftest.ts";
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
} from "./testing/double.ts";

test("a sandbox that is not what it should be fails the self-test with the reason, and is deleted", async () => {
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

/** An engine that does all that the self-test asks for, and then finds this. */
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
        ids.push(`sbx_${ids.length}`);
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
  ["of itself fails it", found("sbx_other", "sbx_1"), false, /✗ .*orphan: no record owns it/],
  ["of others is shown, and no reason to fail", found("sbx_other"), true, /✓ .*audit found 1 difference$/],
  ["is what is hoped for when there is none", found(), true, /✓ .*audit found 0 differences$/],
  ["is not known where the audit is not complete", { ...found(), complete: false }, false, /✗ .*be listed/],
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
});

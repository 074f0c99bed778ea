import type { Sandbox } from "@holdfast/contract";
import { aSandbox } from "@holdfast/server/testing";
import { describe, expect, test } from "vitest";
import { sandboxShape } from "../shapes.ts";
import { sandboxRequest } from "./sandbox-request.ts";
import { sandboxUpdate } from "./sandbox-update.ts";

const createdAt = "2025-01-01T00:00:00.000Z";
const now = Date.parse(createdAt) + 600_000;
const HOUR_MS = 3_600_000;

/** Returns a sandbox as it is after such a create request. */
function made(asked: Parameters<typeof sandboxRequest>[0]): Sandbox {
  const reading = { aliases: undefined, now: Date.parse(createdAt), createIfNotExist: false };
  const { labels = {}, lifecycle = {}, resources } = sandboxRequest(asked, reading);
  return aSandbox({
    createdAt,
    labels,
    lifecycle,
    ...(resources && { resources: { cpus: 1, pids: 9, memoryMb: 512, ...resources } }),
  });
}
/** Returns the sandbox as the client reads it. */
const read = (sandbox: Sandbox) => sandboxShape(sandbox, { workspace: "demo", base: null });
const update = (sandbox: Sandbox, body: object) => sandboxUpdate(body as never, sandbox, now);
const readWith = (sandbox: Sandbox, env: Record<string, string>) =>
  sandboxShape(sandbox, { workspace: "demo", base: null }, { events: [], env });
const policies = (type: string, value: string) => ({
  expirationPolicies: [{ type, value, action: "delete" }],
});

describe("a sandbox sent back as the client read it", () => {
  test.each([
    ["as it was created", made({ spec: { runtime: { ttl: "2h", ports: [{ target: 80 }] } } })],
    [
      "with policies",
      made({ metadata: { labels: { "any key": "x" } }, spec: { lifecycle: policies("ttl-idle", "30m") } }),
    ],
    ["with a date", made({ spec: { runtime: { expires: "2025-01-02T00:00:00Z" } } })],
    [
      "as created through Holdfast's own API",
      aSandbox({ createdAt, lifecycle: { ttlMs: 90_500, idleTtlMs: 60_500 } }),
    ],
  ])("changes nothing: %s", (_what, sandbox) => {
    const { labels, ...rest } = update(sandbox, read(sandbox));
    expect(rest).toEqual({});
    expect(labels).toEqual(sandbox.labels);
  });
});

test("labels are replaced as a whole, and absent fields stay unchanged", () => {
  const sandbox = made({ metadata: { labels: { a: "b", c: "d" }, externalId: "x-1", displayName: "One" } });
  expect(update(sandbox, { metadata: { labels: { a: "e" }, displayName: "" } }).labels).toEqual({
    a: "e",
    c: null,
    "blaxel/external-id": "x-1",
    "blaxel/display-name": null,
    "blaxel/image": "blaxel/base-image:latest",
  });
});

test("a limit is replaced, counted from the creation, and shown in the client's format", () => {
  const sandbox = made({ spec: { runtime: { ttl: "30m" } } });
  const { spec } = read(sandbox);
  const body = {
    spec: { ...spec, runtime: { ...spec.runtime, ttl: "2h" }, lifecycle: policies("ttl-idle", "1h") },
  };
  const { lifecycle, labels } = update(sandbox, body);
  expect(lifecycle).toEqual({ ttlMs: 2 * HOUR_MS, idleTtlMs: HOUR_MS });
  const after = aSandbox({
    createdAt,
    labels: labels as Record<string, string>,
    lifecycle: { ttlMs: 2 * HOUR_MS, idleTtlMs: HOUR_MS },
  });
  expect(read(after).spec).toMatchObject({ runtime: { ttl: "2h" }, lifecycle: policies("ttl-idle", "1h") });
});

test("the environment is read as it was set, a secret without its value, and sent back changes neither", () => {
  const envs = [
    { name: "A", value: "1" },
    { name: "KEY", value: "hidden", secret: true },
  ];
  const env = { A: "1", KEY: "hidden" };
  const sandbox = made({ spec: { runtime: { envs, ttl: "30m" } } });
  const seen = readWith(sandbox, env);
  expect(seen.spec.runtime.envs).toEqual([
    { name: "A", value: "1" },
    { name: "KEY", secret: true },
  ]);
  expect(read(sandbox).spec.runtime.envs).toBeUndefined();
  const unchanged = update(sandbox, seen);
  expect(unchanged).toMatchObject({ env: { A: "1" } });
  expect(unchanged.lifecycle).toBeUndefined();
  const after = (body: object) =>
    readWith(aSandbox({ labels: update(sandbox, body).labels as Record<string, string> }), env).spec.runtime
      .envs;
  expect(after(seen)).toEqual(seen.spec.runtime.envs);
  expect(after({ metadata: {}, spec: {} })).toEqual(seen.spec.runtime.envs);
  const opened = { spec: { runtime: { envs: [{ name: "KEY", value: "open" }] } } };
  expect(update(sandbox, opened).env).toEqual({ KEY: "open" });
  expect(after(opened)).toEqual(envs.map(({ name, value }) => ({ name, value })));
});

test("a limit is removed", () => {
  const sandbox = made({ spec: { runtime: { ttl: "30m" } } });
  const { spec } = read(sandbox);
  const body = { spec: { ...spec, runtime: { ...spec.runtime, ttl: null }, lifecycle: null } };
  expect(update(sandbox, body).lifecycle).toEqual({ ttlMs: null, idleTtlMs: null });
});

test("a limit set through another API is shown with its current value", () => {
  const sandbox = { ...made({ spec: { runtime: { ttl: "30m" } } }), lifecycle: { ttlMs: HOUR_MS } };
  expect(read(sandbox).spec.runtime).toMatchObject({ ttl: "3600s" });
});

test.each([
  ["an age that it already exceeds", { spec: { runtime: { ttl: "5m" } } }, "invalid_request"],
  ["another image", { spec: { runtime: { image: "debian" } } }, "not_supported"],
  ["other memory", { spec: { runtime: { memory: 4_096 } } }, "not_supported"],
  ["another name", { metadata: { name: "other" } }, "not_supported"],
  ["a network", { spec: { network: { allowedDomains: ["example.com"] } } }, "not_supported"],
  ["volumes", { spec: { volumes: [{ name: "data", mountPath: "/data" }] } }, "not_supported"],
])("%s is refused", (_what, body, code) => {
  expect(() => update(made({}), body)).toThrow(expect.objectContaining({ code }));
});

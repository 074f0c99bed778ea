import type { Sandbox } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { aSandbox } from "../../testing/double.ts";
import { sandboxRequest } from "./sandbox-request.ts";
import { sandboxUpdate } from "./sandbox-update.ts";
import { sandboxShape } from "./shapes.ts";

const createdAt = "2025-01-01T00:00:00.000Z";
const now = Date.parse(createdAt) + 600_000;
const HOUR_MS = 3_600_000;

/** A sandbox as it is after it was asked for like this. */
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
/** What the client reads of it. */
const read = (sandbox: Sandbox) => sandboxShape(sandbox, { workspace: "demo", base: null });
const update = (sandbox: Sandbox, body: object) => sandboxUpdate(body as never, sandbox, now);
const policies = (type: string, value: string) => ({
  expirationPolicies: [{ type, value, action: "delete" }],
});

describe("what the client read of a sandbox, sent back,", () => {
  test.each([
    ["as it was made", made({ spec: { runtime: { ttl: "2h", ports: [{ target: 80 }] } } })],
    [
      "with policies",
      made({ metadata: { labels: { "any key": "x" } }, spec: { lifecycle: policies("ttl-idle", "30m") } }),
    ],
    ["with a date", made({ spec: { runtime: { expires: "2025-01-02T00:00:00Z" } } })],
    [
      "as Holdfast's own API made it",
      aSandbox({ createdAt, lifecycle: { ttlMs: 90_500, idleTtlMs: 60_500 } }),
    ],
  ])("changes nothing: %s", (_what, sandbox) => {
    const { labels, ...rest } = update(sandbox, read(sandbox));
    expect(rest).toEqual({});
    expect(labels).toEqual(sandbox.labels);
  });
});

test("labels are exchanged as a whole, and what is not named stays", () => {
  const sandbox = made({ metadata: { labels: { a: "b", c: "d" }, externalId: "x-1", displayName: "One" } });
  expect(update(sandbox, { metadata: { labels: { a: "e" }, displayName: "" } }).labels).toEqual({
    a: "e",
    c: null,
    "blaxel/external-id": "x-1",
    "blaxel/display-name": null,
    "blaxel/image": "blaxel/base-image:latest",
  });
});

test("a limit is exchanged for another, counted from the creation, and shown in the client's words", () => {
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

test("a limit is taken back", () => {
  const sandbox = made({ spec: { runtime: { ttl: "30m" } } });
  const { spec } = read(sandbox);
  const body = { spec: { ...spec, runtime: { ...spec.runtime, ttl: null }, lifecycle: null } };
  expect(update(sandbox, body).lifecycle).toEqual({ ttlMs: null, idleTtlMs: null });
});

test("a limit that another API has set meanwhile is shown as it is", () => {
  const sandbox = { ...made({ spec: { runtime: { ttl: "30m" } } }), lifecycle: { ttlMs: HOUR_MS } };
  expect(read(sandbox).spec.runtime).toMatchObject({ ttl: "3600s" });
});

test.each([
  ["an age that it has passed", { spec: { runtime: { ttl: "5m" } } }, "invalid_request"],
  ["another image", { spec: { runtime: { image: "debian" } } }, "not_supported"],
  ["other memory", { spec: { runtime: { memory: 4_096 } } }, "not_supported"],
  ["another name", { metadata: { name: "other" } }, "not_supported"],
  ["a network", { spec: { network: { allowedDomains: ["example.com"] } } }, "not_supported"],
  ["volumes", { spec: { volumes: [{ name: "data", mountPath: "/data" }] } }, "not_supported"],
])("%s is refused", (_what, body, code) => {
  expect(() => update(made({}), body)).toThrow(expect.objectContaining({ code }));
});

import { describe, expect, test } from "vitest";
import { type SandboxRequest, sandboxRequest } from "./sandbox-request.ts";

const now = Date.parse("2025-01-01T00:00:00Z");
const reading = { aliases: undefined, now, createIfNotExist: false };
type Spec = NonNullable<SandboxRequest["spec"]>;
const read = (spec: Spec) => sandboxRequest({ spec }, reading);
const runtime = (fields: object) => read({ runtime: fields } as Spec);

test("an empty request gets the platform's defaults", () => {
  expect(sandboxRequest({}, reading)).toEqual({
    image: "host",
    env: {},
    lifecycle: { idleStandbyMs: 15_000 },
    labels: { "blaxel/image": "blaxel/base-image:latest" },
    mounts: [],
    ifExists: "fail",
  });
});

test("memory, environment, volumes and name are translated; region and generation are placement hints", () => {
  const spec = {
    region: "us-pdx-1",
    enabled: true,
    network: {},
    runtime: {
      image: "debian",
      memory: 2048,
      generation: "mk3",
      envs: [{ name: "A", value: "b", secret: true }],
      ports: [],
      snapshotEnabled: false,
    },
    volumes: [{ name: "data", mountPath: "/data", readOnly: true, type: "persistent" }],
  };
  const asked = sandboxRequest({ metadata: { name: "box" }, spec }, { ...reading, createIfNotExist: true });
  expect(asked).toMatchObject({
    name: "box",
    image: "debian",
    env: { A: "b" },
    resources: { memoryMb: 2048 },
    mounts: [{ drive: "data", path: "/data", readOnly: true }],
    ifExists: "return",
  });
});

test.each<[string, Spec, number]>([
  ["ttl", { runtime: { ttl: "30m" } }, 1_800_000],
  ["expires", { runtime: { expires: "2025-01-01T01:00:00Z" } }, 3_600_000],
  [
    "a policy of age",
    { lifecycle: { expirationPolicies: [{ type: "ttl-max-age", value: "7d", action: "delete" }] } },
    604_800_000,
  ],
  [
    "a policy with a date",
    { lifecycle: { expirationPolicies: [{ type: "date", value: "2025-01-02T00:00:00Z" }] } },
    86_400_000,
  ],
  [
    "whichever comes first",
    {
      runtime: { ttl: "2w" },
      lifecycle: { expirationPolicies: [{ type: "ttl-max-age", value: "24h" }] },
    },
    86_400_000,
  ],
])("%s limits its age", (_what, spec, ttlMs) => {
  expect(read(spec).lifecycle).toEqual({ idleStandbyMs: 15_000, ttlMs });
});

test("an idle time and a maximum age are separate limits, and the shortest of several counts", () => {
  const expirationPolicies = [
    { type: "ttl-idle", value: "2h", action: "delete" },
    { type: "ttl-idle", value: "30m", action: "delete" },
    { type: "ttl-max-age", value: "7d" },
  ];
  expect(read({ lifecycle: { expirationPolicies } }).lifecycle).toEqual({
    idleStandbyMs: 15_000,
    idleTtlMs: 1_800_000,
    ttlMs: 604_800_000,
  });
});

describe("unsupported fields are refused by name", () => {
  test.each<[string, Spec]>([
    ["spec.runtime.ports with UDP", { runtime: { ports: [{ target: 80, protocol: "UDP" }] } }],
    ["spec.runtime.extraArgs", { runtime: { extraArgs: { nfs: "enabled" } } }],
    ["spec.runtime.terminationGracePeriodSeconds", { runtime: { terminationGracePeriodSeconds: 5 } }],
    ["spec.runtime.yetToCome", { runtime: { yetToCome: 1 } }],
    ["spec.runtime.envs.valueFrom", { runtime: { envs: [{ name: "A", valueFrom: {} }] } }],
    ["spec.network", { network: { proxy: { routing: [] } } }],
    ["spec.vpc", { vpc: "mine" }],
    ["spec.enabled", { enabled: false }],
    ["spec.constructor", { constructor: 1 }],
    ["spec.lifecycle.terminatedRetention", { lifecycle: { terminatedRetention: "1h" } }],
    [
      "spec.lifecycle.expirationPolicies of type ttl-moon",
      { lifecycle: { expirationPolicies: [{ type: "ttl-moon", value: "1h" }] } },
    ],
    [
      "spec.lifecycle.expirationPolicies with the action archive",
      { lifecycle: { expirationPolicies: [{ type: "ttl-idle", value: "1h", action: "archive" }] } },
    ],
    ["spec.volumes of type ephemeral", { volumes: [{ name: "x", mountPath: "/x", type: "ephemeral" }] }],
  ])("%s", (field, spec) => {
    const message = expect.stringContaining(`: ${field}.`);
    expect(() => read(spec)).toThrow(expect.objectContaining({ code: "not_supported", message }));
  });
});

test.each<[string, () => unknown, string]>([
  ["an unknown image", () => runtime({ image: "nobody/knows:it" }), "image_not_found"],
  ["a malformed ttl", () => runtime({ ttl: "1h30m" }), "invalid_request"],
  ["a ttl of zero", () => runtime({ ttl: "0s" }), "invalid_request"],
  ["a date in the past", () => runtime({ expires: "2024-01-01T00:00:00Z" }), "invalid_request"],
  ["a malformed date", () => runtime({ expires: "soon" }), "invalid_request"],
  ["an invalid variable name", () => runtime({ envs: [{ name: "a b", value: "c" }] }), "invalid_request"],
  ["a value that is not a string", () => runtime({ envs: [{ name: "A", value: 1 }] }), "invalid_request"],
])("%s is refused", (_what, work, code) => {
  expect(work).toThrow(expect.objectContaining({ code }));
});

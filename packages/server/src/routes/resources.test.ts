import type { Diagnosis, ResourceReport, UsageList } from "@holdfast/contract";
import { describe, expect, test } from "vitest";
import { serve } from "../testing/double.ts";

const AT = "2025-01-01T00:00:00.000Z";
const diagnosis: Diagnosis = {
  sandboxId: "sbx_0123456789abcdef",
  name: "demo",
  at: AT,
  windowMs: 3_000,
  status: "ready",
  summary: "It waits for /srv/state/x now.",
  findings: [
    {
      kind: "idle",
      severity: "fine",
      summary: "It waits for /srv/state/x now.",
      evidence: ["/srv/state/x was looked at"],
      confidence: "high",
      holdfast: "nothing",
      you: [],
    },
  ],
  unseen: [],
  nextAt: null,
};

describe("a diagnosis", () => {
  test("observes for the requested time, and names no host path", async () => {
    const asked: unknown[] = [];
    const sandboxes = {
      diagnosis: async (ref: string, options: object) => {
        asked.push({ ref, ...options });
        return diagnosis;
      },
    };
    await using server = await serve({ sandboxes }, { hostPaths: ["/srv/state"] });
    const response = await server.fetch("/v1/sandboxes/demo/diagnosis?windowMs=250");
    expect(response.status).toBe(200);
    const { summary, findings } = (await response.json()) as Diagnosis;
    expect(summary).toBe("It waits for <host path> now.");
    expect(findings[0]?.evidence).toEqual(["<host path> was looked at"]);
    await server.fetch("/v1/sandboxes/demo/diagnosis");
    expect(asked).toEqual([
      { ref: "demo", windowMs: 250 },
      { ref: "demo", windowMs: undefined },
    ]);
  });

  test.each(["-1", "10001", "soon", "1.5"])("of a window of %s ms is refused", async (windowMs) => {
    await using server = await serve({ sandboxes: { diagnosis: async () => expect.unreachable() } });
    expect((await server.fetch(`/v1/sandboxes/demo/diagnosis?windowMs=${windowMs}`)).status).toBe(400);
  });
});

test("resources are those of the requested sandbox, with its own process names", async () => {
  const report = {
    sandboxId: "sbx_0123456789abcdef",
    processes: { items: [{ commandLine: "/srv/state/x" }] },
  };
  const resources = async (ref: string) => ({ ...report, ref }) as unknown as ResourceReport;
  await using server = await serve({ sandboxes: { resources } }, { hostPaths: ["/srv/state"] });
  expect(await (await server.fetch("/v1/sandboxes/demo/resources")).json()).toEqual({
    ...report,
    ref: "demo",
  });
});

test("the usage of all sandboxes is one response", async () => {
  const usage: UsageList = {
    at: AT,
    items: [
      {
        sandboxId: "sbx_0123456789abcdef",
        name: "demo",
        status: "ready",
        cause: null,
        createdAt: AT,
        lastActivityAt: AT,
        operations: 3,
        measuredAt: AT,
        cpuPercent: 12.5,
        memoryBytes: 1_000,
        memoryLimitBytes: 2_000,
        processes: 4,
        processLimit: 512,
      },
    ],
  };
  await using server = await serve({ sandboxes: { usage: () => usage } });
  expect(await (await server.fetch("/v1/resources")).json()).toEqual(usage);
});

import type { Sandbox } from "@holdfast/contract";
import { expect, test } from "vitest";
import { selfTest } from "./selftest.ts";
import { KEY, serve } from "./testing/double.ts";

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

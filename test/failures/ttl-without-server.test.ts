import { existsSync } from "node:fs";
import { afterEach, describe, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

const NUMBERS = { HOLDFAST_NUMBERS_JSON: JSON.stringify({ keeperExpiryGraceMs: 500 }) };
const WAIT = { timeout: 40_000, interval: 100 };

let server: TestServer | undefined;
afterEach(async () => {
  await server?.[Symbol.asyncDispose]();
  server = undefined;
});

describe("a sandbox whose TTL ends while no server runs", () => {
  it("ends by itself, others keep running, and the next server reports it as terminated", async () => {
    server = await TestServer.start(NUMBERS);
    const before = server.client();
    const kept = await before.sandboxes.create({ name: "kept", resources: { memoryMb: 128 } });
    const box = await before.sandboxes.create({
      name: "short",
      resources: { memoryMb: 128 },
      lifecycle: { onMemoryLoss: "cold-start" },
    });
    const run = await box.execs.start("sleep 600");
    await box.update({ lifecycle: { expiresInMs: 4_000 } });
    const pid = server.keeperPid(box.id);
    await server.kill("SIGKILL");
    before.close();

    await vi.waitFor(() => expect(existsSync(`/proc/${pid}`)).toBe(false), WAIT);
    await server.start({ env: NUMBERS });
    const after = server.client();
    await vi.waitFor(
      async () => expect((await after.sandboxes.get(box.id)).info.status).toBe("terminated"),
      WAIT,
    );
    expect((await (await after.execs.get(run.id)).result()).status).toBe("lost");
    const { items } = await after.events.list({ sandbox: box.id, limit: 100 });
    expect(items.map(({ type }) => type)).not.toContain("sandbox.restarting");
    expect((await after.sandboxes.get(kept.id)).info.status).toBe("ready");
    after.close();
  });
});

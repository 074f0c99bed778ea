import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

const COUNT = 20;
let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start();
});
afterAll(() => server[Symbol.asyncDispose]());

describe("a server that is killed under running sandboxes", () => {
  it("recovers all sandboxes, proven, follows running execs, and has the real exit codes of ended execs", async () => {
    const before = server.client();
    const boxes = await Promise.all(
      Array.from({ length: COUNT }, (_, i) =>
        before.sandboxes.create({ name: `box-${i}`, resources: { memoryMb: 128 } }),
      ),
    );
    const runs = await Promise.all(
      boxes.map(async (box, i) => ({
        ends: await box.execs.start(`echo early-${i}; sleep 1; echo late-${i}; exit ${i + 1}`),
        runs: await box.execs.start(`echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit ${100 + i}`),
      })),
    );
    await server.kill("SIGKILL");
    before.close();
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    await server.start();

    const after = server.client();
    const { items } = await after.sandboxes.list({ limit: 100 });
    expect(items.map(({ status }) => status)).toEqual(Array(COUNT).fill("ready"));
    expect(new Set(items.map(({ id }) => id))).toEqual(new Set(boxes.map(({ id }) => id)));
    for (const [i, run] of runs.entries()) {
      const ended = await (await after.execs.get(run.ends.id)).result();
      expect(ended).toMatchObject({ status: "exited", exitCode: i + 1, stdout: `early-${i}\nlate-${i}\n` });
      const running = await after.execs.get(run.runs.id);
      expect(running.info.status).toBe("running");
    }
    for (const [i, run] of runs.entries()) {
      const box = await after.sandboxes.get(`box-${i}`);
      await box.files.write("/tmp/go", "");
      const done = await (await after.execs.get(run.runs.id)).result();
      expect(done).toMatchObject({ status: "exited", exitCode: 100 + i, stdout: "up\n" });
    }
    const { totals, orphans } = await after.stats();
    expect(totals).toMatchObject({
      created: COUNT,
      failed: 0,
      terminated: 0,
      execsStarted: 2 * COUNT,
      execsEnded: 2 * COUNT,
    });
    expect(orphans).toBe(0);
    expect(server.leftovers().filter((thing) => thing.startsWith("directory sandboxes/"))).toHaveLength(
      COUNT,
    );
    after.close();
  });

  it("leaves sandboxes running when it is stopped, and recovers them at the next start", async () => {
    const before = server.client();
    const box = await before.sandboxes.create({ name: "kept" });
    const run = await box.execs.start("sleep 1; echo through; exit 9");
    before.close();
    expect(await server.kill("SIGTERM")).toBe(0);
    await server.start();
    const after = server.client();
    expect((await after.sandboxes.get("kept")).info.status).toBe("ready");
    expect(await (await after.execs.get(run.id)).result()).toMatchObject({
      exitCode: 9,
      stdout: "through\n",
    });
    after.close();
  });

  it("is alone in its state directory", async () => {
    const { spawnSync } = await import("node:child_process");
    const { MAIN } = await import("../support/server/test-server.ts");
    const second = spawnSync(process.execPath, [MAIN], {
      env: server.env,
      encoding: "utf8",
      timeout: 30_000,
    });
    expect(second.status).toBe(1);
    expect(second.stderr).toMatch(/in use by process \d+/);
    expect(second.stderr).not.toMatch(/\n\s+at /);
  });
});

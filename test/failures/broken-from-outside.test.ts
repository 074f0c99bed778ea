import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { HoldfastError, type Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { TestServer } from "./support/server.ts";

let server: TestServer;
beforeAll(async () => {
  // What heals by itself is shown elsewhere; here it stays broken.
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify({ healAfterMs: 3_600_000 }) });
});
afterAll(() => server[Symbol.asyncDispose]());

const errorOf = (work: Promise<unknown>): Promise<HoldfastError> =>
  work.then(
    () => Promise.reject(new Error("it succeeded")),
    (error: unknown) => {
      expect(error).toBeInstanceOf(HoldfastError);
      return error as HoldfastError;
    },
  );

/** Breaks a fresh sandbox, waits for its status to say so, checks that calls are refused and that delete leaves nothing. */
async function broken(
  breakIt: (box: Sandbox) => void,
  expected: { status: string[]; cause: RegExp; code: string[] },
) {
  const client = server.client();
  const box = await client.sandboxes.create();
  try {
    expect((await box.exec("echo fine")).stdout).toBe("fine\n");
    breakIt(box);
    await vi.waitFor(
      async () => {
        const info = await box.refresh();
        expect(expected.status).toContain(info.status);
        expect(`${info.cause?.code} ${info.cause?.message}`).toMatch(expected.cause);
      },
      { timeout: 15_000, interval: 100 },
    );
    const error = await errorOf(box.exec("echo never", { signal: AbortSignal.timeout(30_000) }));
    expect(expected.code).toContain(error.code);
    expect((await box.delete()).status).toBe("terminated");
    expect(server.leftovers().filter((thing) => thing.includes(box.id))).toEqual([]);
    const { items } = await client.events.list({ limit: 1000 });
    return items.filter((event) => event.sandboxId === box.id).map((event) => event.type);
  } finally {
    client.close();
  }
}

describe("a sandbox that is broken from outside", () => {
  it("fails, named as a dead keeper, when its PID 1 is killed", async () => {
    const events = await broken((box) => process.kill(server.keeperPid(box.id), "SIGKILL"), {
      status: ["failed"],
      cause: /keeper_died/,
      code: ["sandbox_failed"],
    });
    expect(events).toEqual(expect.arrayContaining(["sandbox.failed", "sandbox.terminated"]));
  });

  it("is degraded, named as an unmounted root, when its root is unmounted", async () => {
    const events = await broken(
      (box) => execFileSync("umount", ["-l", join(server.dir, "sandboxes", box.id, "root")]),
      {
        status: ["degraded"],
        cause: /root_unmounted/,
        code: ["sandbox_degraded"],
      },
    );
    expect(events).toContain("sandbox.degraded");
  });

  it("is degraded, named as a stopped keeper, when its PID 1 is stopped", async () => {
    await broken((box) => process.kill(server.keeperPid(box.id), "SIGSTOP"), {
      status: ["degraded"],
      cause: /keeper_stopped|keeper_silent/,
      code: ["sandbox_degraded", "deadline"],
    });
  });

  it("ends the execs that ran in it, once, as lost", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    const run = await box.execs.start("echo begun; sleep 100");
    process.kill(server.keeperPid(box.id), "SIGKILL");
    const result = await run.result();
    expect(result).toMatchObject({ status: "lost", exitCode: null, cause: { code: "keeper_died" } });
    await box.delete();
    client.close();
  });

  it("serves again by itself after a stopped keeper goes on", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    const pid = server.keeperPid(box.id);
    process.kill(pid, "SIGSTOP");
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("degraded"), {
      timeout: 15_000,
      interval: 100,
    });
    process.kill(pid, "SIGCONT");
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("ready"), {
      timeout: 30_000,
      interval: 100,
    });
    expect((await box.exec("echo back")).stdout).toBe("back\n");
    await box.delete();
    client.close();
  });

  it("harms no other", async () => {
    const client = server.client();
    const [bad, good] = await Promise.all([client.sandboxes.create(), client.sandboxes.create()]);
    process.kill(server.keeperPid(bad.id), "SIGKILL");
    expect((await good.exec("echo unharmed")).stdout).toBe("unharmed\n");
    expect((await good.refresh()).status).toBe("ready");
    await Promise.all([bad.delete(), good.delete()]);
    client.close();
  });
});

import { execFileSync } from "node:child_process";
import { renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { HoldfastError, type Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

/** Healing, which test/operations covers, is delayed; failures are noticed within seconds. */
const NUMBERS = { healAfterMs: 3_600_000, observeEveryMs: 500, maintainEveryMs: 500, proofDeadlineMs: 4_000 };

let server: TestServer;
beforeAll(async () => {
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(NUMBERS) });
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

/**
 * Breaks a new sandbox, waits until its status reports that, and checks that calls are refused and that a delete leaves
 * nothing.
 */
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

  const place = (box: Sandbox, ...names: string[]) => join(server.dir, "sandboxes", box.id, ...names);

  it.each([
    ["files_gone", ["upper"]],
    ["files_gone", ["work"]],
    ["control_gone", ["control"]],
    ["journals_gone", ["control", "journals"]],
    ["socket_gone", ["control", "keeper.sock"]],
  ])("is degraded, named as %s, when %j is removed, and can be deleted", async (code, names) => {
    await broken((box) => rmSync(place(box, ...names), { recursive: true }), {
      status: ["degraded"],
      cause: new RegExp(`${code} .* was removed or moved on the host`),
      code: ["sandbox_degraded"],
    });
  });

  it("refuses a restart and a standby while its files are moved away, and serves again once they are back", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    await box.exec("echo kept > /home/user/a");
    renameSync(place(box, "upper"), place(box, "elsewhere"));
    const status = (wanted: string) =>
      vi.waitFor(async () => expect((await box.refresh()).status).toBe(wanted), {
        timeout: 30_000,
        interval: 100,
      });
    await status("degraded");
    for (const work of [() => box.restart(), () => box.standby()]) {
      const error = await errorOf(work());
      expect(error.code).toBe("wrong_state");
      expect(error.message).toContain("a restart can't bring them back");
    }
    const { findings } = await box.diagnose({ windowMs: 1_000 });
    expect(findings[0]).toMatchObject({ kind: "files_gone" });
    renameSync(place(box, "elsewhere"), place(box, "upper"));
    await status("ready");
    expect(await box.exec("cat /home/user/a")).toMatchObject({ stdout: "kept\n" });
    expect((await box.refresh()).generation).toBe(1);
    await box.delete();
    client.close();
  });

  it("that failed says that its files can't be read once they are removed, and not before", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    await box.exec("echo kept > /home/user/a");
    process.kill(server.keeperPid(box.id), "SIGKILL");
    const failed = () =>
      vi.waitFor(
        async () => {
          const info = await box.refresh();
          expect(info.status).toBe("failed");
          expect(info.lease.state).toBe("none");
          return info.cause?.message ?? "";
        },
        { timeout: 30_000, interval: 100 },
      );
    expect(await failed()).not.toContain("can't be read");
    expect(await box.files.readText("/home/user/a")).toBe("kept\n");
    execFileSync("umount", [place(box, "root")]);
    rmSync(place(box, "upper"), { recursive: true });
    await vi.waitFor(
      async () => expect(await failed()).toContain("Its files can't be read, and a restart can't"),
      {
        timeout: 30_000,
        interval: 100,
      },
    );
    expect((await errorOf(box.files.readText("/home/user/a"))).code).not.toBe("file_not_found");
    const error = await errorOf(box.exec("echo never"));
    expect(error).toMatchObject({
      code: "sandbox_failed",
      cause: { code: expect.any(String), message: expect.any(String) },
    });
    expect(error.message).toContain("the directory of its files is missing on the host");
    await box.delete();
    client.close();
  });

  it("ends its running execs once, as lost", async () => {
    const client = server.client();
    const box = await client.sandboxes.create();
    const run = await box.execs.start("echo begun; sleep 100");
    process.kill(server.keeperPid(box.id), "SIGKILL");
    const result = await run.result();
    expect(result).toMatchObject({ status: "lost", exitCode: null, cause: { code: "keeper_died" } });
    await box.delete();
    client.close();
  });

  it("serves again by itself after a stopped keeper continues", async () => {
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

  it("does not affect other sandboxes", async () => {
    const client = server.client();
    const [bad, good] = await Promise.all([client.sandboxes.create(), client.sandboxes.create()]);
    process.kill(server.keeperPid(bad.id), "SIGKILL");
    expect((await good.exec("echo unharmed")).stdout).toBe("unharmed\n");
    expect((await good.refresh()).status).toBe("ready");
    await Promise.all([bad.delete(), good.delete()]);
    client.close();
  });
});

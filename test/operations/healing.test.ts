import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { CreateSandbox, Event, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

/** The default steps of healing, at shorter intervals. */
const QUICK = {
  observeEveryMs: 500,
  maintainEveryMs: 500,
  healEveryMs: 200,
  healAfterMs: 1_000,
  healTryMs: 1_500,
  healHoldMs: 2_000,
  healGiveUpMs: 12_000,
  healsMax: 3,
  restartsMax: 2,
  linkDeadMs: 2_000,
  heartbeatMs: 500,
  /** The disk guard is disabled, because it would thaw frozen sandboxes. */
  diskGuardEveryMs: 3_600_000,
};

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(QUICK) });
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const eventually = <Result>(check: () => Promise<Result>, timeout = 40_000): Promise<Result> =>
  vi.waitFor(check, { timeout, interval: 100 });

const timeline = async (box: Sandbox): Promise<Event[]> => {
  const { items } = await client.events.list({ sandbox: box.id, limit: 1_000 });
  return items;
};
const stepsOf = async (box: Sandbox): Promise<unknown[]> =>
  (await timeline(box)).filter(({ type }) => type === "sandbox.healing").map(({ data }) => data.step);
const healsOf = async (box: Sandbox): Promise<Event[]> =>
  (await timeline(box)).filter(({ type }) => type === "sandbox.healed");

async function withBox(options: CreateSandbox, work: (box: Sandbox) => Promise<void>): Promise<void> {
  const box = await client.sandboxes.create(options);
  try {
    await work(box);
  } finally {
    expect((await box.delete()).status).toBe("terminated");
    expect(server.leftovers().filter((thing) => thing.includes(box.id))).toEqual([]);
  }
}

const freezer = (box: Sandbox): string => {
  const lines = execFileSync("cat", [`/proc/${server.keeperPid(box.id)}/cgroup`], { encoding: "utf8" }).split(
    "\n",
  );
  const v1 = lines.find((line) => line.includes(":freezer:"))?.split(":")[2];
  if (v1 !== undefined) return `/sys/fs/cgroup/freezer${v1}/freezer.state`;
  return `/sys/fs/cgroup${lines.find((line) => line.startsWith("0::"))?.slice(3)}/cgroup.freeze`;
};

const BREAKS: readonly [what: string, step: string, breakIt: (box: Sandbox) => void][] = [
  ["a keeper that was stopped", "thaw", (box) => process.kill(server.keeperPid(box.id), "SIGSTOP")],
  [
    "processes that were frozen",
    "thaw",
    (box) => {
      const file = freezer(box);
      writeFileSync(file, file.endsWith("state") ? "FROZEN" : "1");
    },
  ],
  [
    "a root that was unmounted",
    "remount",
    (box) => execFileSync("umount", ["-l", join(server.dir, "sandboxes", box.id, "root")]),
  ],
];

describe("an unresponsive sandbox is healed automatically", () => {
  it.each(BREAKS)("%s, by %s: memory, files and running commands are kept", async (_what, step, breakIt) => {
    await withBox({}, async (box) => {
      const run = await box.execs.start("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done; exit 7");
      await box.exec("echo here > kept");
      const { generation } = await box.refresh();
      breakIt(box);
      await eventually(async () => expect((await healsOf(box)).length).toBe(1));
      expect((await healsOf(box))[0]?.data).toMatchObject({ by: step });
      expect(await box.refresh()).toMatchObject({ status: "ready", generation, recovery: null });
      expect((await box.exec("cat kept")).stdout).toBe("here\n");
      expect(await run.result()).toMatchObject({ status: "exited", exitCode: 7 });
    });
  });

  it("each healing step is reported, with the next step and its time", async () => {
    await withBox({}, async (box) => {
      process.kill(server.keeperPid(box.id), "SIGSTOP");
      const recovery = await eventually(async () => {
        const found = (await box.refresh()).recovery;
        expect(found).not.toBeNull();
        return found;
      });
      expect(recovery?.message).toMatch(/stopped by a signal|heartbeats|link/);
      await eventually(async () => expect((await healsOf(box)).length).toBe(1));
      const types = (await timeline(box)).map(({ type }) => type);
      expect(types.indexOf("sandbox.degraded")).toBeLessThan(types.indexOf("sandbox.healing"));
      expect(types.indexOf("sandbox.healing")).toBeLessThan(types.indexOf("sandbox.healed"));
    });
  });

  it("a dead keeper, by a cold start if its policy says so", async () => {
    await withBox({ lifecycle: { onMemoryLoss: "cold-start" } }, async (box) => {
      await box.exec("echo here > kept");
      process.kill(server.keeperPid(box.id), "SIGKILL");
      await eventually(async () =>
        expect(await box.refresh()).toMatchObject({ generation: 2, status: "ready" }),
      );
      expect((await box.exec("cat kept")).stdout).toBe("here\n");
    });
  });
});

/** Stops the keeper again whenever it is continued, until disposed. */
function keepStopped(box: Sandbox): Disposable {
  const pid = server.keeperPid(box.id);
  const timer = setInterval(() => {
    try {
      process.kill(pid, "SIGSTOP");
    } catch {
      clearInterval(timer);
    }
  }, 2);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

describe("a sandbox that cannot be healed", () => {
  it("fails with its files readable, and a restart recovers it", async () => {
    await withBox({}, async (box) => {
      await box.exec("echo here > kept");
      const run = await box.execs.start("sleep 1000");
      {
        using _hold = keepStopped(box);
        await eventually(async () => expect((await box.refresh()).status).toBe("failed"));
      }
      const { cause, keptUntil } = await box.refresh();
      expect(cause?.code).toBe("not_healed");
      expect(cause?.message).toMatch(/Tried: thaw ×2, relink ×2/);
      expect(Date.parse(keptUntil ?? "")).toBeGreaterThan(Date.now());
      expect(await run.result()).toMatchObject({ status: "lost" });
      expect((await box.diagnose()).findings[0]).toMatchObject({ kind: "failed" });
      await eventually(async () => expect((await box.refresh()).lease.state).toBe("none"));
      expect(Buffer.from(await box.files.read("/home/user/kept")).toString()).toBe("here\n");
      await box.restart();
      expect((await box.exec("cat kept")).stdout).toBe("here\n");
    });
  });

  it("does not delay the healing of another sandbox", async () => {
    await withBox({}, async (bad) => {
      await withBox({}, async (good) => {
        using _hold = keepStopped(bad);
        process.kill(server.keeperPid(good.id), "SIGSTOP");
        await eventually(async () => expect((await healsOf(good)).length).toBe(1));
        expect(["degraded", "failed"]).toContain((await bad.refresh()).status);
        expect((await good.exec("echo fine")).stdout).toBe("fine\n");
      });
    });
  });

  it("fails after a limited number of restarts", async () => {
    await withBox({ lifecycle: { onMemoryLoss: "cold-start" } }, async (box) => {
      let killed = 0;
      await eventually(async () => {
        const { status } = await box.refresh();
        if (status === "ready") {
          process.kill(server.keeperPid(box.id), "SIGKILL");
          killed += 1;
        }
        expect(status).toBe("failed");
      }, 60_000);
      expect(killed).toBeLessThanOrEqual(QUICK.restartsMax + 2);
      expect((await timeline(box)).filter(({ type }) => type === "sandbox.restarting").length).toBe(
        QUICK.restartsMax,
      );
    });
  });

  it("is stopped by the circuit breaker if gentle steps are needed repeatedly", async () => {
    await withBox({}, async (box) => {
      for (let time = 1; time <= QUICK.healsMax; time += 1) {
        process.kill(server.keeperPid(box.id), "SIGSTOP");
        await eventually(async () => expect((await healsOf(box)).length).toBe(time));
      }
      process.kill(server.keeperPid(box.id), "SIGSTOP");
      await eventually(async () => expect((await box.refresh()).status).toBe("failed"));
      expect((await box.refresh()).cause?.code).toBe("keeps_breaking");
    });
  });
});

describe("healing does not start because of", () => {
  it("CPU usage of 100 % or 0 %", async () => {
    await withBox({}, async (box) => {
      await box.execs.start("while :; do :; done");
      await box.execs.start("sleep 1000");
      await new Promise((resolve) => setTimeout(resolve, 8_000));
      expect(await stepsOf(box)).toEqual([]);
      expect((await box.refresh()).status).toBe("ready");
    });
  });
});

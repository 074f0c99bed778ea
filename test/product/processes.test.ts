import { readdirSync, readFileSync } from "node:fs";
import type { Holdfast, Process, ProcessHandle, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";

const soon = { timeout: 45_000, interval: 50 };
const LONG_MS = 120_000;

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const becomes = (web: ProcessHandle, want: object) =>
  vi.waitFor(async () => {
    const process = await web.refresh();
    expect(process).toMatchObject(want);
    return process;
  }, soon);

const run = ({ id }: Pick<Process, "id">, number: number) => `${id}-${number}`;
const outcome = async (id: string) => (await client.execs.get(id)).result();

/** A small server that prints a line once it accepts connections. */
const serving = (port: number, after = 0) => [
  "node",
  "-e",
  `setTimeout(() => require("http").createServer((q, s) => s.end("hi")).listen(${port}, "127.0.0.1", () => console.log("listening at ${port}")), ${after})`,
];

/** Returns the host's pids whose command line contains this text. */
function pidsOf(marker: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return pid !== process.pid && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(marker);
      } catch {
        return false;
      }
    });
}

async function boxed(work: (box: Sandbox) => Promise<void>): Promise<void> {
  await using box = await client.sandboxes.create({});
  await work(box);
}

describe("a process that crashes", () => {
  it(
    "is restarted while its server is killed and started, each run with its own outcome and journal",
    async () => {
      const box = await client.sandboxes.create({});
      const script =
        'n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n; echo "run $n"; sleep 0.4; [ $n -ge 6 ] && exec sleep 300; exit $n';
      const restart = { on: "failure", max: 10, backoffMs: 200 } as const;
      const web = await box.processes.start("web", script, { restart });
      await becomes(web, { runs: 2 });
      await server.kill("SIGKILL");
      await new Promise((resolve) => setTimeout(resolve, 2_000));
      await server.start();
      client.close();
      client = server.client();
      const again = await (await client.sandboxes.get(box.id)).processes.get("web");
      expect(again.id).toBe(web.id);
      await becomes(again, { status: "ready", runs: 6, execId: run(web, 6) });
      for (const number of [1, 2, 3, 4, 5])
        expect(await outcome(run(web, number))).toMatchObject({
          status: "exited",
          exitCode: number,
          stdout: `run ${number}\n`,
        });
      const { items } = await again.runs();
      expect(items.map(({ id }) => id)).toEqual([6, 5, 4, 3, 2, 1].map((number) => run(web, number)));
      // The delete goes through the current server, because the handle belongs to the killed one.
      await client.sandboxes.delete(box.id);
    },
    LONG_MS,
  );

  it("too often is no longer restarted, is shown as failed, and can be started again", () =>
    boxed(async (box) => {
      const restart = { on: "always", max: 2, backoffMs: 10 } as const;
      const web = await box.processes.start("web", "echo no; exit 3", { restart });
      const over = await becomes(web, { status: "given_up", runs: 3, restarts: 2 });
      expect(over.cause?.message).toContain("exited with 3");
      expect(await box.processes.list()).toMatchObject([{ name: "web", status: "given_up" }]);
      await vi.waitFor(async () => {
        const { items } = await box.events({ limit: 100 });
        expect(items.map(({ type }) => type)).toContain("process.given_up");
      }, soon);
      expect((await web.restart()).runs).toBeGreaterThanOrEqual(4);
      await becomes(web, { status: "given_up", runs: 6 });
    }));
});

describe("readiness", () => {
  it(
    "is detected by port and by output, and its absence is reported with the reason",
    () =>
      boxed(async (box) => {
        const port = await box.processes.start("port", serving(3000, 500), { readyWhen: { port: 3000 } });
        const text = await box.processes.start("text", serving(3001, 500), {
          readyWhen: { output: "listening at 3001" },
        });
        expect(await port.ready()).toMatchObject({ status: "ready", ready: { how: "port" } });
        expect(await text.ready()).toMatchObject({ status: "ready", ready: { how: "output" } });
        const deaf = await box.processes.start("deaf", "sleep 300", {
          readyWhen: { port: 3002, withinMs: 300 },
        });
        await expect(deaf.ready()).rejects.toMatchObject({
          code: "process_not_ready",
          process: { status: "unready", cause: { code: "port_closed" } },
        });
        const late = await box.processes.start("late", serving(3003, 1_500), {
          readyWhen: { port: 3003, withinMs: 200 },
        });
        await becomes(late, { status: "unready" });
        await becomes(late, { status: "ready" });
      }),
    LONG_MS,
  );
});

describe("a request", () => {
  it(
    "to stop leaves no process, of a tree that runs and of one that waits",
    () =>
      boxed(async (box) => {
        const marker = `stop-me-${Date.now()}`;
        const restart = { on: "always", max: 5, backoffMs: 60_000 } as const;
        const tree = `sh -c 'exec -a ${marker} sleep 300' & setsid bash -c 'exec -a ${marker} sleep 300' & exec -a ${marker} sleep 300`;
        const web = await box.processes.start("web", ["bash", "-c", tree], { restart });
        await web.ready();
        await vi.waitFor(() => expect(pidsOf(marker).length).toBeGreaterThanOrEqual(2), soon);
        expect(await web.stop()).toMatchObject({ status: "stopped", exec: { status: "cancelled" } });
        expect(pidsOf(marker)).toEqual([]);
        expect((await web.stop()).status).toBe("stopped");
        const waits = await box.processes.start("waits", "exit 1", { restart });
        await becomes(waits, { status: "waiting" });
        expect(await waits.stop()).toMatchObject({ status: "stopped", runs: 1, exec: { exitCode: 1 } });
      }),
    LONG_MS,
  );

  it(
    "to restart the sandbox starts a process again with the next run number; one without a restart policy is lost",
    () =>
      boxed(async (box) => {
        const restart = { on: "always" } as const;
        const web = await box.processes.start("web", "sleep 300", { restart });
        const plain = await box.processes.start("plain", "sleep 300");
        await box.restart();
        await becomes(web, { status: "ready", runs: 2, execId: run(web, 2) });
        expect(await outcome(run(web, 1))).toMatchObject({ status: "lost" });
        await becomes(plain, { status: "lost", runs: 1 });
      }),
    LONG_MS,
  );
});

describe.skipIf(!memoryStandby)("through standby", () => {
  it(
    "the run is the same, and its readiness is checked again; a process without connections in time reports the reason",
    () =>
      boxed(async (box) => {
        const web = await box.processes.start("web", serving(3000), {
          restart: { on: "failure" },
          readyWhen: { port: 3000 },
          connectBy: { port: 3000, withinMs: 20_000 },
        });
        const deaf = await box.processes.start("deaf", "sleep 300", {
          connectBy: { port: 4000, withinMs: 500 },
        });
        await web.ready();
        await deaf.ready();
        await box.standby();
        expect(await box.processes.list()).toMatchObject([
          { name: "web", status: "ready", suspended: true },
          { name: "deaf", status: "ready", suspended: true },
        ]);
        expect((await box.refresh()).status).toBe("standby");
        await box.wake();
        await becomes(web, { status: "ready", suspended: false, execId: run(web, 1), runs: 1 });
        const late = await becomes(deaf, { status: "unready", runs: 1 });
        expect(late.cause?.message).toContain("Nothing listens at port 4000");
        await box.standby();
        expect(await web.stop()).toMatchObject({ status: "stopped" });
      }),
    LONG_MS,
  );

  it(
    "in a fork the run continues under an id of its own, and is restarted there as well",
    () =>
      boxed(async (box) => {
        const script = 'while [ ! -e stop ]; do sleep 0.1; done; rm stop; echo "ended"; exit 4';
        const restart = { on: "failure", max: 5, backoffMs: 50 } as const;
        const web = await box.processes.start("web", script, { restart });
        await web.ready();
        const checkpoint = await box.checkpoints.create({ name: "one" });
        await using fork = await client.sandboxes.create({ fromCheckpoint: checkpoint.id });
        const own = await fork.processes.get("web");
        expect(own.id).not.toBe(web.id);
        await becomes(own, { status: "ready", runs: 1 });
        await fork.files.write("/home/user/stop", "");
        await becomes(own, { status: "ready", runs: 2, execId: run(own, 2) });
        expect(await outcome(run(own, 1))).toMatchObject({ exitCode: 4, stdout: "ended\n" });
        expect(await web.refresh()).toMatchObject({ status: "ready", runs: 1 });
        expect(await own.stop()).toMatchObject({ status: "stopped", runs: 2 });
        expect(await web.refresh()).toMatchObject({ status: "ready", runs: 1 });
      }),
    LONG_MS,
  );
});

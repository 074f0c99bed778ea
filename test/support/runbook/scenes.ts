/** Sets up the server states that the runbook has sections about, on a real server. */
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Holdfast } from "@holdfast/sdk";
import { expect, vi } from "vitest";
import { reboot } from "../chaos/reboot.ts";
import { TestServer } from "../server/test-server.ts";
import { importBroken } from "./broken-image.ts";

/** The server and variables that the commands of a passage use. */
interface Scene extends AsyncDisposable {
  server: TestServer;
  /** `SANDBOX`, `EXEC` and the other variables that the runbook uses. */
  env: Record<string, string>;
}

const CHECKOUT = fileURLToPath(new URL("../../..", import.meta.url));
const soon = { timeout: 30_000, interval: 100 };

interface Setting {
  numbers?: Record<string, number | number[]>;
  settings?: Record<string, string>;
  prepare?: (server: TestServer, client: Holdfast) => Promise<Record<string, string> | undefined>;
}

/** Creates a scene with its own server, which is removed with it. */
const scene =
  ({ numbers = {}, settings = {}, prepare = async () => undefined }: Setting) =>
  async (): Promise<Scene> => {
    await using stack = new AsyncDisposableStack();
    const given = { HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers), ...settings };
    const server = stack.use(await TestServer.start(given));
    const client = stack.adopt(server.client(), (one) => one.close());
    const env = { HOLDFAST_CHECKOUT: CHECKOUT, ...(await prepare(server, client)) };
    const owned = stack.move();
    return { server, env, [Symbol.asyncDispose]: () => owned.disposeAsync() };
  };

const labels = { agent_type: "coder", task_id: "task-7" };

/** A healthy server, however full the host itself may be. */
const calm = scene({
  numbers: { alertEveryMs: 100, alertForMs: 600_000 },
  prepare: async (_server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    const run = await box.execs.start("echo building; echo done");
    await run.result();
    return { SANDBOX: "box", EXEC: run.id };
  },
});

/** More sandboxes than the alert threshold, and a webhook that cannot be reached. */
const alert = scene({
  numbers: {
    ...{ alertActive: 1, clearActive: 0, alertEveryMs: 100, alertForMs: 0, alertClearForMs: 0 },
    ...{ pressureIdleMs: 0, deliveryBackoffMs: [0] },
  },
  settings: {
    // No process listens on this port.
    HOLDFAST_WEBHOOK_URL: "http://127.0.0.1:9/alerts",
    HOLDFAST_WEBHOOK_SECRET: "only for this test",
  },
  prepare: async (_server, client) => {
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    for (const name of ["box", "other"]) await client.sandboxes.create({ name, labels, lifecycle });
    const dead = await vi.waitFor(async () => {
      const { items } = await client.alerts.deliveries({ state: "dead" });
      const [first] = items.filter(({ alert: { kind } }) => kind === "too_many_active");
      if (first === undefined) throw new Error("no delivery was given up yet");
      return first;
    }, soon);
    return { SANDBOX: "box", DELIVERY: dead.id };
  },
});

/** A command that waits forever for a writer of its FIFO. */
const hung = scene({
  prepare: async (_server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    const run = await box.execs.start("echo begun; mkfifo queue; exec cat queue", { timeoutMs: 600_000 });
    return { SANDBOX: "box", EXEC: run.id };
  },
});

/** A stopped keeper. Healing is delayed, so that the commands find the sandbox unresponsive. */
const silent = scene({
  numbers: { healAfterMs: 600_000, observeEveryMs: 500, proofDeadlineMs: 4_000 },
  prepare: async (server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    process.kill(server.keeperPid(box.id), "SIGSTOP");
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("degraded"), soon);
    return { SANDBOX: "box" };
  },
});

/** Commands that do not end within their timeout. */
const timeouts = scene({
  prepare: async (_server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    let last = "";
    for (let i = 0; i < 4; i += 1) {
      const run = await box.execs.start("echo waiting for nobody; sleep 60", { timeoutMs: 300 });
      last = run.id;
      await run.result();
    }
    return { SANDBOX: "box", EXEC: last };
  },
});

/** A disk with less free space than the reserve. */
const full = scene({
  prepare: async (server, client) => {
    await client.sandboxes.create({ name: "box", labels });
    await client.sandboxes.create({ name: "scratch", lifecycle: { disposable: true } });
    await server.kill("SIGTERM");
    const numbers = { diskReserveBytes: Number.MAX_SAFE_INTEGER, pressureIdleMs: 0 };
    await server.start({ env: { HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers) } });
    return { SANDBOX: "box" };
  },
});

/** Files that no record owns, and that are not removed before a cleanup is requested. */
const leak = scene({
  numbers: { orphanGraceMs: 1_500, orphanCheckEveryMs: 600_000 },
  prepare: async (server) => {
    const stray = "sbx_strayedfromsomew";
    mkdirSync(join(server.dir, "sandboxes", stray));
    return { SANDBOX: stray };
  },
});

/** An image that can no longer be started, and launches that are suspended because of it. */
const unlaunchable = scene({
  numbers: { launchFailuresMax: 2, launchesSuspendedMs: 4_000 },
  prepare: async (server, client) => {
    importBroken(server);
    for (let i = 0; i < 2; i += 1)
      await client.sandboxes.create({ image: "broken" }).then(
        () => expect.fail("it was launched"),
        () => undefined,
      );
    expect((await client.stats()).launches.state).toBe("suspended");
    return {};
  },
});

const oneSandbox = async (_server: TestServer, client: Holdfast) => {
  await client.sandboxes.create({ name: "box", labels });
  return { SANDBOX: "box" };
};

/** A running server, which prevents the start of another. */
const held = scene({ prepare: oneSandbox });

function readLogs({ dir }: TestServer): string {
  const logs = join(dir, "logs");
  return readdirSync(logs)
    .map((name) => readFileSync(join(logs, name), "utf8"))
    .join("");
}

/** A killed server whose sandboxes are still running. */
const dead = scene({
  prepare: async (server, client) => {
    const env = await oneSandbox(server, client);
    // The log is written asynchronously, later on a busy machine.
    const written = () => readLogs(server).includes("sandbox proven");
    await vi.waitFor(() => expect(written()).toBe(true), soon);
    await server.kill("SIGKILL");
    return env;
  },
});

/** A server that is replaced by another one at the same address. */
const upgrade = async (): Promise<Scene> => {
  const settings = { HOLDFAST_PORT: String(await freePort()) };
  const begun = await scene({ settings, prepare: oneSandbox })();
  const { server, env, [Symbol.asyncDispose]: dispose } = begun;
  const replaced = async () => {
    const pid = Number(readFileSync(join(server.dir, "lock.pid"), "utf8"));
    if (pid !== server.pid) {
      process.kill(pid, "SIGTERM");
      await vi.waitFor(() => expect(() => process.kill(pid, 0)).toThrow(), soon);
      await server.start();
    }
    await dispose();
  };
  return { server, env, [Symbol.asyncDispose]: replaced };
};

const failed = scene({
  prepare: async (server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    await box.files.write("/home/user/work/result.txt", "a day of work\n");
    process.kill(server.keeperPid(box.id), "SIGKILL");
    await vi.waitFor(async () => {
      const { status, lease } = await box.refresh();
      expect({ status, lease: lease.state }).toEqual({ status: "failed", lease: "none" });
    }, soon);
    return { SANDBOX: "box" };
  },
});

const rebooted = scene({
  prepare: async (server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    await box.files.write("/home/user/result.txt", "a day of work\n");
    await client.sandboxes.create({ name: "hardy", lifecycle: { onMemoryLoss: "cold-start" } });
    await server.kill("SIGKILL");
    await reboot(server);
    await server.start();
    return { SANDBOX: "box" };
  },
});

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, "close");
  return port;
}

export const SCENES: Readonly<Record<string, () => Promise<Scene>>> = {
  ...{ calm, alert, hung, silent, timeouts, full, leak, unlaunchable, held, dead, failed, rebooted, upgrade },
};

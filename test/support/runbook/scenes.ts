/** The states of a server that the runbook has sections about, made on a real one. */
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Holdfast } from "@holdfast/sdk";
import { expect, vi } from "vitest";
import { reboot } from "./reboot.ts";
import { importBroken } from "./runbook-broken-image.ts";
import { TestServer } from "./server.ts";

/** What the commands of a passage find. */
export interface Scene extends AsyncDisposable {
  server: TestServer;
  /** `SANDBOX`, `EXEC` and what else the runbook names. */
  env: Record<string, string>;
}

const CHECKOUT = fileURLToPath(new URL("../..", import.meta.url));
const soon = { timeout: 30_000, interval: 100 };

interface Setting {
  numbers?: Record<string, number | number[]>;
  settings?: Record<string, string>;
  prepare?: (server: TestServer, client: Holdfast) => Promise<Record<string, string> | undefined>;
}

/** A server of its own for each; what it was given to do is gone with it. */
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

/** Nothing is the matter, however full the host itself may be. */
const calm = scene({
  numbers: { alertEveryMs: 100, alertForMs: 600_000 },
  prepare: async (_server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    const run = await box.execs.start("echo building; echo done");
    await run.result();
    return { SANDBOX: "box", EXEC: run.id };
  },
});

/** More sandboxes than somebody wanted to hear of, who can't be told. */
const alert = scene({
  numbers: {
    ...{ alertActive: 0, clearActive: 0, alertEveryMs: 100, alertForMs: 0, alertClearForMs: 0 },
    ...{ pressureIdleMs: 0, deliveryBackoffMs: [0] },
  },
  settings: {
    // Nobody listens there.
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

/** A command that waits for somebody who never comes. */
const hung = scene({
  prepare: async (_server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    const run = await box.execs.start("echo begun; mkfifo queue; exec cat queue", { timeoutMs: 600_000 });
    return { SANDBOX: "box", EXEC: run.id };
  },
});

/** A keeper that somebody stopped; what heals it is put off, so that there is time to look. */
const silent = scene({
  numbers: { healAfterMs: 600_000 },
  prepare: async (server, client) => {
    const box = await client.sandboxes.create({ name: "box", labels });
    process.kill(server.keeperPid(box.id), "SIGSTOP");
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("degraded"), soon);
    return { SANDBOX: "box" };
  },
});

/** Commands that don't come to their end in the time they are given. */
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

/** A disk with less room than is to stay free. */
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

/** Files that no record knows of, and that nothing takes away before it is asked to. */
const leak = scene({
  numbers: { orphanGraceMs: 1_500, orphanCheckEveryMs: 600_000 },
  prepare: async (server) => {
    const stray = "sbx_strayedfromsomew";
    mkdirSync(join(server.dir, "sandboxes", stray));
    return { SANDBOX: stray };
  },
});

/** An image that can't be started any more, and launches that are suspended because of it. */
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

/** A server that is there, so that no other can be. */
const held = scene({ prepare: oneSandbox });

function readLogs({ dir }: TestServer): string {
  const logs = join(dir, "logs");
  return readdirSync(logs)
    .map((name) => readFileSync(join(logs, name), "utf8"))
    .join("");
}

/** The server is gone, and what it looked after is still there. */
const dead = scene({
  prepare: async (server, client) => {
    const env = await oneSandbox(server, client);
    // What is told is written behind it, and a busy machine takes its time.
    const written = () => readLogs(server).includes("sandbox proven");
    await vi.waitFor(() => expect(written()).toBe(true), soon);
    await server.kill("SIGKILL");
    return env;
  },
});

/** In the end with another server than it began with, at the same place. */
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

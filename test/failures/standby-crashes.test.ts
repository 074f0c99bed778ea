import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Counters } from "./support/counters.ts";
import { memoryStandby } from "./support/memory-standby.ts";
import { TestServer } from "./support/server.ts";
import { dieAt, INTO_STANDBY, OUT_OF_STANDBY, type SleepPoint } from "./support/sleep-crash.ts";

const DYING = join(import.meta.dirname, "support", "dying-asleep.ts");
const PATIENCE_MS = 150_000;
const soon = { timeout: 45_000, interval: 50 };

let server: TestServer;
let counters: Counters;
let id = "";

beforeAll(async () => {
  server = await TestServer.start();
  const client = server.client();
  const box = await client.sandboxes.create({ name: "sleeper" });
  id = box.id;
  counters = await Counters.start(box, ["python"]);
  client.close();
});
afterAll(() => server[Symbol.asyncDispose]());

const checkpoints = () => {
  const dir = join(server.dir, "sandboxes", id, "checkpoints");
  return existsSync(dir) ? readdirSync(dir).filter((name) => !name.includes(".")) : [];
};

/** Lets a server die at this point of what it is asked for; the next one has nothing to die of. */
async function through(point: SleepPoint, order: (box: Sandbox) => Promise<unknown>): Promise<Holdfast> {
  await server.kill("SIGTERM");
  await server.start({ main: DYING, env: dieAt(point) });
  const dying = server.client();
  const asked = dying.sandboxes.get(id).then(order);
  asked.catch(() => undefined);
  expect(await server.died()).toBe("SIGKILL");
  dying.close();
  await server.start();
  return server.client();
}

/** Awake and proven, or in standby with a checkpoint: never neither, never both. */
async function settled(client: Holdfast): Promise<string> {
  return vi.waitFor(async () => {
    const { info } = await client.sandboxes.get(id);
    expect(["ready", "standby"]).toContain(info.status);
    expect(info.lease.state).toBe(info.status === "ready" ? "held" : "none");
    if (info.status === "standby") expect(checkpoints()).toEqual([info.checkpoint?.id]);
    return info.status;
  }, soon);
}

async function goesOn(client: Holdfast): Promise<void> {
  const box = await client.sandboxes.get(id);
  expect((await box.exec("echo awake")).stdout).toBe("awake\n");
  await counters.goOn(box);
  const [exec = ""] = counters.execs;
  expect((await client.execs.get(exec)).info).toMatchObject({ status: "running", suspended: false });
  await vi.waitFor(() => expect(checkpoints()).toEqual([]), soon);
}

describe.skipIf(!memoryStandby)("a server that is killed on the way into standby", () => {
  it.each(INTO_STANDBY.map((point) => ({ point })))(
    "$point leaves a sandbox that is awake or asleep, with its memory",
    async ({ point }) => {
      const client = await through(point, (box) => box.standby());
      await settled(client);
      await goesOn(client);
      client.close();
    },
    PATIENCE_MS,
  );
});

describe.skipIf(!memoryStandby)("a server that is killed on the way out of standby", () => {
  it.each(OUT_OF_STANDBY.map((point) => ({ point })))(
    "$point leaves a sandbox that is awake or asleep, with its memory",
    async ({ point }) => {
      const before = server.client();
      const info = await (await before.sandboxes.get(id)).standby();
      expect(info.status).toBe("standby");
      before.close();
      const client = await through(point, (box) => box.exec("true"));
      await settled(client);
      await goesOn(client);
      client.close();
    },
    PATIENCE_MS,
  );
});

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { sample } from "../setup/long.ts";
import {
  dieAt,
  INTO_STANDBY,
  OUT_OF_STANDBY,
  type SleepPoint,
} from "../support/crash/standby-crash-points.ts";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";
import { Counters } from "../support/workloads/counters.ts";

const DYING = join(import.meta.dirname, "..", "support", "crash", "server-crashing-in-standby.ts");
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

/** Makes a server die at this point of a request; the next server runs normally. */
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

/** Expects either a proven running sandbox or standby with a checkpoint, never neither or both. */
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
  await counters.expectProgress(box);
  const [exec = ""] = counters.execs;
  expect((await client.execs.get(exec)).info).toMatchObject({ status: "running", suspended: false });
  await vi.waitFor(() => expect(checkpoints()).toEqual([]), soon);
}

describe.skipIf(!memoryStandby)("a server that is killed on the way into standby", () => {
  it.each(sample(INTO_STANDBY, 3).map((point) => ({ point })))(
    "$point leaves a sandbox that is awake or suspended, with its memory",
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
  it.each(sample(OUT_OF_STANDBY, 3).map((point) => ({ point })))(
    "$point leaves a sandbox that is awake or suspended, with its memory",
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

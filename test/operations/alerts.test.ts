import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type {
  Alert,
  AlertList,
  Delivery,
  DeliveryList,
  Event,
  EventList,
  EventType,
} from "@holdfast/contract";
import type { Holdfast } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";
import { WebhookReceiver } from "../support/workloads/webhook-receiver.ts";

/** Intervals of minutes take seconds here. Only the tests heal sandboxes. */
const NUMBERS = {
  alertEveryMs: 100,
  alertForMs: 300,
  alertClearForMs: 500,
  alertMinExecs: 4,
  alertStuckMs: 1_500,
  healAfterMs: 600_000,
  observeEveryMs: 300,
  deliveryMs: 5_000,
  deliveryBackoffMs: [200, 200, 200],
  orphanGraceMs: 5_000,
  orphanCheckEveryMs: 200,
  stopAttemptMs: 2_500,
  stopBackoffMs: [100, 100],
  exhaustedRecheckMs: 500,
  maxSandboxes: 4,
  sweepStaleMs: 300,
};

const SOON = { timeout: 40_000, interval: 50 };
const CAPACITY = "capacity:sandboxes";

let receiver: WebhookReceiver;
let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  receiver = await WebhookReceiver.start();
  server = await TestServer.start({
    HOLDFAST_NUMBERS_JSON: JSON.stringify(NUMBERS),
    ...receiver.env,
  });
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
  await receiver[Symbol.asyncDispose]();
  expect(receiver.forged).toEqual([]);
});

async function get<Answer>(path: string): Promise<Answer> {
  const response = await server.fetch(path);
  expect(response.status).toBe(200);
  return (await response.json()) as Answer;
}

const alerts = async (): Promise<Alert[]> => (await get<AlertList>("/v1/alerts")).items;
const deliveries = async (query = ""): Promise<Delivery[]> =>
  (await get<DeliveryList>(`/v1/alerts/deliveries?limit=1000${query}`)).items;

const events = async (type: EventType, query = ""): Promise<Event[]> =>
  (await get<EventList>(`/v1/events?limit=1000&type=${type}${query}`)).items;

/** Waits until the alert fires and its delivery is accepted. */
const fires = (key: string): Promise<Alert> =>
  vi.waitFor(async () => {
    const alert = (await alerts()).find((one) => one.key === key);
    if (alert === undefined) throw new Error(`${key} does not fire`);
    expect(receiver.taken(key).at(-1)).toBe("alert.fired");
    return alert;
  }, SOON);

/** Waits until the alert clears and that is delivered: one delivery per change, in order. */
const clears = (key: string): Promise<void> =>
  vi.waitFor(async () => {
    expect((await alerts()).map((one) => one.key)).not.toContain(key);
    const taken = receiver.taken(key);
    expect(taken).toEqual(taken.map((_, index) => (index % 2 === 0 ? "alert.fired" : "alert.cleared")));
    expect(taken.at(-1)).toBe("alert.cleared");
  }, SOON);

async function box(name: string, options: { diskMb?: number } = {}) {
  const { diskMb } = options;
  const made = await client.sandboxes.create({
    name,
    resources: { memoryMb: 128, ...(diskMb === undefined ? {} : { diskMb }) },
  });
  // The delete goes through the current server, which may have been restarted.
  onTestFinished(async () => void (await server.fetch(`/v1/sandboxes/${made.id}`, { method: "DELETE" })));
  return made;
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, "exit");
  child.kill("SIGKILL");
  await exited;
}

describe("an alert fires and clears, with a signed delivery each time,", () => {
  it("for execs that time out, though the receiver fails twice first", async () => {
    const key = "timeout_rate";
    let failures = 0;
    receiver.answer = ({ alert }) => {
      if (alert.key !== key || failures === 2) return 200;
      failures += 1;
      return 503;
    };
    const one = await box("slow");
    const ends = await Promise.all([
      ...[1, 2].map(() => one.exec("sleep 60", { timeoutMs: 300 })),
      ...[1, 2].map(() => one.exec("true")),
    ]);
    expect(ends.map(({ status }) => status)).toEqual(["timed_out", "timed_out", "exited", "exited"]);
    const alert = await fires(key);
    expect(alert).toMatchObject({ value: 50, threshold: 5, clearBelow: 3, target: 2, severity: "warning" });
    // Two timeouts in more than 66 execs are below 3 percent, however long each step takes.
    for (let i = 0; i < 8; i += 1) await Promise.all(Array.from({ length: 8 }, () => one.exec("true")));
    await clears(key);
    const received = receiver.about(key);
    expect(received.map(({ status, type }) => [status, type])).toEqual([
      [503, "alert.fired"],
      [503, "alert.fired"],
      [200, "alert.fired"],
      [200, "alert.cleared"],
    ]);
    expect(new Set(received.slice(0, 3).map(({ id }) => id)).size).toBe(1);
    expect(received.every((message) => message.alert.id === alert.id)).toBe(true);
    const stored = (await deliveries()).filter((each) => each.alert.key === key);
    expect(stored.map(({ state, attempts }) => [state, attempts])).toEqual([
      ["delivered", 1],
      ["delivered", 3],
    ]);
    const { items } = await get<AlertList>("/v1/alerts?cleared=true");
    expect(items.find(({ id }) => id === alert.id)).toMatchObject({ state: "cleared" });
    receiver.answer = () => 204;
  });

  it("for a process with Holdfast's marker that belongs to no sandbox", async () => {
    const id = "sbx_leakleakleak0000";
    mkdirSync(join(server.dir, "sandboxes", id));
    const stray = spawn("/bin/sh", ["-c", "read line"], {
      env: { HOLDFAST_HELPER: `${server.installation}/${id}` },
      stdio: ["pipe", "ignore", "ignore"],
    });
    onTestFinished(() => end(stray));
    const exited = once(stray, "exit");
    expect(await fires("leak")).toMatchObject({ severity: "critical", value: 1 });
    expect(stray.exitCode).toBeNull();
    // The cleanup removes the process after its grace period; the alert does not.
    await exited;
    await clears("leak");
    expect(existsSync(join(server.dir, "sandboxes", id))).toBe(false);
  });

  it("for a sandbox that is stuck", async () => {
    const one = await box("stuck");
    const key = `stuck:${one.id}`;
    const keeper = server.keeperPid(one.id);
    process.kill(keeper, "SIGSTOP");
    onTestFinished(() => {
      if (existsSync(`/proc/${keeper}`)) process.kill(keeper, "SIGCONT");
    });
    const alert = await fires(key);
    expect(alert).toMatchObject({ sandboxId: one.id, unit: "ms", threshold: 1_500 });
    expect(alert.message).toMatch(/^stuck has been degraded for \d+ seconds?: /);
    const received = await events("alert.fired", `&sandbox=${one.id}`);
    expect(received.map(({ data }) => data.key)).toEqual([key]);
    process.kill(keeper, "SIGCONT");
    await clears(key);
    expect((await one.exec("echo on")).stdout).toBe("on\n");
  });

  it("for a lease whose stop attempts are used up, until the obstacle is removed", async () => {
    const one = await box("wedged", { diskMb: 64 });
    const key = `lease_exhausted:${one.id}`;
    // Another mount namespace has a copy of every mount, so the loop device under the disk stays.
    const holder = spawn("unshare", ["-m", "/bin/sh", "-c", "echo up; exec sleep 1000"], {
      stdio: ["ignore", "pipe", "ignore"],
    });
    onTestFinished(() => end(holder));
    await once(holder.stdout, "data");
    const removed = one.delete().catch(() => undefined);
    const alert = await fires(key);
    expect(alert).toMatchObject({ severity: "critical", sandboxId: one.id });
    await end(holder);
    await clears(key);
    await removed;
  });

  it("for a full sandbox limit; a dead delivery is kept and delivered on retry", async () => {
    receiver.answer = ({ alert }) => (alert.key === CAPACITY ? 500 : 204);
    const boxes = await Promise.all(["a", "b", "c", "d"].map((name) => box(name)));
    const dead = await vi.waitFor(async () => {
      const found = (await deliveries("&state=dead")).find(({ alert }) => alert.key === CAPACITY);
      if (found === undefined) throw new Error("it is not dead yet");
      return found;
    }, SOON);
    expect(dead).toMatchObject({
      state: "dead",
      attempts: 4,
      lastError: "The webhook receiver answered 500.",
    });
    expect(dead.alert).toMatchObject({ key: CAPACITY, value: 100, threshold: 80, clearBelow: 75 });
    const received = await events("delivery.dead");
    expect(received.map(({ data }) => data.delivery)).toContain(dead.id);
    await fires("delivery_failing");

    receiver.answer = () => 204;
    const retry = await server.fetch(`/v1/alerts/deliveries/${dead.id}/retry`, { method: "POST" });
    expect(await retry.json()).toMatchObject({ id: dead.id, state: "pending" });
    await fires(CAPACITY);
    expect(receiver.about(CAPACITY).at(-1)?.id).toBe(dead.id);
    await clears("delivery_failing");
    await boxes[0]?.delete();
    await clears(CAPACITY);
  });

  it("for a cleanup that does not run", async () => {
    const key = "cleanup_not_running:stale";
    await server.kill("SIGTERM");
    await server.start({
      main: join(import.meta.dirname, "..", "support", "server", "server-with-hanging-sweeps.ts"),
    });
    const hang = join(server.dir, "hang-sweeps");
    writeFileSync(hang, "");
    expect(await fires(key)).toMatchObject({ severity: "critical", unit: "ms" });
    rmSync(hang);
    await clears(key);
    await server.kill("SIGTERM");
    await server.start();
    client.close();
    client = server.client();
  });
});

describe("a server that is killed between an alert and its delivery", () => {
  it("is followed by a server that delivers the alert once, with the same id, and does not fire it again", async () => {
    receiver.received.length = 0;
    receiver.answer = () => null;
    const boxes = await Promise.all(["a", "b", "c", "d"].map((name) => box(name)));
    const [held] = await vi.waitFor(() => {
      const received = receiver.about(CAPACITY);
      expect(received).toHaveLength(1);
      return received;
    }, SOON);
    const [before] = (await alerts()).filter(({ key }) => key === CAPACITY);
    await server.kill("SIGKILL");
    receiver.answer = () => 204;
    await server.start();
    client.close();
    client = server.client();
    expect(await fires(CAPACITY)).toMatchObject({ id: before?.id, firedAt: before?.firedAt });
    expect(receiver.about(CAPACITY).map(({ id, status }) => [id, status])).toEqual([
      [held?.id, null],
      [held?.id, 204],
    ]);
    for (const { id } of boxes) await (await client.sandboxes.get(id)).delete();
    await clears(CAPACITY);
    const received = await events("alert.fired");
    expect(received.filter(({ data }) => data.alert === before?.id)).toHaveLength(1);
  });
});

describe("the metrics used in ops/", () => {
  it.each(["prometheus-rules.yml", "grafana-dashboard.json"])(
    "by %s are exported by the server",
    async (file) => {
      const text = readFileSync(join(import.meta.dirname, "..", "..", "ops", file), "utf8");
      const named = new Set(text.match(/holdfast_[a-z_]+/g));
      expect(named.size).toBeGreaterThan(10);
      const response = await server.fetch("/metrics");
      const there = new Set((await response.text()).match(/(?<=^# TYPE )\S+/gm));
      const missing = [...named].filter(
        (name) => !there.has(name) && !there.has(name.replace(/_bucket$/, "")),
      );
      expect(missing).toEqual([]);
    },
  );

  it("include alerts, deliveries and capacity", async () => {
    const metrics = await (await server.fetch("/metrics")).text();
    expect(metrics).toMatch(/^holdfast_alerts\{kind="leak",severity="critical"\} 0$/m);
    expect(metrics).toMatch(/^holdfast_alerts_evaluation_age_seconds \d/m);
    expect(metrics).toMatch(/^holdfast_deliveries\{state="delivered"\} [1-9]/m);
    expect(metrics).toMatch(/^holdfast_capacity_used_percent\{what="disk"\} \d/m);
  });

  it("the server's output contains neither the webhook's secret nor its URL", async () => {
    expect(server.output).not.toContain(receiver.secret);
    expect(server.output).not.toContain("/alerts");
  });
});

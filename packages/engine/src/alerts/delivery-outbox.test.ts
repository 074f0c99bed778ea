import { type DeliveryId, NUMBERS } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { EngineApi } from "../ports/api.ts";
import type { DeliveryRecord } from "../ports/records.ts";
import { ALERT_SOON, alarmed, clears, deliveriesOf, fires, Receiver } from "../testing/alerting-engine.ts";
import { codeOf, eventually, never, testEngine } from "../testing/test-engine.ts";
import { afterFailure, isDue } from "./delivery-outbox.ts";

const DISK = "capacity:disk";
const full = (driver: { diskFreeBytes: number }) => {
  driver.diskFreeBytes = 2_000_000;
};
const empty = (driver: { diskFreeBytes: number }) => {
  driver.diskFreeBytes = 1 << 30;
};
const delivered = (engine: EngineApi, count: number) =>
  eventually(async () => {
    const all = await deliveriesOf(engine, DISK);
    expect(all.map(({ state }) => state)).toEqual(Array.from({ length: count }, () => "delivered"));
    return all;
  });

describe("a delivery that failed", () => {
  const fresh = { state: "pending", attempts: 0, nextAttemptAt: 0, lastError: null } as DeliveryRecord;

  it("is retried after each backoff of the table, and is dead after the last", () => {
    let record = fresh;
    const waits: (number | null)[] = [];
    while (record.state === "pending") {
      record = afterFailure(record, "no", 1_000, NUMBERS);
      waits.push(record.nextAttemptAt === null ? null : record.nextAttemptAt - 1_000);
    }
    expect(waits).toEqual([...NUMBERS.deliveryBackoffMs, null]);
    expect(record).toMatchObject({ state: "dead", attempts: 6, lastError: "no" });
  });

  it("is due when its backoff has passed, and when the clock was set back", () => {
    const waiting = afterFailure(fresh, "no", 100_000, NUMBERS);
    expect(isDue(fresh, 0, NUMBERS)).toBe(true);
    expect(isDue(waiting, 104_999, NUMBERS)).toBe(false);
    expect(isDue(waiting, 105_000, NUMBERS)).toBe(true);
    expect(isDue(waiting, 99_000, NUMBERS)).toBe(true);
  });
});

describe("deliveries of an alert", () => {
  it("are sent once, in order, with their alert", async () => {
    const { driver, engine, receiver } = await alarmed();
    full(driver);
    const alert = await fires(engine, DISK);
    await delivered(engine, 1);
    empty(driver);
    await clears(engine, DISK);
    const [first, second] = await delivered(engine, 2);
    expect(receiver.tries.map(({ id }) => id)).toEqual([first?.id, second?.id]);
    expect(receiver.about(DISK)).toEqual(["firing", "cleared"]);
    expect(receiver.taken.map((message) => message.alert.id)).toEqual([alert.id, alert.id]);
    expect(receiver.taken[1]?.alert.clearedAt).not.toBeNull();
  });

  it("are sent in order: cleared is never delivered before fired", async () => {
    const { driver, engine, receiver } = await alarmed({ deliveryBackoffMs: [1_000, 10] });
    let failures = 0;
    receiver.fails = async () => {
      failures += 1;
      if (failures <= 2) throw new Error("busy");
    };
    full(driver);
    await fires(engine, DISK);
    empty(driver);
    await clears(engine, DISK);
    await delivered(engine, 2);
    expect(receiver.tries.map(({ alert }) => alert.state)).toEqual(["firing", "firing", "firing", "cleared"]);
    expect((await deliveriesOf(engine, DISK)).map(({ attempts }) => attempts)).toEqual([3, 1]);
  });

  it("are dead if the first one is, and are retried together, in order", async () => {
    const { driver, engine, receiver } = await alarmed();
    receiver.fails = () => Promise.reject(new Error("The webhook receiver answered 500."));
    full(driver);
    await fires(engine, DISK);
    await eventually(async () => expect((await deliveriesOf(engine, DISK))[0]?.state).toBe("dead"));
    receiver.fails = () => undefined;
    empty(driver);
    await clears(engine, DISK);
    const dead = await eventually(async () => {
      const all = await deliveriesOf(engine, DISK);
      expect(all.map(({ state }) => state)).toEqual(["dead", "dead"]);
      return all;
    });
    expect(dead.map(({ attempts }) => attempts)).toEqual([3, 0]);
    expect(dead[0]?.lastError).toBe("The webhook receiver answered 500.");
    expect(receiver.about(DISK)).toEqual([]);
    const { items } = await engine.events({ types: ["delivery.dead"], limit: 10 });
    expect(items.map(({ data }) => data.delivery)).toEqual(dead.map(({ id }) => id));
    await fires(engine, "delivery_failing");

    const again = await engine.alerts.redeliver(dead[1]?.id ?? "");
    expect(again).toMatchObject({ id: dead[1]?.id, state: "pending", attempts: 0 });
    await delivered(engine, 2);
    expect(receiver.about(DISK)).toEqual(["firing", "cleared"]);
    await clears(engine, "delivery_failing");
    // A delivered message is not sent again.
    expect(await engine.alerts.redeliver(dead[0]?.id ?? "")).toMatchObject({ state: "delivered" });
    expect(receiver.about(DISK)).toHaveLength(2);
  });

  it("are sent once for two concurrent redelivery requests", async () => {
    const { driver, engine, receiver } = await alarmed({ deliveryBackoffMs: [1] });
    receiver.fails = () => Promise.reject(new Error("no"));
    full(driver);
    const [{ id }] = await eventually(async () => {
      const [one] = await deliveriesOf(engine, DISK);
      if (one?.state !== "dead") throw new Error("not yet");
      return [one] as const;
    });
    receiver.fails = () => undefined;
    await Promise.all([engine.alerts.redeliver(id), engine.alerts.redeliver(id)]);
    await delivered(engine, 1);
    expect(receiver.about(DISK)).toEqual(["firing"]);
  });

  it("survive a restart with their ids, including those in progress", async () => {
    const { driver, engine, receiver, restart } = await alarmed();
    receiver.fails = never;
    full(driver);
    await eventually(() => expect(receiver.tries.some(({ alert }) => alert.key === DISK)).toBe(true));
    const [sent] = receiver.tries.filter(({ alert }) => alert.key === DISK);
    await engine.stop();
    receiver.fails = () => undefined;
    const next = await restart();
    const [record] = await delivered(next, 1);
    // A delivery that the server's stop interrupts has not failed.
    expect(record?.attempts).toBe(1);
    const taken = receiver.taken.filter(({ alert }) => alert.key === DISK);
    expect(taken.map(({ id }) => id)).toEqual([sent?.id]);
    expect(await fires(next, DISK)).toMatchObject({ id: sent?.alert.id });
    const { items } = await next.events({ types: ["alert.fired"], limit: 100 });
    expect(items.filter(({ data }) => data.key === DISK)).toHaveLength(1);
  });

  it("time out, and do not delay deliveries of other alerts", async () => {
    const { driver, engine, receiver } = await alarmed({ deliveryMs: 300, deliveriesAtOnce: 1 });
    receiver.fails = ({ alert }) => (alert.key === "capacity:memory" ? never() : undefined);
    driver.memoryFreeBytes = 2_000_000;
    await fires(engine, "capacity:memory");
    full(driver);
    await delivered(engine, 1);
    await eventually(async () => {
      const [hung] = await deliveriesOf(engine, "capacity:memory");
      expect(hung).toMatchObject({ state: "dead", attempts: 3 });
      expect(hung?.lastError).toContain("300 ms");
    });
  });

  it("are dead at once beyond the limit of pending ones, and can be redelivered later", async () => {
    const { driver, engine, receiver } = await alarmed({ deliveriesPending: 1, deliveryMs: 1e9 });
    let release = () => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    receiver.fails = () => held;
    driver.memoryFreeBytes = 2_000_000;
    await fires(engine, "capacity:memory");
    full(driver);
    await fires(engine, DISK);
    const [dead] = await deliveriesOf(engine, DISK);
    expect(dead).toMatchObject({ state: "dead", attempts: 0 });
    expect(await codeOf(engine.alerts.redeliver(dead?.id ?? ""))).toBe("capacity");
    release();
    await eventually(async () => {
      expect((await deliveriesOf(engine, "capacity:memory"))[0]?.state).toBe("delivered");
      expect(await codeOf(engine.alerts.redeliver(dead?.id ?? ""))).toBe("fulfilled");
    });
    await delivered(engine, 1);
  });

  it("are not sent again if the store fails after the webhook accepted them", async () => {
    const { driver, engine, receiver, store } = await alarmed();
    const commit = store.commit.bind(store);
    let refused = 0;
    store.commit = async (given) => {
      const isUpdate = given.changes.some(({ kind }) => kind === "delivery.update");
      if (isUpdate && refused === 0) {
        refused += 1;
        throw new Error("disk I/O error");
      }
      return commit(given);
    };
    full(driver);
    await fires(engine, DISK);
    await delivered(engine, 1);
    expect(refused).toBe(1);
    expect(receiver.about(DISK)).toEqual(["firing"]);
  });

  it("are listed by state, newest first, in pages", async () => {
    const { driver, engine } = await alarmed();
    full(driver);
    await fires(engine, DISK);
    empty(driver);
    await clears(engine, DISK);
    await delivered(engine, 2);
    const { items, nextCursor } = await engine.alerts.deliveries({ state: "delivered", limit: 1 });
    expect(items[0]?.alert.state).toBe("cleared");
    const rest = await engine.alerts.deliveries({ cursor: nextCursor ?? "", limit: 1 });
    expect(rest.items[0]?.alert.state).toBe("firing");
    expect(rest.nextCursor).toBeNull();
    expect((await engine.alerts.deliveries({ state: "dead", limit: 1 })).items).toEqual([]);
    expect(await codeOf(engine.alerts.deliveries({ cursor: "odd", limit: 1 }))).toBe("invalid_request");
  });
});

describe("without a webhook", () => {
  it("alerts fire, and no deliveries accumulate", async () => {
    const { driver, engine } = await testEngine(ALERT_SOON);
    full(driver);
    await fires(engine, DISK);
    expect((await engine.alerts.deliveries({ limit: 9 })).items).toEqual([]);
    expect(await codeOf(engine.alerts.redeliver("dlv_0123456789abcdef"))).toBe("no_webhook");
  });

  it("an unknown delivery is not found", async () => {
    const { engine } = await testEngine(ALERT_SOON, ":memory:", { notifier: new Receiver() });
    for (const id of ["dlv_0123456789abcdef" as DeliveryId, "odd"])
      expect(await codeOf(engine.alerts.redeliver(id))).toBe("delivery_not_found");
  });
});

import { setImmediate } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { KeyedSerialQueue, SerialQueue } from "./serial-queue.ts";

const never = new AbortController().signal;

describe("a serial queue", () => {
  test("runs one work at a time, in the order they were given", async () => {
    const queue = new SerialQueue();
    const order: string[] = [];
    const work = (name: string) => async () => {
      order.push(`${name} begins`);
      await setImmediate();
      order.push(`${name} ends`);
      return name;
    };
    const results = await Promise.all([queue.run(work("a")), queue.run(work("b"))]);
    expect(results).toEqual(["a", "b"]);
    expect(order).toEqual(["a begins", "a ends", "b begins", "b ends"]);
    expect(queue.length).toBe(0);
  });

  test("rejects for the caller of a failed work only", async () => {
    const queue = new SerialQueue();
    const failed = queue.run(async () => {
      throw new Error("broken");
    });
    const next = queue.run(() => "done");
    await expect(failed).rejects.toThrow("broken");
    await expect(next).resolves.toBe("done");
  });

  test("refuses works beyond its limit with capacity, and takes them again afterwards", async () => {
    const queue = new SerialQueue({ limit: 1 });
    const { promise, resolve } = Promise.withResolvers<void>();
    const first = queue.run(() => promise);
    await expect(queue.run(() => undefined)).rejects.toMatchObject({ code: "capacity" });
    resolve();
    await first;
    await expect(queue.run(() => "taken")).resolves.toBe("taken");
  });

  test("rejects a caller that aborts before its turn at once, and keeps the order of the others", async () => {
    const queue = new SerialQueue();
    const { promise, resolve } = Promise.withResolvers<void>();
    const order: string[] = [];
    const first = queue.run(async () => {
      await promise;
      order.push("first");
    });
    const caller = new AbortController();
    const second = queue.run(() => order.push("second"), caller.signal);
    const third = queue.run(() => order.push("third"));
    caller.abort(new Error("gone"));
    await expect(second).rejects.toThrow("gone");
    expect(order).toEqual([]);
    resolve();
    await Promise.all([first, third]);
    expect(order).toEqual(["first", "third"]);
  });

  test("is idle when no work waits or runs", async () => {
    const queue = new SerialQueue();
    let isDone = false;
    void queue.run(async () => {
      await setImmediate();
      isDone = true;
    });
    await queue.idle(never);
    expect(isDone).toBe(true);
  });
});

describe("a keyed serial queue", () => {
  test("runs works of different keys at the same time", async () => {
    const queue = new KeyedSerialQueue<string>();
    const { promise, resolve } = Promise.withResolvers<void>();
    const blocked = queue.run("a", () => promise);
    await expect(queue.run("b", () => "done")).resolves.toBe("done");
    resolve();
    await blocked;
  });

  test("keeps no memory of a key without works", async () => {
    const queue = new KeyedSerialQueue<string>();
    await Promise.allSettled([
      queue.run("a", () => 1, never),
      queue.run("a", () => Promise.reject(new Error("no"))),
    ]);
    await setImmediate();
    expect(queue.size).toBe(0);
  });
});

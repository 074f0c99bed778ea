import type { ExecId, Numbers, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { OutputOptions, OutputRecord } from "../ports/api.ts";
import { eventually, signal, testEngine } from "../testing/test-engine.ts";

const A = "a" as ExecId;
const CAP = 800;
const HOLD_MS = 600_000;
const RETURN_MS = 60_000;

async function boxed(numbers: Partial<Numbers> = {}) {
  const limits = { journalCapBytes: CAP, outputHoldMs: HOLD_MS, outputReturnMs: RETURN_MS };
  const made = await testEngine({ ...limits, streamKeepaliveMs: 20, ...numbers });
  const { sandbox } = await made.create("one");
  const instance = made.driver.instances.get(sandbox.id as SandboxId);
  if (instance === undefined) throw new Error("there is no instance");
  const start = (rest: object = {}, options: object = {}) =>
    made.engine.execs.start("one", { id: "a", argv: ["sleep"], ...rest }, { ...options, signal });
  const follow = (options: Partial<OutputOptions> = {}) => {
    const records = made.engine.execs.output("a", { follow: true, signal, ...options });
    return new TestReader(records[Symbol.asyncIterator]());
  };
  return { ...made, instance, start, follow };
}

/** Takes output only when a test asks for it. */
class TestReader {
  readonly #records: AsyncIterator<OutputRecord>;
  cursor = "";

  constructor(records: AsyncIterator<OutputRecord>) {
    this.#records = records;
  }

  /** Takes records up to the next one of a type, and asks for the one behind it, as a reader does that continues. */
  async take(type: OutputRecord["type"]): Promise<string> {
    for (;;) {
      const { done, value } = await this.#records.next();
      if (done) throw new Error("the output has ended");
      this.cursor = value.cursor;
      if (value.type === type) return "data" in value ? Buffer.from(value.data).toString() : "";
    }
  }

  async leave(): Promise<void> {
    await this.#records.return?.();
  }
}

describe("a reader that follows an exec", () => {
  it("holds its output from the start, before the first of it is read", async () => {
    const { instance, start, follow } = await boxed();
    await start();
    instance.onRead = () => expect(instance.holds.length).toBeGreaterThan(0);
    const reader = follow();
    await reader.take("start");
    expect(instance.holds[0]).toMatchObject({ id: A, cursor: 0 });
    expect(instance.holds[0]?.leaseMs).toBeGreaterThan(HOLD_MS / 2);
    await reader.leave();
  });

  it("moves the hold along as it takes output, and leaves room behind it for bytes on their way", async () => {
    const { instance, start, follow } = await boxed();
    await start();
    const reader = follow();
    await reader.take("start");
    for (let piece = 0; piece < 4; piece += 1) instance.print(A, "x".repeat(CAP / 2));
    for (let piece = 0; piece < 4; piece += 1) await reader.take("stdout");
    await reader.take("keepalive");
    expect(instance.holds.at(-1)?.cursor).toBe(2 * CAP - CAP / 4);
    await reader.leave();
  });

  it("that takes nothing does not renew the hold", async () => {
    const { instance, start, follow } = await boxed({ outputHoldMs: 200 });
    await start();
    const reader = follow();
    instance.print(A, "x");
    await reader.take("stdout");
    const asked = instance.holds.length;
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(instance.holds.length).toBe(asked);
    expect(instance.holds.every(({ leaseMs }) => leaseMs <= 200)).toBe(true);
    await reader.leave();
  });

  it("that only waits for output renews the hold", async () => {
    const { instance, start, follow } = await boxed({ outputHoldMs: 400 });
    await start();
    const reader = follow();
    for (let beat = 0; beat < 8; beat += 1) await reader.take("keepalive");
    expect(instance.holds.filter(({ leaseMs }) => leaseMs > 300).length).toBeGreaterThan(2);
    await reader.leave();
  });

  it("that leaves is waited for a little, and its return replaces it", async () => {
    const { instance, start, follow } = await boxed();
    await start();
    const reader = follow();
    instance.print(A, "x".repeat(CAP));
    await reader.take("stdout");
    await reader.take("keepalive");
    await reader.leave();
    const left = instance.holds.at(-1);
    expect(left).toMatchObject({ cursor: CAP - CAP / 4 });
    expect(left?.leaseMs).toBeLessThanOrEqual(RETURN_MS);
    const again = follow({ cursor: reader.cursor });
    instance.print(A, "y".repeat(CAP));
    await again.take("stdout");
    await again.take("keepalive");
    const last = instance.holds.at(-1);
    expect(last).toMatchObject({ cursor: 2 * CAP - CAP / 4 });
    expect(last?.leaseMs).toBeGreaterThan(RETURN_MS);
    await again.leave();
  });

  it("is not overtaken by a faster one: the slowest counts until it has left", async () => {
    const { instance, start, follow } = await boxed({ outputHoldMs: 10_000, outputReturnMs: 1 });
    await start();
    const [slow, fast] = [follow(), follow()];
    await slow.take("start");
    instance.print(A, "x".repeat(2 * CAP));
    await fast.take("stdout");
    await fast.take("keepalive");
    expect(instance.holds.at(-1)?.cursor).toBe(0);
    await slow.leave();
    await eventually(async () => {
      await fast.take("keepalive");
      expect(instance.holds.at(-1)?.cursor).toBe(2 * CAP - CAP / 4);
    });
    await fast.leave();
  });

  it("ends the hold when it has read to the end", async () => {
    const { instance, start, follow } = await boxed();
    await start();
    const reader = follow();
    await reader.take("start");
    instance.end(A, 0, "done");
    await reader.take("end");
    await reader.leave();
    expect(instance.holds.at(-1)?.leaseMs).toBe(0);
  });

  it("holds the output again over the next link", async () => {
    const { instance, start, follow } = await boxed();
    await start();
    const reader = follow();
    await reader.take("start");
    const asked = instance.holds.length;
    for (const link of [...instance.links]) link.drop("cut");
    await eventually(async () => {
      await reader.take("keepalive");
      expect(instance.holds.length).toBeGreaterThan(asked);
    });
    await reader.leave();
  });

  it("asks a keeper that is too old once per link, and reads its output as before", async () => {
    const { instance, start, follow } = await boxed();
    instance.canHold = false;
    await start();
    const reader = follow();
    await reader.take("start");
    instance.print(A, "x".repeat(CAP));
    expect(await reader.take("stdout")).toHaveLength(CAP);
    for (let beat = 0; beat < 3; beat += 1) await reader.take("keepalive");
    expect(instance.holds).toHaveLength(1);
    await reader.leave();
  });

  it("reads all output of an exec that ended while the reader took an earlier part", async () => {
    const { engine, instance, start, follow } = await boxed();
    await start();
    const reader = follow();
    instance.print(A, "one ");
    expect(await reader.take("stdout")).toBe("one ");
    instance.end(A, 0, "two");
    await engine.execs.wait("a", { waitMs: 10_000, signal });
    expect(await reader.take("stdout")).toBe("two");
    await reader.leave();
  });
});

describe("a hold is not requested", () => {
  it.each([
    ["by a reader that does not follow", {}, { follow: false }],
    ["by a reader that accepts gaps", {}, { hold: false }],
    ["for a command on a terminal", { tty: { cols: 80, rows: 24 } }, {}],
  ])("%s", async (_, order, options) => {
    const { instance, start, follow } = await boxed();
    await start(order);
    const reader = follow(options);
    await reader.take("start");
    await reader.leave();
    expect(instance.holds).toEqual([]);
  });

  it("for a named process, unless the reader asks for it", async () => {
    const { engine, instance } = await boxed();
    const order = { name: "web", command: "serve" };
    const { process } = await engine.processes.start("one", order, { waitMs: 0, signal });
    const id = `${process.id}-1`;
    for await (const { type } of engine.execs.output(id, { follow: true, signal }))
      if (type === "start") break;
    expect(instance.holds).toEqual([]);
    for await (const { type } of engine.execs.output(id, { follow: true, hold: true, signal }))
      if (type === "start") break;
    expect(instance.holds.length).toBeGreaterThan(0);
  });
});

describe("an exec whose caller is expected to read its output", () => {
  it("is held for that reader for a while, from its start", async () => {
    const { instance, start } = await boxed();
    await start({}, { expectsReader: true });
    expect(instance.holds).toMatchObject([{ id: A, cursor: 0 }]);
    expect(instance.holds[0]?.leaseMs).toBeLessThanOrEqual(RETURN_MS);
  });

  it("is no longer held when a reader has come that accepts gaps", async () => {
    const { instance, start, follow } = await boxed();
    await start({}, { expectsReader: true });
    const reader = follow({ hold: false });
    await reader.take("start");
    expect(instance.holds.at(-1)?.leaseMs).toBe(0);
    await reader.leave();
  });

  it("is not held if its caller waits for its end instead", async () => {
    const { instance, start } = await boxed();
    await start({}, { awaited: true });
    expect(instance.holds).toEqual([]);
  });

  it("is held for a reader that came while the exec was queued", async () => {
    const { engine, instance, start, follow } = await boxed({ execsPerSandbox: 1 });
    await engine.execs.start("one", { id: "first", argv: ["sleep"] }, { signal });
    await start();
    const reader = follow();
    await reader.take("start");
    instance.end("first" as ExecId, 0, "");
    await eventually(() => expect(instance.holds.some(({ id }) => id === A)).toBe(true));
    await reader.leave();
  });
});

import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { ExecOrder, Link } from "@holdfast/engine";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { nextEnd, pause, run, soon, TestKeeper, until } from "../testing/test-keeper.ts";

const CAP = 1_048_576;
const LONG_MS = 120_000;
/** The most by which a journal of held output exceeds its cap: a step of freeing, and one turn's reads of two pipes. */
const EXCESS = CAP / 8 + 4 * CAP;

let keeper: TestKeeper;
let link: Link;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
});
afterAll(() => keeper.stop());

const shell = (script: string, rest: Partial<ExecOrder> = {}) =>
  keeper.order(["sh", "-c", script], { journalCapBytes: CAP, ...rest });
const numbers = (count: number) => Array.from({ length: count }, (_, index) => `${index + 1}\n`).join("");
const stateOf = async (id: string) => (await link.listExecs(soon())).find((exec) => exec.id === id);
const slice = (order: ExecOrder, cursor: number, waitMs = 0) =>
  link.readExec(order.id, { cursor, maxBytes: 262_144, waitMs }, soon());

/** Starts a command with a hold from its beginning, as the engine does. */
async function held(order: ExecOrder, leaseMs = LONG_MS, over = link) {
  const end = nextEnd(over, order.id);
  const started = over.startExec(order, soon());
  expect(await over.holdExec(order.id, { cursor: 0, leaseMs }, soon())).toBe(true);
  await started;
  return { end };
}

/** Waits until the command's output no longer grows, although the command has more to write. */
async function untilItWaits(order: ExecOrder): Promise<number> {
  let last = -1;
  await until("the command waits", async () => {
    const end = (await stateOf(order.id))?.journalEnd ?? 0;
    const isStill = end === last && end >= CAP;
    last = end;
    await pause(60);
    return isStill;
  });
  return last;
}

/** Reads to the end and moves the hold along. */
async function readHeld(order: ExecOrder, from = 0): Promise<string> {
  const parts: Uint8Array[] = [];
  for (let cursor = from, more = true; more; ) {
    const read = await slice(order, cursor, 1_000);
    for (const record of read.records) parts.push(record.data);
    cursor = read.next;
    more = read.more;
    await link.holdExec(order.id, { cursor, leaseMs: LONG_MS }, soon());
  }
  return Buffer.concat(parts).toString();
}

describe("held output", () => {
  test("is not dropped beyond the cap: the command waits, and its journal stays bounded", async () => {
    const order = shell("seq 1 1000000");
    const { end } = await held(order);
    const reached = await untilItWaits(order);
    expect(reached).toBeLessThan(CAP + EXCESS);
    expect(await stateOf(order.id)).toMatchObject({ state: "running", journalFloor: 0 });
    expect(await readHeld(order)).toBe(numbers(1_000_000));
    expect(await end).toMatchObject({ state: "exited", exitCode: 0, failure: "" });
    const file = join(keeper.directory, "control", "journals", order.id);
    expect(statSync(file).blocks * 512).toBeLessThan(CAP + EXCESS);
  });

  test("of both streams arrives whole", async () => {
    const order = shell("seq 1 300000 & seq 1 300000 >&2 & wait");
    const { end } = await held(order);
    await untilItWaits(order);
    const text = await readHeld(order);
    expect(text.length).toBe(2 * numbers(300_000).length);
    expect(await end).toMatchObject({ exitCode: 0 });
  });

  test("of a terminal arrives whole", async () => {
    const order = shell("seq 1 300000", { tty: { cols: 80, rows: 24 } });
    const { end } = await held(order);
    await untilItWaits(order);
    expect(await readHeld(order)).toBe(numbers(300_000).replaceAll("\n", "\r\n"));
    expect(await end).toMatchObject({ exitCode: 0 });
  });

  test("includes what a command wrote right before its end", async () => {
    const size = CAP + 30_000;
    const order = shell(`head -c ${size} /dev/zero; printf the-end`);
    const { end } = await held(order);
    expect(await end).toMatchObject({ state: "exited", exitCode: 0 });
    const text = await readHeld(order);
    expect(text.length).toBe(size + "the-end".length);
    expect(text.endsWith("the-end")).toBe(true);
  });

  test("belongs to the exec, not to the link", async () => {
    const order = shell("seq 1 500000");
    const other = await keeper.connect();
    const started = held(order, LONG_MS, other);
    await started;
    await untilItWaits(order);
    (await started).end.catch(() => undefined);
    other.close();
    await pause(100);
    expect(await stateOf(order.id)).toMatchObject({ state: "running", journalFloor: 0 });
    expect(await readHeld(order)).toBe(numbers(500_000));
  });

  test("is dropped like any other once the lease has ended", async () => {
    const order = shell("seq 1 1000000");
    const { end } = await held(order, 700);
    expect(await end).toMatchObject({ state: "exited", exitCode: 0 });
    expect((await stateOf(order.id))?.journalFloor).toBeGreaterThan(0);
    await expect(slice(order, 0)).rejects.toMatchObject({ reason: "below_floor" });
  });

  test("is dropped like any other once the hold was ended by a request", async () => {
    const order = shell("seq 1 1000000");
    const { end } = await held(order);
    await untilItWaits(order);
    await link.holdExec(order.id, { cursor: 0, leaseMs: 0 }, soon());
    expect(await end).toMatchObject({ exitCode: 0 });
    expect((await stateOf(order.id))?.journalFloor).toBeGreaterThan(0);
  });

  test("does not keep a command from its timeout, a cancel, or a signal", async () => {
    const timed = shell("seq 1 1000000", { timeoutMs: 600 });
    expect(await (await held(timed)).end).toMatchObject({ state: "timed_out" });
    const cancelled = shell("seq 1 1000000");
    const first = await held(cancelled);
    await untilItWaits(cancelled);
    await link.cancelExec(cancelled.id, soon());
    expect(await first.end).toMatchObject({ state: "cancelled" });
    const signalled = shell("exec seq 1 1000000");
    const second = await held(signalled);
    await untilItWaits(signalled);
    await link.signalExec(signalled.id, 15, soon());
    expect(await second.end).toMatchObject({ state: "exited", signal: 15 });
  });

  test("holds back a command that copies its input, and loses nothing of it", async () => {
    const order = shell("cat", { stdin: true });
    const { end } = await held(order);
    const text = numbers(600_000);
    const data = Buffer.from(text);
    const feed = (async () => {
      for (let offset = 0; offset < data.length; ) {
        const piece = data.subarray(offset, offset + 262_144);
        const isLast = offset + piece.length === data.length;
        ({ accepted: offset } = await link.writeStdin(
          order.id,
          { offset, data: piece, end: isLast },
          soon(),
        ));
      }
    })();
    await untilItWaits(order);
    expect(await readHeld(order)).toBe(text);
    await feed;
    expect(await end).toMatchObject({ exitCode: 0 });
  });

  test("of an ended exec holds back what its background processes write, and a forgotten one is drained", async () => {
    const order = shell(`sh -c 'seq 1 2000000; echo $? > done' & exit 0`, { cwd: keeper.directory });
    const { end } = await held(order);
    await end;
    await untilItWaits(order);
    await link.forgetExec(order.id, { keepJournal: false }, soon());
    await until("the background process has written all", () => {
      try {
        return readFileSync(join(keeper.directory, "done"), "utf8") === "0\n";
      } catch {
        return false;
      }
    });
  });

  test("does not slow other commands, and an idle keeper sleeps while a command waits", async () => {
    const order = shell("seq 1 1000000");
    await held(order);
    await untilItWaits(order);
    const before = cpuTicks(keeper.pid);
    await pause(1_000);
    expect(cpuTicks(keeper.pid) - before).toBeLessThan(20);
    expect(await run(link, shell("seq 1 10"))).toMatchObject({ exitCode: 0 });
    await link.cancelExec(order.id, soon());
  });
});

describe("a hold", () => {
  test("needs a known exec and a cursor within its journal; one before the floor begins at the floor", async () => {
    const order = shell("head -c 3000000 /dev/zero");
    const end = await run(link, order);
    const hold = (cursor: number, id = order.id) => link.holdExec(id, { cursor, leaseMs: 1_000 }, soon());
    expect(end.journalFloor).toBeGreaterThan(0);
    expect(await hold(0)).toBe(true);
    await expect(hold(1_000_000_000)).rejects.toMatchObject({ reason: "bad_cursor" });
    await expect(hold(0, "no-such-exec" as typeof order.id)).rejects.toMatchObject({
      reason: "no_such_exec",
    });
  });
});

/** CPU time of a process in clock ticks, 100 of which are a second. */
function cpuTicks(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
  return Number(fields[11]) + Number(fields[12]);
}

import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { ExecOrder, Link } from "@holdfast/engine";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isAlive, nextEnd, output, run, soon, TestKeeper, until } from "../testing/test-keeper.ts";

let keeper: TestKeeper;
let link: Link;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
});
afterAll(() => keeper.stop());

const bash = (script: string, rest: Partial<ExecOrder> = {}) =>
  keeper.order(["bash", "-c", script], { cwd: keeper.directory, ...rest });

function pidIn(name: string): number {
  try {
    return Number(readFileSync(join(keeper.directory, name), "utf8"));
  } catch {
    return 0;
  }
}

describe("a process that tries to escape", () => {
  /** A script that changes its parent, session, group and environment, and tries to change its mark. */
  const runaway = (name: string) =>
    `env -i setsid bash -c '(ulimit -R 5000000; prlimit --pid $BASHPID --rttime=4000000:4000000; echo $BASHPID > ${name}; exec sleep 81) & exit' ; sleep 82`;

  test("ends with the timeout", async () => {
    const order = bash(runaway("timed"), { timeoutMs: 1_500 });
    expect(await run(link, order)).toMatchObject({ state: "timed_out", failure: "" });
    expect(pidIn("timed")).toBeGreaterThan(0);
    expect(isAlive(pidIn("timed"))).toBe(false);
  });

  test("ends with a cancel", async () => {
    const order = bash(runaway("cancelled"));
    const end = nextEnd(link, order.id);
    await link.startExec(order, soon());
    await until("it ran away", () => pidIn("cancelled") > 0);
    await link.cancelExec(order.id, soon());
    expect(await end).toMatchObject({ state: "cancelled", failure: "" });
    expect(isAlive(pidIn("cancelled"))).toBe(false);
  });

  test("ends with a cancel that comes after its exec has ended", async () => {
    const order = bash(`${runaway("left")} & until test -s left; do sleep 0.01; done; exit 3`);
    expect(await run(link, order)).toMatchObject({ state: "exited", exitCode: 3 });
    expect(isAlive(pidIn("left"))).toBe(true);
    await link.cancelExec(order.id, soon());
    await until("it is gone", () => !isAlive(pidIn("left")));
  });
});

test("a mark can be read, but not set", async () => {
  const order = bash(
    "ulimit -R 5000000; echo $?; ulimit -HR 5000000; echo $?; ulimit -R; ulimit -c 0; echo $?",
  );
  await run(link, order);
  const { stdout, stderr } = await output(link, order.id);
  expect(stdout).toMatch(/^1\n1\n\d{16}\n0\n$/);
  expect(stderr.match(/Operation not permitted/g)).toHaveLength(2);
});

describe("many at once", () => {
  /** Order of a shell with children, one of them in another session. */
  const family = (rest: Partial<ExecOrder> = {}) =>
    bash("sleep 83 & env -i setsid sleep 84 & echo ready; wait; sleep 85", rest);

  async function startAll(orders: readonly ExecOrder[]): Promise<void> {
    for (const order of orders) await link.startExec(order, soon());
    for (const order of orders) {
      await link.readExec(order.id, { cursor: 0, maxBytes: 1_000, waitMs: 15_000 }, soon());
    }
  }

  const processesOf = async (ids: ReadonlySet<string>) =>
    (await link.processes(soon())).filter(({ execId, state }) => ids.has(execId) && state !== "Z");

  test("that are cancelled end with all their children, and the others keep running", async () => {
    const doomed = Array.from({ length: 200 }, () => family());
    const spared = Array.from({ length: 5 }, () => family());
    await startAll([...doomed, ...spared]);
    const ends = doomed.map((order) => nextEnd(link, order.id));
    await Promise.all(doomed.map((order) => link.cancelExec(order.id, soon())));
    for (const end of await Promise.all(ends)) expect(end).toMatchObject({ state: "cancelled", failure: "" });
    expect(await processesOf(new Set(doomed.map((order) => order.id)))).toEqual([]);
    expect(await processesOf(new Set(spared.map((order) => order.id)))).toHaveLength(15);
    for (const order of spared) await link.cancelExec(order.id, soon());
  });

  test("that time out together end together", async () => {
    const orders = Array.from({ length: 100 }, () => family({ timeoutMs: 4_000 }));
    const ends = orders.map((order) => nextEnd(link, order.id));
    await startAll(orders);
    for (const end of await Promise.all(ends)) expect(end).toMatchObject({ state: "timed_out", failure: "" });
    expect(await processesOf(new Set(orders.map((order) => order.id)))).toEqual([]);
  });
});

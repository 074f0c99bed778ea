import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { ExecId } from "@holdfast/contract";
import type { ExecOrder, KeeperExec, Link, SupervisedRun, SupervisePolicy } from "@holdfast/engine";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  nextEnd,
  output,
  pause,
  removeAll,
  run,
  soon,
  TestKeeper,
  temporary,
  until,
} from "../testing/test-keeper.ts";

let keeper: TestKeeper;
let link: Link;
beforeAll(async () => {
  keeper = await TestKeeper.start();
  link = await keeper.connect();
});
afterAll(() => keeper.stop());

const QUICK = { on: "failure", max: 2, backoffMs: 10 } as const;
const SLOW = { on: "always", max: 1_000, backoffMs: 60_000 } as const;

/** Order of the first run of a new supervised command. */
function first(argv: readonly string[], rest: Partial<ExecOrder> = {}, of = keeper): ExecOrder {
  const { id } = of.order(argv);
  return of.order(argv, { id: `${id}-1` as ExecId, ...rest });
}
const shell = (script: string, rest = {}) => first(["sh", "-c", script], rest);
const keep = (order: ExecOrder, policy: SupervisePolicy = QUICK, via = link) =>
  via.superviseExec(order, policy, soon());
const runOf = ({ id }: ExecOrder, number: number) => id.replace(/\d+$/, String(number)) as ExecId;
const inRow = (order: ExecOrder, id: ExecId) => id.startsWith(order.id.replace(/\d+$/, ""));

async function rowOf(order: ExecOrder, via = link): Promise<SupervisedRun | undefined> {
  return (await via.listSupervised(soon())).find(({ execId }) => inRow(order, execId));
}

async function runsOf(order: ExecOrder, via = link): Promise<KeeperExec[]> {
  const number = ({ id }: KeeperExec) => Number(/\d+$/.exec(id)?.[0]);
  const runs = (await via.listExecs(soon())).filter(({ id }) => inRow(order, id));
  return runs.sort((one, other) => number(one) - number(other));
}

async function untilRow(order: ExecOrder, state: SupervisedRun["state"], via = link): Promise<SupervisedRun> {
  let row: SupervisedRun | undefined;
  await until(`the row is ${state}`, async () => {
    row = await rowOf(order, via);
    return row?.state === state;
  });
  if (row === undefined) throw new Error("no such row");
  return row;
}

/** Returns the begin and end events of a supervised command, in order. */
function eventsOf(order: ExecOrder): string[] {
  const events: string[] = [];
  const record = (what: string) => (exec: KeeperExec) => {
    if (inRow(order, exec.id)) events.push(`${what} ${/\d+$/.exec(exec.id)?.[0]} ${exec.state}`);
  };
  link.onExecStart(record("begin"));
  link.onExecEnd(record("end"));
  return events;
}

describe("a supervised command", () => {
  test("that fails is restarted until it succeeds, each run with its own journal and outcome", async () => {
    const script = `
      echo x >> "$0"; echo "$HOLDFAST_EXEC"; cat
      [ $(wc -l < "$0") -ge 3 ] || exit 7`;
    const order = first(["sh", "-c", script, join(keeper.directory, "thrice")]);
    const events = eventsOf(order);
    const started = await keep(order, { ...QUICK, max: 5 });
    expect(started).toMatchObject({ existed: false, exec: { id: order.id, state: "running" } });
    expect(await untilRow(order, "done")).toEqual({
      execId: runOf(order, 3),
      state: "done",
      restarts: 2,
      nextAt: null,
    });
    const runs = await runsOf(order);
    const { digest } = order;
    expect(runs).toMatchObject([
      { id: runOf(order, 1), state: "exited", exitCode: 7, digest },
      { id: runOf(order, 2), state: "exited", exitCode: 7, digest },
      { id: runOf(order, 3), state: "exited", exitCode: 0, digest },
    ]);
    for (const { id } of runs) expect(await output(link, id)).toEqual({ stdout: `${id}\n`, stderr: "" });
    expect(events).toEqual([
      ...["end 1 exited", "begin 2 running", "end 2 exited", "begin 3 running", "end 3 exited"],
    ]);
  });

  test("is restarted after exit code 0 if the policy is `always`", async () => {
    const order = first(["true"]);
    await keep(order, { ...QUICK, on: "always" });
    expect(await untilRow(order, "given_up")).toMatchObject({ execId: runOf(order, 3), restarts: 2 });
    expect((await runsOf(order)).map(({ exitCode }) => exitCode)).toEqual([0, 0, 0]);
  });

  test.for([0, 1, 3])("is given up after %i restarts in a row", async (max) => {
    const order = first(["false"]);
    await keep(order, { ...QUICK, max });
    expect(await untilRow(order, "given_up")).toEqual({
      execId: runOf(order, max + 1),
      state: "given_up",
      restarts: max,
      nextAt: null,
    });
    await pause(200);
    expect(await runsOf(order)).toHaveLength(max + 1);
  });

  test("that can't be run has failed", async () => {
    const order = first(["/no/such/program"]);
    await keep(order, { ...QUICK, max: 1 });
    await untilRow(order, "given_up");
    expect((await runsOf(order)).map(({ failure }) => failure)).toEqual(["not_found", "not_found"]);
  });

  test("that exceeds its timeout has failed, and each run has its own timeout", async () => {
    const order = first(["sleep", "68"], { timeoutMs: 200 });
    await keep(order, { ...QUICK, max: 1 });
    await untilRow(order, "given_up");
    expect((await runsOf(order)).map(({ state }) => state)).toEqual(["timed_out", "timed_out"]);
  });

  test("has a terminal in every run", async () => {
    const order = shell("stty size; exit 1", { tty: { cols: 100, rows: 30 } });
    await keep(order, { ...QUICK, max: 1 });
    await untilRow(order, "given_up");
    for (const { id } of await runsOf(order)) expect((await output(link, id)).stdout).toBe("30 100\r\n");
  });

  test("waits longer before each restart", async () => {
    const order = first(["false"]);
    await keep(order, { on: "failure", max: 3, backoffMs: 100 });
    await untilRow(order, "given_up");
    const runs = await runsOf(order);
    const waits = runs.slice(1).map(({ startedAt }, index) => startedAt - (runs[index]?.endedAt ?? 0));
    expect(waits).toHaveLength(3);
    for (const [index, wait] of waits.entries()) expect(wait).toBeGreaterThan(80 * 2 ** index);
  });

  test("is restarted after a signal that ended it", async () => {
    const order = first(["sleep", "69"]);
    await keep(order);
    await link.signalExec(order.id, 9, soon());
    await until("it runs again", async () => (await rowOf(order))?.execId === runOf(order, 2));
    expect((await runsOf(order))[0]).toMatchObject({ state: "exited", signal: 9 });
    await link.cancelExec(runOf(order, 2), soon());
  });
});

describe("a cancel of the last run", () => {
  test("while it runs ends the run and the supervision", async () => {
    const order = first(["sleep", "70"]);
    await keep(order, { ...QUICK, on: "always" });
    const end = nextEnd(link, order.id);
    await link.cancelExec(order.id, soon());
    expect(await rowOf(order)).toMatchObject({ state: "stopped", nextAt: null });
    expect(await end).toMatchObject({ state: "cancelled" });
    await pause(300);
    expect(await runsOf(order)).toHaveLength(1);
    expect(await rowOf(order)).toMatchObject({ execId: order.id, state: "stopped", restarts: 0 });
  });

  test("before the next run ends the supervision, and the outcome stays", async () => {
    const order = first(["false"]);
    await keep(order, { ...QUICK, backoffMs: 500 });
    const { nextAt } = await untilRow(order, "waiting");
    expect(Math.abs((nextAt ?? 0) - Date.now())).toBeLessThan(10_000);
    await link.cancelExec(order.id, soon());
    expect(await rowOf(order)).toMatchObject({ execId: order.id, state: "stopped", nextAt: null });
    await pause(1_000);
    expect(await runsOf(order)).toMatchObject([{ state: "exited", exitCode: 1 }]);
  });

  test("differs from a cancel of an earlier run, or after the end", async () => {
    const order = shell("[ -e earlier ] && exec sleep 71; touch earlier; exit 1", { cwd: keeper.directory });
    await keep(order);
    await until("it runs again", async () => (await rowOf(order))?.execId === runOf(order, 2));
    await link.cancelExec(order.id, soon());
    expect(await rowOf(order)).toMatchObject({ state: "running" });
    await link.cancelExec(runOf(order, 2), soon());
    const over = first(["true"]);
    await keep(over);
    await untilRow(over, "done");
    await link.cancelExec(over.id, soon());
    expect(await rowOf(over)).toMatchObject({ state: "done" });
  });
});

describe("supervision", () => {
  test("continues without any link, and for a newer generation", async () => {
    const alone = await TestKeeper.start();
    try {
      const before = await alone.connect();
      const order = first(["sh", "-c", "echo x >> runs; exit 1"], { cwd: alone.directory }, alone);
      await keep(order, { on: "failure", max: 4, backoffMs: 50 }, before);
      before.close();
      const runs = () => readFileSync(join(alone.directory, "runs"), "utf8").length / 2;
      await until("it was started again", () => existsSync(join(alone.directory, "runs")) && runs() >= 3);
      const after = await alone.connect({ generation: 2 });
      expect(await untilRow(order, "given_up", after)).toMatchObject({ restarts: 4 });
      expect(await runsOf(order, after)).toHaveLength(5);
      expect(runs()).toBe(5);
    } finally {
      await alone.stop();
    }
  });

  test("keeps its last run, ends with it, and releases earlier ones", async () => {
    const forget = (id: ExecId) => link.forgetExec(id, { keepJournal: false }, soon());
    const order = shell("[ -e seen ] && exec sleep 72; touch seen; exit 1", { cwd: keeper.directory });
    await keep(order, { ...QUICK, backoffMs: 1_000 });
    await untilRow(order, "waiting");
    await expect(forget(order.id)).rejects.toMatchObject({ reason: "exec_running" });
    await untilRow(order, "running");
    await forget(order.id);
    await expect(forget(runOf(order, 2))).rejects.toMatchObject({ reason: "exec_running" });
    const end = nextEnd(link, runOf(order, 2));
    await link.cancelExec(runOf(order, 2), soon());
    await end;
    expect(await rowOf(order)).toMatchObject({ state: "stopped" });
    await forget(runOf(order, 2));
    expect(await rowOf(order)).toBeUndefined();
  });

  test("gives up if the next run's journal already exists", async () => {
    const journals = join(keeper.directory, "control", "journals");
    const order = first(["false"]);
    writeFileSync(join(journals, runOf(order, 2)), "another's");
    await keep(order);
    expect(await untilRow(order, "given_up")).toMatchObject({ execId: order.id, restarts: 0 });
    expect(readFileSync(join(journals, runOf(order, 2)), "utf8")).toBe("another's");

    const known = first(["false"]);
    await run(link, { ...known, id: runOf(known, 2) });
    removeAll(join(journals, runOf(known, 2)));
    await keep(known);
    expect(await untilRow(known, "given_up")).toMatchObject({ execId: known.id, restarts: 0 });
  });

  test("gives up if the next id would be too long", async () => {
    const stem = "n".repeat(62);
    const order = keeper.order(["false"], { id: `${stem}-8` as ExecId });
    await keep(order, { ...QUICK, max: 5 });
    expect(await untilRow(order, "given_up")).toMatchObject({ execId: `${stem}-9`, restarts: 1 });
  });

  test("waits for missing resources, without counting a restart", async () => {
    const few =
      'mkdir -p "$HOLDFAST_CONTROL/journals" && mount -t tmpfs -o nr_inodes=3 tmpfs "$HOLDFAST_CONTROL/journals"';
    const short = await TestKeeper.start(["unshare", "-m", "sh", "-ec", `${few}; exec "$0"`]);
    try {
      const via = await short.connect();
      const order = first(["false"], {}, short);
      await keep(order, QUICK, via);
      await until("there is no room for the third", async () => (await rowOf(order, via))?.restarts === 1);
      await pause(500);
      expect(await untilRow(order, "waiting", via)).toMatchObject({ execId: runOf(order, 2), restarts: 1 });
      await via.forgetExec(order.id, { keepJournal: false }, soon());
      expect(await untilRow(order, "given_up", via)).toMatchObject({ execId: runOf(order, 3), restarts: 2 });
    } finally {
      await short.stop();
    }
  });
});

test("supervised commands leave half of the exec slots to requests", async () => {
  const full = await TestKeeper.start();
  try {
    const via = await full.connect();
    const PLACES = 2_048;
    const orders = Array.from({ length: PLACES - 1 }, () => full.order(["true"]));
    for (let at = 0; at < orders.length; at += 100) {
      await Promise.all(orders.slice(at, at + 100).map((order) => via.startExec(order, soon())));
    }
    const order = first(["false"], {}, full);
    await keep(order, QUICK, via);
    await untilRow(order, "waiting", via);
    await pause(500);
    expect(await rowOf(order, via)).toMatchObject({ state: "waiting", restarts: 0 });
    expect(await run(via, full.order(["true"]))).toMatchObject({ exitCode: 0 });
    for (const { id } of orders.slice(0, 10)) await via.forgetExec(id, { keepJournal: false }, soon());
    await untilRow(order, "given_up", via);
  } finally {
    await full.stop();
  }
});

describe("a request to supervise", () => {
  test("that is repeated starts nothing twice", async () => {
    const order = shell("echo x >> kept-once", { cwd: keeper.directory });
    expect((await keep(order, SLOW)).existed).toBe(false);
    expect((await keep(order, SLOW)).existed).toBe(true);
    await untilRow(order, "waiting");
    expect(await keep(order, SLOW)).toMatchObject({ existed: true, exec: { state: "exited" } });
    expect(readFileSync(join(keeper.directory, "kept-once"), "utf8")).toBe("x\n");
    await link.cancelExec(order.id, soon());
  });

  test("is a conflict if another command, an unsupervised one, or a supervised id prefix has the id", async () => {
    const conflict = { reason: "exec_conflict" };
    const order = first(["sh", "-c", "[ -e gone ] && exec sleep 73; touch gone; exit 1"], {
      cwd: keeper.directory,
    });
    await keep(order);
    await expect(keep(first(["true"], { id: order.id }))).rejects.toMatchObject(conflict);
    const once = first(["true"]);
    await run(link, once);
    await expect(keep(once)).rejects.toMatchObject(conflict);
    await until("it runs again", async () => (await rowOf(order))?.execId === runOf(order, 2));
    await link.forgetExec(order.id, { keepJournal: false }, soon());
    await expect(keep(order)).rejects.toMatchObject(conflict);
    await link.cancelExec(runOf(order, 2), soon());
    expect((await keep(order, SLOW)).existed).toBe(false);
    await link.cancelExec(order.id, soon());
  });

  test.for<[string, Partial<ExecOrder>, Partial<SupervisePolicy>]>([
    ["more restarts than there may be", {}, { max: 1_001 }],
    ["too short a wait", {}, { backoffMs: 9 }],
    ["too long a wait", {}, { backoffMs: 60_001 }],
    ["stdin", { stdin: true }, {}],
    ["an id without a number", { id: "unnumbered" as ExecId }, {}],
    ["a number without a hyphen", { id: "number1" as ExecId }, {}],
    ["a number with needless zeros", { id: "number-01" as ExecId }, {}],
  ])("with %s is refused, and starts nothing", async ([, rest, policy]) => {
    const order = first(["true"], rest);
    await expect(keep(order, { ...QUICK, ...policy })).rejects.toMatchObject({ reason: "malformed" });
    expect((await link.listExecs(soon())).map(({ id }) => id)).not.toContain(order.id);
  });

  test("is refused beyond the limits of number and size, until one ends", async () => {
    const full = await TestKeeper.start();
    try {
      const via = await full.connect();
      const large = () =>
        first(
          [
            "true",
            ..."x"
              .repeat(9)
              .split("")
              .map((x) => x.repeat(100_000)),
          ],
          {},
          full,
        );
      const rows: ExecOrder[] = [];
      const refused = async (make: () => ExecOrder) => {
        for (;;) {
          const order = make();
          const error = await keep(order, SLOW, via).catch((reason: unknown) => reason);
          if (error instanceof Error) return error;
          rows.push(order);
          if (rows.length > 100) throw new Error("there is no limit");
        }
      };
      expect(await refused(large)).toMatchObject({
        reason: "limit",
        message: expect.stringMatching(/large/),
      });
      expect(rows).toHaveLength(4);
      expect(await refused(() => first(["true"], {}, full))).toMatchObject({ reason: "limit" });
      expect(rows).toHaveLength(64);
      await untilRow(rows[0] ?? large(), "waiting", via);
      await via.cancelExec(rows[0]?.id ?? ("" as ExecId), soon());
      expect(await keep(large(), SLOW, via)).toMatchObject({ existed: false });
      expect(await via.listSupervised(soon())).toHaveLength(65);
    } finally {
      await full.stop();
    }
  });
});

describe("the restart decision", () => {
  const directory = temporary();
  const program = join(directory, "decide");
  beforeAll(() => {
    const home = fileURLToPath(new URL("../..", import.meta.url));
    const flags = ["-D_GNU_SOURCE", "-ffunction-sections", "-Wl,--gc-sections", `-I${join(home, "c")}`];
    execFileSync("gcc", [...flags, "-o", program, join(home, "fixtures", "decide.c")]);
  });
  afterAll(() => removeAll(directory));
  const decide = (...args: (string | number)[]) => execFileSync(program, args.map(String)).toString();
  const [WAITING, DONE, GIVEN_UP] = [2, 3, 5];

  test.for<[on: string, max: number, restarts: number, exitCode: number, lived: number, decided: string]>([
    ["failure", 3, 2, 0, 10, `${DONE} 2`],
    ["failure", 3, 2, 1, 10, `${WAITING} 2`],
    ["failure", 3, 3, 1, 10, `${GIVEN_UP} 3`],
    ["failure", 3, 3, 1, 59_999, `${GIVEN_UP} 3`],
    ["failure", 3, 3, 1, 60_000, `${WAITING} 0`],
    ["failure", 0, 0, 1, 60_000, `${GIVEN_UP} 0`],
    ["always", 3, 2, 0, 10, `${WAITING} 2`],
    ["always", 3, 3, 0, 10, `${GIVEN_UP} 3`],
    ["always", 3, 3, 0, 60_000, `${WAITING} 0`],
  ])(
    "%s, at most %i, after %i restarts, an exit with %i and %i ms",
    ([on, max, restarts, code, lived, decided]) => {
      expect(decide("after", on, max, restarts, code, lived)).toBe(decided);
    },
  );

  test("the wait doubles up to a minute", () => {
    const waits = [0, 1, 2, 12, 13, 1_000].map((restarts) => decide("backoff", 10, restarts, 0));
    expect(waits).toEqual(["10", "20", "40", "40960", "60000", "60000"]);
    expect(decide("backoff", 60_000, 0, 0)).toBe("60000");
    expect(decide("backoff", 10, 1, 2)).toBe("80");
  });

  test("ids count up as far as they fit", () => {
    const full = "n".repeat(61);
    for (const [id, next] of [
      ...[["a-0", "a-1"] as const, ["a-b-9", "a-b-10"] as const, ["a-1099", "a-1100"] as const],
      ...[[`${full}-9`, `${full}-10`] as const, [`${full}-99`, "none"] as const],
      ...[
        ["a", "none"] as const,
        ["a-", "none"] as const,
        ["a-01", "none"] as const,
        ["a1", "none"] as const,
      ],
    ]) {
      expect(decide("next", id), id).toBe(next);
    }
  });
});

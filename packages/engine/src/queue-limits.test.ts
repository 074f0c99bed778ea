import type { ExecId, Numbers } from "@holdfast/contract";
import { expect, it } from "vitest";
import { start } from "./testing/sleeping-sandbox.ts";
import { codeOf, never, signal, testEngine } from "./testing/test-engine.ts";

type World = Awaited<ReturnType<typeof testEngine>>;

interface Queue {
  numbers: Partial<Numbers>;
  /** Begins more works at a time than run and wait, on two sandboxes. */
  crowd: (all: World) => Promise<Promise<unknown>[]>;
  code?: string;
}

const both = (work: (ref: string) => Promise<unknown>): Promise<unknown>[] => ["one", "two"].map(work);
const searched = ({ engine }: World, ref: string) =>
  engine.files.search(ref, "/", { wake: true, limit: 10, content: "x" }, signal);
const copied = (all: World, ref: string, name: string) =>
  all.engine.checkpoints.create(ref, { name }, signal);
const stuck = () => never();

/** One row for each limit on waiting work, by the name of its number. */
const QUEUES = {
  searchesWaiting: {
    numbers: { searchesAtOnce: 1, searchesWaiting: 0 },
    crowd: async (all) => both((ref) => searched(all, ref)),
  },
  diagnosesWaiting: {
    numbers: { diagnosesAtOnce: 1, diagnosesWaiting: 0 },
    crowd: async ({ engine }) => both((ref) => engine.sandboxes.diagnosis(ref, { windowMs: 300 }, signal)),
  },
  standbysWaiting: {
    numbers: { standbysAtOnce: 1, standbysWaiting: 0 },
    crowd: async ({ engine, driver }) => {
      driver.faults.checkpoint = stuck;
      return both((ref) => engine.sandboxes.standby(ref, signal));
    },
  },
  wakesWaiting: {
    numbers: { wakesAtOnce: 1, wakesWaiting: 0 },
    crowd: async ({ engine, driver }) => {
      await Promise.all(both((ref) => engine.sandboxes.standby(ref, signal)));
      driver.faults.restore = stuck;
      return both((ref) => engine.sandboxes.wake(ref, signal));
    },
  },
  checkpointsWaiting: {
    numbers: { checkpointsWaiting: 0 },
    crowd: async (all) => {
      all.driver.faults.save = stuck;
      return both((ref) => copied(all, ref, "copy"));
    },
  },
  checkpointChangesWaiting: {
    numbers: { checkpointChangesWaiting: 1 },
    crowd: async (all) => {
      all.driver.faults.save = stuck;
      return ["first", "second"].map((name) => copied(all, "one", name));
    },
    code: "too_many_held",
  },
  changesWaiting: {
    numbers: { changesWaiting: 3 },
    crowd: async ({ engine, driver }) => {
      driver.faults.freeze = stuck;
      return Array.from({ length: 4 }, () => engine.sandboxes.pause("one", signal));
    },
  },
  stdinWritesWaiting: {
    numbers: { stdinWritesWaiting: 1 },
    crowd: async ({ engine }) => {
      const exec = await start(engine, "one", ["cat"], { openStdin: true });
      const chunk = { offset: null, data: Buffer.from("some words"), end: false };
      return Array.from({ length: 2 }, () => engine.execs.writeStdin(exec.id as ExecId, chunk, signal));
    },
  },
  launchesWaiting: {
    numbers: { launchesAtOnce: 1, launchesWaiting: 1 },
    crowd: async ({ engine, driver }) => {
      driver.faults.launch = stuck;
      for (const name of ["launching", "waiting"])
        await engine.sandboxes.create({ name }, { wait: false, signal });
      return [engine.sandboxes.create({ name: "refused" }, { wait: false, signal })];
    },
  },
} satisfies Partial<Record<keyof Numbers, Queue>>;

it.each(Object.entries<Queue>(QUEUES))(
  "work beyond the limit %s is refused with the typed error of its queue",
  async (_name, { numbers, crowd, code = "capacity" }) => {
    const all = await testEngine(numbers);
    for (const name of ["one", "two"]) await all.create(name);
    // The other works may hang: only the first refusal counts, and it comes at once.
    const codes = (await crowd(all)).map(codeOf);
    const refusal = codes.map(async (each) => ((await each) === code ? code : await never()));
    expect(await Promise.race(refusal)).toBe(code);
  },
  30_000,
);

it("requests for redelivery beyond the limit changesWaiting are refused", async () => {
  const { engine } = await testEngine({ changesWaiting: 3 });
  const requests = Array.from({ length: 4 }, () => engine.alerts.redeliver("dlv_0123456789abcdef"));
  expect(await Promise.all(requests.map(codeOf))).toEqual([
    "no_webhook",
    "no_webhook",
    "no_webhook",
    "capacity",
  ]);
});

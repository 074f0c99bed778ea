import type { CheckpointId, ExecId, SandboxId } from "@holdfast/contract";
import type { ExecOrder } from "@holdfast/engine";
import { beforeEach, describe, expect, it } from "vitest";
import { Faults } from "../schedule/armed-faults.ts";
import { Random } from "../schedule/random.ts";
import { VirtualTime } from "../time/virtual-time.ts";
import { dump, restore } from "./checkpoints.ts";
import type { Fact } from "./facts.ts";
import { Host, type SimulatedInstance } from "./host.ts";
import { Process } from "./process.ts";

const sandboxId = "sbx_1" as SandboxId;
const id = "ckp_1" as CheckpointId;
const execId = "x1" as ExecId;
const { signal } = new AbortController();

let time: VirtualTime;
let host: Host;
let process: Process;
let facts: Fact[];

beforeEach(() => {
  time = new VirtualTime();
  facts = [];
  const faults = new Faults(() => undefined);
  const report = (fact: Fact) => facts.push(fact);
  host = new Host({ time, random: new Random(1), faults, report, keepsMemory: true });
  process = new Process({ number: 1, time, faults, onDeath: () => undefined, onSpin: () => undefined });
});

const pass = (ms: number) => time.pass(ms, () => true);

/** Runs an operation while virtual time passes. */
async function during<Result>(work: Promise<Result>): Promise<Result> {
  const settled = work.then(
    () => undefined,
    () => undefined,
  );
  await time.quiet();
  await pass(1_000);
  await settled;
  return work;
}

function running(): SimulatedInstance {
  const instance = host.spawn({ sandboxId, generation: 1 });
  const order: ExecOrder = {
    id: execId,
    argv: ["run", "10000", "7", "1"],
    env: {},
    cwd: "",
    user: "",
    timeoutMs: 12_000,
    stdin: false,
    tty: null,
    journalCapBytes: 1,
    digest: "d",
  };
  instance.keeper.start(order);
  return instance;
}

const parts = () => ({ host, process, signal });

async function dumped(instance: SimulatedInstance) {
  host.hold(instance, "frozen");
  return during(dump(parts(), { sandboxId, generation: 1, id }, null));
}

const restored = async (generation: number) => {
  const checkpoint = { id, takenAt: 0, generation: 1, sizeBytes: 1 };
  const resources = { memoryMb: 1, cpus: 1, pids: 1 };
  const order = { sandboxId, name: "one", generation, checkpoint, image: "host", resources };
  return during(restore(parts(), order, null));
};

const stateOf = (instance: SimulatedInstance | null) => instance?.keeper.execs.get(execId)?.state;

describe("a frozen instance", () => {
  it("does not run, and no time passes for it", async () => {
    const instance = running();
    await pass(4_000);
    host.hold(instance, "frozen");
    await pass(60_000);
    expect(stateOf(instance)).toBe("running");
    expect(instance.keeper.livedMs).toBe(4_000);
    host.release(instance, "frozen");
    await pass(5_999);
    expect(stateOf(instance)).toBe("running");
    await pass(1);
    // Ended by itself: the timeout does not count time in standby.
    expect(stateOf(instance)).toBe("exited");
  });
});

describe("a checkpoint", () => {
  it("restores memory, frozen, on the current files", async () => {
    const instance = running();
    await pass(4_000);
    await dumped(instance);
    host.kill(instance, "asleep");
    await pass(600_000);
    await restored(2);
    const woken = host.instanceOf(sandboxId);
    expect(woken?.keeper.bootId).toBe(instance.keeper.bootId);
    expect(woken?.holds).toContain("frozen");
    await pass(60_000);
    expect(stateOf(woken)).toBe("running");
    if (woken !== null) host.release(woken, "frozen");
    expect(facts.findLast(({ type }) => type === "resumed")).toMatchObject({ memory: 1, disk: 1 });
    await pass(6_000);
    expect(stateOf(woken)).toBe("exited");
    expect(host.directories.get(sandboxId)?.journals.get(execId)?.text).toBe("x1 says 1\n");
    expect(facts.filter(({ type }) => type === "command")).toHaveLength(1);
    expect(facts.filter(({ type }) => type === "behind")).toEqual([]);
  });

  it("that is used a second time is older than the files, which is detected", async () => {
    await dumped(running());
    for (const generation of [2, 3]) {
      const before = host.instanceOf(sandboxId);
      if (before !== null) host.kill(before, "gone");
      await restored(generation);
      const woken = host.instanceOf(sandboxId);
      if (woken !== null) host.release(woken, "frozen");
      await pass(60_000);
    }
    const resumed = facts.filter((fact) => fact.type === "resumed");
    expect(resumed.map(({ memory, disk }) => disk - memory)).toEqual([0, 2]);
  });

  it.each(["half", "damaged", "foreign", null] as const)("that is %s is refused", async (state) => {
    await dumped(running());
    const { checkpoints } = host.directory(sandboxId);
    const stored = checkpoints.get(id);
    if (state === null) checkpoints.clear();
    else if (stored !== undefined) stored.state = state;
    await expect(restored(2)).rejects.toThrow("checkpoint");
  });

  it("can't be taken of a running instance, and leaves it frozen on failure", async () => {
    const instance = running();
    await expect(during(dump(parts(), { sandboxId, generation: 1, id }, null))).rejects.toThrow("not frozen");
    host.hold(instance, "frozen");
    const fault = { kind: "dump-fails", ms: 0, flag: false, skip: 0, on: null } as const;
    await expect(during(dump(parts(), { sandboxId, generation: 1, id }, fault))).rejects.toThrow("written");
    expect(instance.holds).toContain("frozen");
    expect(host.directory(sandboxId).checkpoints.get(id)?.state).toBe("half");
  });
});

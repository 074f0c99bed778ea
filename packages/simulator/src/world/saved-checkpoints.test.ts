import type { CheckpointId, ExecId, SandboxId } from "@holdfast/contract";
import type { ExecOrder } from "@holdfast/engine";
import { beforeEach, describe, expect, it } from "vitest";
import { Faults } from "../schedule/armed-faults.ts";
import { Random } from "../schedule/random.ts";
import { VirtualTime } from "../time/virtual-time.ts";
import type { Fact } from "./facts.ts";
import { Host, type SimulatedInstance } from "./host.ts";
import { Process } from "./process.ts";
import { layOut, save, usableCopy } from "./saved-checkpoints.ts";

const source = "sbx_1" as SandboxId;
const child = "sbx_2" as SandboxId;
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

/** Prints after 5 s and exits after 10. */
function running(): SimulatedInstance {
  const instance = host.spawn({ sandboxId: source, generation: 1 });
  const order: ExecOrder = {
    id: execId,
    argv: ["run", "10000", "7", "1"],
    env: {},
    cwd: "",
    user: "",
    timeoutMs: 0,
    stdin: false,
    tty: null,
    journalCapBytes: 1,
    digest: "d",
  };
  instance.keeper.start(order);
  return instance;
}

const order = {
  sandboxId: source,
  generation: 1,
  id,
  kind: "memory",
  journals: [execId],
  maxBytes: 1e12,
} as const;
const from = { sandboxId: source, id, kind: "memory", generation: 1 } as const;

async function saved(instance: SimulatedInstance) {
  host.hold(instance, "frozen");
  await during(save({ host, process, signal }, order, null));
  host.release(instance, "frozen");
}

function forked(sandboxId: SandboxId): SimulatedInstance {
  const stored = usableCopy(host, from);
  const memory = layOut(host.directory(sandboxId), stored);
  if (memory === null) throw new Error("there is no memory");
  return host.fork({ sandboxId, generation: 2 }, memory, stored);
}

const textOf = (sandboxId: SandboxId) => host.directories.get(sandboxId)?.journals.get(execId)?.text;

describe("a saved checkpoint", () => {
  it("continues in each fork from where it was taken, without the source's later files", async () => {
    const instance = running();
    await pass(7_000);
    await saved(instance);
    await pass(60_000);
    expect(instance.keeper.execs.get(execId)?.state).toBe("exited");
    const fork = forked(child);
    expect(fork.keeper.bootId).toBe(instance.keeper.bootId);
    expect(fork.keeper.execs.get(execId)?.state).toBe("running");
    expect(facts.findLast(({ type }) => type === "resumed")).toMatchObject({
      sandboxId: child,
      memory: 2,
      disk: 2,
    });
    const ends = () =>
      facts.filter((fact) => fact.type === "command-ended").map(({ sandboxId }) => sandboxId);
    expect(ends()).toEqual([source]);
    await pass(3_000);
    expect(fork.keeper.execs.get(execId)?.state).toBe("exited");
    expect(ends()).toEqual([source, child]);
    expect(textOf(child)).toBe("x1 says 1\n");
    expect(facts.filter(({ type }) => type === "behind")).toEqual([]);
    // A second fork starts where the first started.
    expect(forked("sbx_3" as SandboxId).keeper.execs.get(execId)?.state).toBe("running");
  });

  it("of an instance that ran meanwhile remembers less than its files", async () => {
    const instance = running();
    await pass(4_990);
    host.hold(instance, "frozen");
    const fault = { kind: "save-slow", ms: 500, flag: false, skip: 0, on: null } as const;
    const saving = save({ host, process, signal }, order, fault);
    await time.quiet();
    host.release(instance, "frozen");
    await during(saving);
    forked(child);
    expect(facts.findLast(({ type }) => type === "resumed")).toMatchObject({
      sandboxId: child,
      memory: 1,
      disk: 2,
    });
  });

  it("can't be taken of a running sandbox, and leaves a partial copy on failure", async () => {
    const instance = running();
    await expect(during(save({ host, process, signal }, order, null))).rejects.toThrow("not frozen");
    host.hold(instance, "frozen");
    const fault = { kind: "save-fails", ms: 0, flag: false, skip: 0, on: null } as const;
    await expect(during(save({ host, process, signal }, order, fault))).rejects.toThrow("copied");
    expect(instance.holds).toContain("frozen");
    expect(host.directory(source).saved.get(id)?.state).toBe("half");
    expect(() => usableCopy(host, from)).toThrow("checkpoint");
    host.directory(source).saved.clear();
    expect(() => usableCopy(host, from)).toThrow("no such checkpoint");
  });
});

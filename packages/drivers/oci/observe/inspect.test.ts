import { newSandboxId, type SandboxId } from "@holdfast/contract";
import { type Instance, type Link, type Look, systemClock } from "@holdfast/engine";
import { Porter, PorterError } from "@holdfast/keeper";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { orderFor, start } from "../suite.ts";
import { Cgroups, readHierarchies } from "./cgroup.ts";
import { createOciDriver } from "./create.ts";
import { inspect } from "./inspect.ts";
import type { Machine } from "./machine.ts";
import { silent, type TestMachine, testMachine } from "./testing.ts";

const soon = () => AbortSignal.timeout(20_000);
let machine: TestMachine;
let id: SandboxId;

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  vi.restoreAllMocks();
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await machine.driver.destroy(id, soon());
});
afterAll(() => machine.dispose());

function launch(driver = machine.driver): Promise<Instance> {
  id = newSandboxId();
  return driver.launch(orderFor(id), soon());
}

async function linked(instance: Instance): Promise<Link> {
  const link = await machine.driver.connect(instance, soon());
  onTestFinished(() => link.close());
  return link;
}

const look = (): Promise<Look> => machine.driver.inspect(id, soon());
const untilNamed = async (name: string) => {
  const names = async () => (await look()).processes.map((process) => process.name);
  await expect.poll(names, { timeout: 15_000 }).toContain(name);
};

test("a process that hangs, and gives nobody its memory, takes only the command lines with it", async () => {
  const porter = new Porter();
  onTestFinished(() => porter.close());
  const { driver } = await createOciDriver({ ...machine, porter, log: silent, clock: systemClock });
  await start(await linked(await launch(driver)), "exec sleep 1000");
  await untilNamed("sleep");
  vi.spyOn(porter, "words").mockImplementation((_, signal) => {
    const { promise, reject } = Promise.withResolvers<never>();
    signal.addEventListener("abort", () => reject(new PorterError("it was ended", null)));
    return promise;
  });
  expect(await driver.inspect(id, soon())).toMatchObject({
    processes: [
      { pid: 1, name: "keeper", commandLine: "", execId: "" },
      { name: "sleep", commandLine: "", waits: [{ on: "sleep" }] },
    ],
  });
  await expect(driver.inspect(id, AbortSignal.timeout(50))).rejects.toThrow();
});

test("what a process calls itself is carried as text, and cut", async () => {
  const link = await linked(await launch());
  const long = "x".repeat(1_000);
  const name = 'printf \'#!/bin/sh\\nread a\\n\' > "/tmp/ü) R 1"; chmod +x "/tmp/ü) R 1"';
  await start(link, `${name}; exec "/tmp/ü) R 1" "two words" ${long}`, { stdin: true });
  await untilNamed("ü) R 1");
  const process = (await look()).processes.find(({ pid }) => pid !== 1);
  expect(process?.commandLine.startsWith("/bin/sh /tmp/ü) R 1 two words xxx")).toBe(true);
  expect(Buffer.byteLength(process?.commandLine ?? "")).toBe(256);
  expect(process).toMatchObject({ state: "S", waits: [{ on: "pipe" }] });
});

test("an exec's name that could not be one is none, and that of a parent is not a child's own choice", async () => {
  const link = await linked(await launch());
  const odd = await start(link, "exec env 'HOLDFAST_EXEC=not an id' sleep 1001");
  const exec = await start(link, "env -i sleep 1002; :");
  await expect
    .poll(async () => (await look()).processes.filter(({ name }) => name === "sleep").length)
    .toBe(2);
  const { processes } = await look();
  expect(processes.find(({ commandLine }) => commandLine === "sleep 1001")?.execId).toBe("");
  expect(processes.find(({ commandLine }) => commandLine === "sleep 1002")?.execId).toBe(exec);
  expect(processes.some(({ execId }) => execId === odd)).toBe(false);
});

test("threads are counted, told by their waits, and bounded", async () => {
  const link = await linked(await launch());
  const code =
    "import threading as t; l = t.Lock(); l.acquire(); [t.Thread(target=l.acquire).start() for _ in range(99)]";
  await start(link, "", { argv: ["/usr/bin/python3", "-c", code] });
  const program = async () => (await look()).processes.find(({ name }) => name === "python3");
  await expect.poll(async () => (await program())?.threads, { timeout: 15_000 }).toBe(100);
  await expect.poll(program, { timeout: 15_000 }).toMatchObject({
    waits: [{ on: "futex", bounded: false, threads: 64 }],
  });
  expect(await look()).toMatchObject({ truncated: true });
});

test("a process whose first thread has ended is told by the others", async () => {
  const link = await linked(await launch());
  const code = `
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
`;
  await start(link, "", { argv: ["/usr/bin/python3", "-c", code] });
  await expect
    .poll(async () => (await look()).processes.find(({ name }) => name === "python3"), { timeout: 15_000 })
    .toMatchObject({ state: "S", threads: 2, waits: [{ on: "sleep", bounded: true, threads: 1 }] });
});

test("a pid that is another's by now is nobody's of this sandbox", async () => {
  // Linked, it has become the keeper.
  await linked(await launch());
  const cgroups = new Cgroups(readHierarchies(), machine.installation, systemClock);
  const own = cgroups.members(id);
  vi.spyOn(cgroups, "members").mockReturnValue([...own, process.pid, 1]);
  const seen: Pick<Machine, "cgroups" | "clock" | "log" | "porter"> = {
    cgroups,
    clock: systemClock,
    log: silent,
    porter: new Porter(),
  };
  const { processes } = await inspect(seen as Machine, id, soon());
  seen.porter.close();
  expect(processes).toMatchObject([{ pid: 1, name: "keeper" }]);
});

import { newSandboxId, type SandboxId } from "@holdfast/contract";
import { type Instance, type Link, type ProcessSnapshot, systemClock } from "@holdfast/engine";
import { Porter, PorterError } from "@holdfast/keeper";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { orderFor, start } from "../../contract-suite/suite.ts";
import type { Machine } from "../machine/machine.ts";
import { createOciDriver } from "../open-driver.ts";
import { Cgroups } from "../proc/cgroup.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
import { silent, type TestMachine, testMachine } from "../testing/test-machine.ts";
import { inspect } from "./inspect.ts";

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

const look = (): Promise<ProcessSnapshot> => machine.driver.inspect(id, soon());
const untilNamed = async (name: string) => {
  const names = async () => (await look()).processes.map((process) => process.name);
  await expect.poll(names, { timeout: 15_000 }).toContain(name);
};

test("a process whose memory can't be read leaves only the command lines empty", async () => {
  const porter = new Porter();
  onTestFinished(() => porter.close());
  const { driver } = await createOciDriver({ ...machine, porter, log: silent, clock: systemClock });
  await start(await linked(await launch(driver)), "exec sleep 1000");
  await untilNamed("sleep");
  vi.spyOn(porter, "commandLines").mockImplementation((_, signal) => {
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

test("names with special characters are returned as they are, and long command lines are cut", async () => {
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

test("an invalid exec id is ignored, and a process without one gets its parent's", async () => {
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

test("threads are counted and grouped by their waits, up to a limit", async () => {
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

test("a process whose main thread has ended is described by its other threads", async () => {
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

test("a pid that was reused by another process is not listed", async () => {
  // Once linked, the launched process has become the keeper, with its name.
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

import { execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  NUMBERS,
  newInstallationId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import { type Instance, type Observation, systemClock } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { orderFor, run } from "../suite.ts";
import { Cgroups, readHierarchies } from "./cgroup.ts";
import { createOciDriver } from "./create.ts";
import { HELPER_MARK, helperMark } from "./marked.ts";
import { readLiving } from "./processes.ts";
import { killSpawners, silent, type TestMachine, testMachine } from "./testing.ts";

const soon = () => AbortSignal.timeout(20_000);
let machine: TestMachine;
let id: SandboxId;

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await machine.driver.destroy(id, soon());
});
afterAll(() => machine.dispose());

function launch(): Promise<Instance> {
  id = newSandboxId();
  const order = orderFor(id);
  return machine.driver.launch(order, soon());
}

const observe = async (): Promise<Observation | undefined> =>
  (await machine.driver.observe([id], soon())).get(id);
const place = (name: string) => join(machine.stateDir, "sandboxes", id, name);

test("a root that was unmounted behind our back is reported, and is cleaned all the same", async () => {
  await launch();
  execFileSync("umount", ["-l", place("root")]);
  expect(await observe()).toMatchObject({
    seen: "present",
    root: null,
    problems: [{ code: "root_unmounted" }],
  });
});

test("something mounted over the root is reported as a root that is not there", async () => {
  await launch();
  execFileSync("mount", ["-t", "tmpfs", "cover", place("root")]);
  expect(await observe()).toMatchObject({ root: null, problems: [{ code: "root_unmounted" }] });
});

test("a keeper stopped by a signal is reported", async () => {
  const instance = await launch();
  process.kill(instance.pid, "SIGSTOP");
  await expect
    .poll(observe, { timeout: 5_000 })
    .toMatchObject({ seen: "present", state: "stopped", problems: [{ code: "keeper_stopped" }] });
});

test("a link to an instance that fell silent is over after the silence that was configured", async () => {
  const { driver } = await machine.again({ heartbeatMs: 100, deadMs: 500 });
  const link = await driver.connect(await launch(), soon());
  const patience = AbortSignal.timeout(NUMBERS.linkDeadMs / 2);
  await driver.freeze(id, soon());
  const waited = new Promise((resolve) =>
    patience.addEventListener("abort", () => resolve("waited in vain")),
  );
  expect(await Promise.race([link.closed, waited])).not.toBe("waited in vain");
});

test("an instance whose launch was never answered is found by its cgroups", async () => {
  const { pid, startTime } = await launch();
  rmSync(place("instance.json"));
  expect(await observe()).toMatchObject({ seen: "present", pid, startTime, problems: [] });
  expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
  expect(readLiving(pid)).toBeNull();
});

test("a helper that outlived its server is listed and ended", async () => {
  id = newSandboxId();
  const env = { [HELPER_MARK]: helperMark(machine.installation, id) };
  const helper = spawn("/bin/sh", ["-c", "sleep 1000; :"], { env, stdio: "ignore", detached: true });
  const ended = new Promise((resolve) => helper.once("exit", resolve));
  onTestFinished(() => void process.kill(-(helper.pid ?? 0), "SIGKILL"));
  const found = async () =>
    (await machine.driver.list(soon())).find(({ sandboxId }) => sandboxId === id)?.things;
  // A process has its environment a moment after it was started.
  await expect.poll(found, { timeout: 15_000 }).toEqual([`helper process ${helper.pid}`]);
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await ended;
});

test("a helper that a dead server was about to start finds no way in after a stop", async () => {
  id = newSandboxId();
  const cgroups = new Cgroups(readHierarchies(), machine.installation, systemClock);
  const entry = cgroups.makeHelper(id);
  expect(await observe()).toMatchObject({ seen: "absent", leftovers: ["cgroup helper"] });
  expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ leftovers: [] });
  expect(() => writeFileSync(entry, String(process.pid))).toThrow("ENOENT");
});

test("the host's null device stays the host's", async () => {
  const before = statSync("/dev/null").uid;
  const link = await machine.driver.connect(await launch(), soon());
  expect((await run(link, "chmod 600 /dev/null; chown 0 /dev/null", "root")).exitCode).not.toBe(0);
  link.close();
  expect(statSync("/dev/null")).toMatchObject({ uid: before });
  expect(statSync("/dev/null").mode & 0o777).toBe(0o666);
});

test("other users of the host can't get at a sandbox's files", async () => {
  await launch();
  const asNobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "ls", place("upper")];
  expect(() => execFileSync("setpriv", asNobody, { stdio: "ignore" })).toThrow();
});

test.for([undefined, 32])(
  "a state directory that only root can reach serves as well (diskMb %s)",
  async (diskMb) => {
    id = newSandboxId();
    const closed = mkdtempSync(join(tmpdir(), "holdfast-closed-"));
    chmodSync(closed, 0o700);
    const stateDir = join(closed, "state");
    const installation = newInstallationId();
    const { driver } = await createOciDriver({ stateDir, installation, log: silent, clock: systemClock });
    const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
    const order = orderFor(id, { resources });
    const link = await driver.connect(await driver.launch(order, soon()), soon());
    expect(await run(link, "echo inside")).toEqual({ exitCode: 0, output: "inside\n" });
    link.close();
    await driver.stop(id, { graceMs: 0 }, soon());
    await driver.destroy(id, soon());
    expect(await driver.list(soon())).toEqual([]);
    await driver.close();
    rmSync(closed, { recursive: true });
  },
);

test("a runtime that starts nothing is said so, and nothing is left of the try", async () => {
  id = newSandboxId();
  const stateDir = mkdtempSync(join(tmpdir(), "holdfast-useless-"));
  const runtime = join(stateDir, "runc");
  writeFileSync(runtime, "#!/bin/sh\nexit 1\n", { mode: 0o755 });
  const installation = newInstallationId();
  const options = { stateDir, installation, runtime, log: silent, clock: systemClock };
  await expect(createOciDriver(options)).rejects.toThrow(/No container runtime starts/);
  const cgroups = readHierarchies().map(({ dir }) => join(dir, `holdfast-${installation}`));
  expect(cgroups.filter((dir) => existsSync(dir))).toEqual([]);
  expect(readdirSync(join(stateDir, "sandboxes"))).toEqual([]);
  rmSync(stateDir, { recursive: true });
});

test("an error of a launch names the step and no path of the host", async () => {
  id = newSandboxId();
  mkdirSync(place(""), { recursive: true });
  mkdirSync(place("order.json.new"));
  const order = orderFor(id);
  const error = await machine.driver.launch(order, soon()).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "launch_failed", cause: { code: "launch_files" } });
  expect(JSON.stringify([String(error), String((error as Error).cause)])).not.toContain(machine.stateDir);
});

test("the smallest sandbox that may be asked for starts", async () => {
  id = newSandboxId();
  const resources = { memoryMb: 16, cpus: 0.01, pids: 8 };
  const order = orderFor(id, { resources });
  const link = await machine.driver.connect(await machine.driver.launch(order, soon()), soon());
  expect(await run(link, "echo small")).toEqual({ exitCode: 0, output: "small\n" });
  link.close();
});

test("launches broken off at any moment leave nothing", async () => {
  for (let ms = 0; ms < 40; ms += 2) {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(new Error("no longer wanted")), ms);
    id = newSandboxId();
    const order = orderFor(id);
    await machine.driver.launch(order, abort.signal).catch(() => {});
    clearTimeout(timer);
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await machine.driver.destroy(id, soon());
  }
  expect(await machine.driver.list(soon())).toEqual([]);
});

test("a launch that goes on though its server is gone is ended by the next, at any moment", async () => {
  const { driver: next } = await machine.again();
  for (let ms = 0; ms < 48; ms += 3) {
    id = newSandboxId();
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    const onStep = (step: string) => step === "runtime" && begin();
    const launched = machine.driver.launch(orderFor(id, { onStep }), soon()).catch(() => {});
    await begun;
    await new Promise((resolve) => setTimeout(resolve, ms));
    expect(await next.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await next.destroy(id, soon());
    await launched;
  }
  expect(await machine.driver.list(soon())).toEqual([]);
});

test.for([undefined, 32])(
  "launches whose spawner is killed at any moment leave nothing (diskMb %s)",
  async (diskMb) => {
    const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
    let failed = 0;
    for (let ms = 0; ms < 60; ms += 4) {
      id = newSandboxId();
      const timer = setTimeout(killSpawners, ms);
      await machine.driver.launch(orderFor(id, { resources }), soon()).catch(() => failed++);
      clearTimeout(timer);
      // The first request after a launch that just made it may be the one that finds out.
      const stop = () => machine.driver.stop(id, { graceMs: 0 }, soon());
      expect(await stop().catch(stop)).toMatchObject({ seen: "absent" });
      await machine.driver.destroy(id, soon());
    }
    expect(failed).toBeGreaterThan(0);
    expect(await machine.driver.list(soon())).toEqual([]);
  },
);

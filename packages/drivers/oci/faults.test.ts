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
import { orderFor, run } from "../contract-suite/suite.ts";
import { createOciDriver } from "./open-driver.ts";
import { Cgroups } from "./proc/cgroup.ts";
import { readHierarchies } from "./proc/hierarchies.ts";
import { HELPER_MARK, helperMark } from "./proc/marked-processes.ts";
import { readLiving } from "./proc/proc-files.ts";
import { killSpawners, processOf, silent, type TestMachine, testMachine } from "./testing/test-machine.ts";

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

test("a root that was unmounted from outside is reported, and can be cleaned up", async () => {
  await launch();
  execFileSync("umount", ["-l", place("root")]);
  expect(await observe()).toMatchObject({
    seen: "present",
    root: null,
    problems: [{ code: "root_unmounted" }],
  });
});

test("a mount over the root is reported as an unmounted root", async () => {
  await launch();
  execFileSync("mount", ["-t", "tmpfs", "cover", place("root")]);
  expect(await observe()).toMatchObject({ root: null, problems: [{ code: "root_unmounted" }] });
});

test("a keeper stopped by a signal is reported", async () => {
  const instance = await launch();
  process.kill(processOf(instance).pid, "SIGSTOP");
  await expect
    .poll(observe, { timeout: 5_000 })
    .toMatchObject({ seen: "present", state: "stopped", problems: [{ code: "keeper_stopped" }] });
});

test("a link to a silent instance is closed after the configured time", async () => {
  const { driver } = await machine.again({ heartbeatMs: 100, deadMs: 500 });
  const link = await driver.connect(await launch(), soon());
  const patience = AbortSignal.timeout(NUMBERS.linkDeadMs / 2);
  await driver.freeze(id, soon());
  const waited = new Promise((resolve) => patience.addEventListener("abort", () => resolve("timed out")));
  expect(await Promise.race([link.closed, waited])).not.toBe("timed out");
});

test("an instance whose launch never completed is found by its cgroups", async () => {
  const { identity } = await launch();
  const { pid } = machine.driver.describe(identity);
  rmSync(place("instance.json"));
  expect(await observe()).toMatchObject({ seen: "present", identity, problems: [] });
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
  // The environment of a new process becomes readable a moment after its start.
  await expect.poll(found, { timeout: 15_000 }).toEqual([`helper process ${helper.pid}`]);
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await ended;
});

test("a helper of a dead server can't enter its cgroup after a stop", async () => {
  id = newSandboxId();
  const cgroups = new Cgroups(readHierarchies(), machine.installation, systemClock);
  const entry = cgroups.makeHelper(id);
  expect(await observe()).toMatchObject({ seen: "absent", leftovers: ["cgroup helper"] });
  expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ leftovers: [] });
  expect(() => writeFileSync(entry, String(process.pid))).toThrow("ENOENT");
});

test("a sandbox can't change the host's null device", async () => {
  const before = statSync("/dev/null").uid;
  const link = await machine.driver.connect(await launch(), soon());
  expect((await run(link, "chmod 600 /dev/null; chown 0 /dev/null", "root")).exitCode).not.toBe(0);
  link.close();
  expect(statSync("/dev/null")).toMatchObject({ uid: before });
  expect(statSync("/dev/null").mode & 0o777).toBe(0o666);
});

test("other users of the host can't access a sandbox's files", async () => {
  await launch();
  const asNobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "ls", place("upper")];
  expect(() => execFileSync("setpriv", asNobody, { stdio: "ignore" })).toThrow();
});

test.for([undefined, 32])(
  "sandboxes work in a state directory that only root can reach (diskMb %s)",
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

test("a runtime that does not work is reported, and its trial leaves nothing behind", async () => {
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

test("a launch error names the step and contains no path of the host", async () => {
  id = newSandboxId();
  mkdirSync(place(""), { recursive: true });
  mkdirSync(place("order.json.new"));
  const order = orderFor(id);
  const error = await machine.driver.launch(order, soon()).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "launch_failed", cause: { code: "launch_files" } });
  expect(JSON.stringify([String(error), String((error as Error).cause)])).not.toContain(machine.stateDir);
});

test("a sandbox with the smallest allowed resources starts", async () => {
  id = newSandboxId();
  const resources = { memoryMb: 16, cpus: 0.01, pids: 8 };
  const order = orderFor(id, { resources });
  const link = await machine.driver.connect(await machine.driver.launch(order, soon()), soon());
  expect(await run(link, "echo small")).toEqual({ exitCode: 0, output: "small\n" });
  link.close();
});

test("launches leave nothing behind, whenever they are aborted", async () => {
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

test("a launch that continues after its server ended is ended by the next server, at any moment", async () => {
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
  "launches leave nothing behind, whenever their spawner is killed (diskMb %s)",
  async (diskMb) => {
    const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
    let failed = 0;
    for (let ms = 0; ms < 60; ms += 4) {
      id = newSandboxId();
      const timer = setTimeout(killSpawners, ms);
      await machine.driver.launch(orderFor(id, { resources }), soon()).catch(() => failed++);
      clearTimeout(timer);
      // If the launch succeeded just before the spawner was killed, the first stop may fail: it uses the dead spawner.
      const stop = () => machine.driver.stop(id, { graceMs: 0 }, soon());
      expect(await stop().catch(stop)).toMatchObject({ seen: "absent" });
      await machine.driver.destroy(id, soon());
    }
    expect(failed).toBeGreaterThan(0);
    expect(await machine.driver.list(soon())).toEqual([]);
  },
);

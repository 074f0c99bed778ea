import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DEFAULT_RESOURCES, type ExecId, newSandboxId, type SandboxId } from "@holdfast/contract";
import type { Instance, Link, Observation } from "@holdfast/engine";
import { keeperBinaries } from "@holdfast/keeper";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { loopsIn } from "../proc/loop-devices.ts";
import { readExecutable, readLiving } from "../proc/proc-files.ts";
import { type TestMachine, testMachine } from "../testing/test-machine.ts";

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

const place = (...names: string[]) => join(machine.stateDir, "sandboxes", id, ...names);
const withDisk = (diskMb: number) => ({ resources: { ...DEFAULT_RESOURCES, diskMb } });
const things = async () =>
  (await machine.driver.list(soon())).find(({ sandboxId }) => sandboxId === id)?.things ?? [];
const observe = async (): Promise<Observation | undefined> =>
  (await machine.driver.observe([id], soon())).get(id);

function launch(diskMb: number, driver = machine.driver): Promise<Instance> {
  id = newSandboxId();
  return driver.launch(orderFor(id, withDisk(diskMb)), soon());
}

async function linked(instance: Instance): Promise<Link> {
  const link = await machine.driver.connect(instance, soon());
  onTestFinished(() => link.close());
  return link;
}

/** Runs a command to its end and returns the id of its exec. */
async function ran(link: Link, command: string): Promise<ExecId> {
  const before = new Set((await link.listExecs(soon())).map((exec) => exec.id));
  await run(link, command, "root");
  const exec = (await link.listExecs(soon())).find((each) => !before.has(each.id));
  if (exec === undefined) throw new Error("the keeper does not list the exec");
  return exec.id;
}

const output = async (execId: ExecId): Promise<string> => {
  const slice = await machine.driver.journals.read(id, execId, { cursor: 0, maxBytes: 1_000_000 }, soon());
  return Buffer.concat(slice?.records.map(({ data }) => data) ?? []).toString();
};

test("everything a sandbox writes is on its disk, which is mounted nosuid and nodev", async () => {
  const link = await linked(await launch(64));
  await run(link, "echo mine > /root/a", "root");
  expect(readFileSync(place("disk", "upper", "root", "a"), "utf8")).toBe("mine\n");
  expect(readdirSync(place("disk", "control"))).toEqual(expect.arrayContaining(["journals", "keeper.sock"]));
  const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n");
  const disk = mounts.find((line) => line.split(" ")[4] === place("disk"))?.split(" ")[5];
  expect(disk?.split(",")).toEqual(expect.arrayContaining(["rw", "nosuid", "nodev"]));
  expect(await things()).toEqual(
    expect.arrayContaining(["mount", "directory", expect.stringMatching(/^loop device/)]),
  );
});

test("a disk occupies only the space of its files on the host, and returns freed space", async () => {
  const link = await linked(await launch(10_000));
  const taken = () => statSync(place("disk.img")).blocks * 512;
  expect(taken()).toBeLessThan(8_000_000);
  await run(link, "dd if=/dev/zero of=/root/a bs=1M count=40 conv=fsync 2>/dev/null", "root");
  expect(taken()).toBeGreaterThan(40_000_000);
  await run(link, "rm /root/a; dd if=/dev/zero of=/root/b bs=1k count=1 conv=fsync 2>/dev/null", "root");
  await expect.poll(taken, { timeout: 15_000 }).toBeLessThan(20_000_000);
});

test("a small sandbox fills a disk that is larger than its memory", async () => {
  id = newSandboxId();
  const resources = { ...DEFAULT_RESOURCES, memoryMb: 32, diskMb: 160 };
  const link = await linked(await machine.driver.launch(orderFor(id, { resources }), soon()));
  await run(link, "dd if=/dev/zero of=/root/a bs=1M count=120 conv=fsync 2>/dev/null", "root");
  expect(await run(link, "stat -c %s /root/a", "root")).toMatchObject({ output: `${120 * 1_048_576}\n` });
  expect(await observe()).toMatchObject({ seen: "present", problems: [] });
});

test("a disk that was unmounted from outside is reported, and can be removed", async () => {
  await launch(64);
  execFileSync("umount", ["-l", place("disk")]);
  expect(await observe()).toMatchObject({ seen: "present", problems: [{ code: "disk_unmounted" }] });
  expect(await things()).toContainEqual(expect.stringMatching(/^loop device/));
});

test("a disk that the kernel no longer writes to is reported, and works again after a restart", async () => {
  const link = await linked(await launch(64));
  await run(link, "echo mine > /root/a", "root");
  execFileSync("sync", ["-f", place("disk")]);
  execFileSync("mount", ["-o", "remount,abort", place("disk")]);
  await run(link, "touch /root/b", "root").catch(() => {});
  await expect.poll(observe, { timeout: 15_000 }).toMatchObject({ problems: [{ code: "disk_failed" }] });
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  const order = orderFor(id, { ...withDisk(64), generation: 2, restart: true });
  const next = await linked(await machine.driver.launch(order, soon()));
  expect(await observe()).toMatchObject({ problems: [] });
  expect(await run(next, "echo more >> /root/a; cat /root/a", "root")).toMatchObject({
    output: "mine\nmore\n",
  });
});

test("a disk in use is mounted again through the same loop device", async () => {
  const link = await linked(await launch(64));
  const exec = await ran(link, "echo said");
  execFileSync("umount", ["-l", place("disk")]);
  expect(await output(exec)).toBe("said\n");
  expect(loopsIn(place())).toHaveLength(1);
  await run(link, "echo later > /root/a", "root");
  expect(readFileSync(place("disk", "upper", "root", "a"), "utf8")).toBe("later\n");
  expect(await observe()).toMatchObject({ problems: [] });
});

test("a disk that another process uses is reported, and destroy waits for it", async () => {
  await launch(64);
  const holder = spawn("sleep", ["1000"], { cwd: place("disk"), stdio: "ignore" });
  const ended = new Promise((resolve) => holder.once("exit", resolve));
  onTestFinished(() => void holder.kill("SIGKILL"));
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  const impatient = machine.driver.destroy(id, AbortSignal.timeout(500));
  await expect(impatient).rejects.toThrow();
  expect(await things()).toContainEqual(expect.stringMatching(/^loop device/));
  expect(await observe()).toMatchObject({
    seen: "absent",
    leftovers: expect.arrayContaining(["loop device"]),
  });
  holder.kill("SIGKILL");
  await ended;
  await machine.driver.destroy(id, soon());
  expect(loopsIn(place())).toEqual([]);
  expect(existsSync(place())).toBe(false);
});

test("journals on a disk are readable after a reboot, and kept when the sandbox is destroyed", async () => {
  const link = await linked(await launch(64));
  const execs = [await ran(link, "echo first"), await ran(link, "echo second; exit 3")];
  await machine.reboot();
  expect(existsSync(place("control", "journals"))).toBe(false);
  expect(await machine.driver.journals.end(id, execs[1] as ExecId, soon())).toMatchObject({
    exec: { exitCode: 3 },
  });
  await machine.reboot();
  for (let i = 0; i < 2; i++) await machine.driver.journals.archive(id, soon());
  await machine.driver.destroy(id, soon());
  expect(await machine.driver.journals.archived(soon())).toEqual([id]);
  expect(await Promise.all(execs.map(output))).toEqual(["first\n", "second\n"]);
  await machine.driver.journals.remove(id, execs, soon());
  expect(await machine.driver.journals.archived(soon())).toEqual([]);
});

test("journals of a sandbox whose disk is lost are reported as missing, without waiting", async () => {
  const exec = await ran(await linked(await launch(64)), "echo said");
  await machine.reboot();
  rmSync(place("disk.img"));
  expect(await machine.driver.journals.end(id, exec, soon())).toBeNull();
  await machine.driver.journals.archive(id, soon());
  expect(await machine.driver.journals.archived(soon())).toEqual([]);
  const order = orderFor(id, { ...withDisk(64), generation: 2, restart: true });
  await expect(machine.driver.launch(order, soon())).rejects.toMatchObject({
    cause: { code: "launch_files" },
  });
  expect(existsSync(place("disk.img"))).toBe(false);
});

const FAULTS = [
  ["mkfs is not installed", "exit 0", /not installed/, "launch_failed"],
  ["mkfs fails", "echo broken >&2; exit 1", /could not be created$/, "launch_failed"],
  ["mkfs creates no file system", "exit 0", /could not be created$/, "launch_failed"],
  ["the host's disk is full", "echo No space left on device >&2; exit 1", /disk is full/, "disk_full"],
] as const;

test.for(FAULTS)("a disk is refused with a reason if %s", async ([fault, script, message, code]) => {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-mkfs-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const mkfs = join(dir, "mkfs");
  if (fault !== "mkfs is not installed") writeFileSync(mkfs, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const { driver } = await machine.again({ mkfs });
  const error = await launch(64, driver).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({
    code,
    cause: { code: "launch_files", message: expect.stringMatching(message) },
  });
  expect(loopsIn(place())).toEqual([]);
  await driver.destroy(id, soon());
  expect(await things()).toEqual([]);
});

test("a hanging mkfs is ended together with its launch", async () => {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-mkfs-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const mkfs = join(dir, "mkfs");
  writeFileSync(mkfs, `#!/bin/sh\n: > ${dir}/begun\nsleep 1000\n`, { mode: 0o755 });
  const { driver } = await machine.again({ mkfs });
  const launched = launch(64, driver).catch((thrown: unknown) => thrown);
  await expect.poll(() => existsSync(join(dir, "begun")), { timeout: 15_000 }).toBe(true);
  expect(await things()).toContainEqual(expect.stringMatching(/^helper process/));
  expect(await driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
  expect(await launched).toBeInstanceOf(Error);
  await driver.destroy(id, soon());
  expect(await things()).toEqual([]);
});

test("a hanging mount is ended together with the server that requested it", async () => {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-porter-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const image = join(dir, "image");
  writeFileSync(image, "");
  const holder = spawn("flock", [image, "/bin/sh", "-c", `: > ${dir}/locked; exec sleep 1000`], {
    detached: true,
  });
  onTestFinished(() => void process.kill(-(holder.pid ?? 0), "SIGKILL"));
  await expect.poll(() => existsSync(join(dir, "locked")), { timeout: 15_000 }).toBe(true);
  const script = `${keeperBinaries().porter} disk ${image} ${dir} discard & echo $!; wait`;
  const server = spawn("/bin/sh", ["-c", script], { stdio: ["ignore", "pipe", "ignore"] });
  const pid = Number(await new Promise((resolve) => server.stdout.once("data", resolve)));
  const waits = () => readExecutable(pid)?.endsWith("porter") && readLiving(pid)?.state === "S";
  await expect.poll(waits, { timeout: 15_000 }).toBe(true);
  process.kill(pid, "SIGSTOP");
  server.kill("SIGKILL");
  await expect.poll(() => readLiving(pid), { timeout: 15_000 }).toBeNull();
});

test("launches with disks leave nothing behind, whenever they are aborted", async () => {
  for (let ms = 0; ms < 60; ms += 4) {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(new Error("no longer wanted")), ms);
    id = newSandboxId();
    await machine.driver.launch(orderFor(id, withDisk(32)), abort.signal).catch(() => {});
    clearTimeout(timer);
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await machine.driver.destroy(id, soon());
  }
  expect(await machine.driver.list(soon())).toEqual([]);
});

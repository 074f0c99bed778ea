import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  newCheckpointId,
  newDriveId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import type { Instance, Link, Observation } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { loopsIn } from "../proc/loop-devices.ts";
import { readMounts } from "../proc/mount-table.ts";
import { processOf, type TestMachine, testMachine } from "../testing/test-machine.ts";

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
const observe = async (): Promise<Observation | undefined> =>
  (await machine.driver.observe([id], soon())).get(id);
const unmount = (name: string) => execFileSync("umount", ["-l", place(name)]);
const remount = () => machine.driver.remount(id, soon());
const mountsAt = (path: string) => readMounts().filter(({ mountPoint }) => mountPoint === path);

function launch(diskMb?: number): Promise<Instance> {
  id = newSandboxId();
  const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
  return machine.driver.launch(orderFor(id, { resources }), soon());
}

async function linked(instance: Instance): Promise<Link> {
  const link = await machine.driver.connect(instance, soon());
  onTestFinished(() => link.close());
  return link;
}

test("the remounted root is the instance's own mount, with its options and without the mounts inside", async () => {
  const link = await linked(await launch());
  const line = () =>
    readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .find((text) => text.split(" ")[4] === place("root"))
      ?.split(" ")
      .slice(2);
  const before = line();
  await run(link, "echo mine > /root/a", "root");
  unmount("root");
  await run(link, "echo meanwhile >> /root/a", "root");
  await remount();
  expect(line()).toEqual(before);
  expect(readFileSync(place("root", "root", "a"), "utf8")).toBe("mine\nmeanwhile\n");
  expect(mountsAt(place("root", "proc"))).toEqual([]);
  expect(() => statSync(place("root", "proc", "1"))).toThrow("ENOENT");
});

test("existing mounts are left unchanged", async () => {
  await launch(64);
  const before = readMounts();
  await remount();
  expect(readMounts()).toEqual(before);
});

test("something mounted over the root is unmounted first", async () => {
  await launch();
  execFileSync("mount", ["-t", "tmpfs", "cover", place("root")]);
  expect(await observe()).toMatchObject({ root: null, problems: [{ code: "root_unmounted" }] });
  await remount();
  expect(await observe()).toMatchObject({ problems: [] });
  expect(mountsAt(place("root"))).toHaveLength(1);
});

test("the sandbox's own disk is mounted again with the root, from its loop device", async () => {
  const link = await linked(await launch(64));
  unmount("root");
  unmount("disk");
  expect(await observe()).toMatchObject({
    problems: [{ code: "root_unmounted" }, { code: "disk_unmounted" }],
  });
  await remount();
  expect(await observe()).toMatchObject({ problems: [] });
  expect(loopsIn(place())).toHaveLength(1);
  await run(link, "echo later > /root/a", "root");
  expect(readFileSync(place("disk", "upper", "root", "a"), "utf8")).toBe("later\n");
});

test("a disk whose image was deleted can't be mounted again, and the error names the cause without a path", async () => {
  await launch(64);
  unmount("disk");
  rmSync(place("disk.img"));
  const error = await remount().catch((thrown: unknown) => thrown);
  expect(String(error)).toBe("Error: its own disk can't be mounted again: the disk image is missing");
  expect(await observe()).toMatchObject({ problems: [{ code: "disk_gone" }, { code: "disk_unmounted" }] });
});

test("the root of a sandbox with a drive is mounted again, and the drive's mount stays", async () => {
  const link = await linked(await launch());
  const driveId = newDriveId();
  await machine.driver.drives.make({ id: driveId, sizeMb: null }, soon());
  onTestFinished(() => machine.driver.drives.destroy(driveId, soon()));
  const order = { driveId, path: "/mnt/data", subpath: "/", readOnly: false, make: true, sandboxId: id };
  await machine.driver.mount(order, soon());
  await run(link, "echo kept > /mnt/data/a", "root");
  unmount("root");
  await remount();
  expect(await observe()).toMatchObject({ problems: [], mounts: [{ path: "/mnt/data", problem: null }] });
  expect(mountsAt(place("root", "mnt", "data"))).toEqual([]);
  expect(await run(link, "cat /mnt/data/a", "root")).toMatchObject({ output: "kept\n" });
  await machine.driver.unmount(id, "/mnt/data", { keepClosed: false }, soon());
  expect(await observe()).toMatchObject({ mounts: [], problems: [] });
});

test("the root of a frozen instance with a stopped keeper is mounted again", async () => {
  const instance = await launch();
  process.kill(processOf(instance).pid, "SIGSTOP");
  await machine.driver.freeze(id, soon());
  unmount("root");
  await remount();
  expect(await observe()).toMatchObject({ state: "frozen", problems: [{ code: "frozen" }] });
  await machine.driver.thaw(id, soon());
  expect(await run(await linked(instance), "echo on")).toMatchObject({ output: "on\n" });
});

test("an instance with a remounted root can be suspended and woken", async ({ skip }) => {
  const { driver } = machine;
  if (driver.support.kind !== "memory") return skip(driver.support.why ?? "");
  const first = await launch();
  const link = await linked(first);
  await run(link, "echo kept > /dev/shm/note; echo mine > /root/a", "root");
  unmount("root");
  await remount();
  link.close();
  await driver.freeze(id, soon());
  const checkpoint = await driver.checkpoint({ sandboxId: id, generation: 1, id: newCheckpointId() }, soon());
  await driver.stop(id, { graceMs: 0 }, soon());
  const { name, image, resources } = orderFor(id);
  const second = await driver.restore(
    { sandboxId: id, name, image, resources, checkpoint, generation: 2 },
    soon(),
  );
  await driver.thaw(id, soon());
  expect(await run(await linked(second), "cat /dev/shm/note /root/a", "root")).toMatchObject({
    output: "kept\nmine\n",
  });
});

test("concurrent remounts mount the root once", async () => {
  await launch(64);
  unmount("root");
  unmount("disk");
  await Promise.all([remount(), remount(), remount()]);
  expect(await observe()).toMatchObject({ problems: [] });
  expect([mountsAt(place("root")), mountsAt(place("disk"))].map(({ length }) => length)).toEqual([1, 1]);
});

test("a sandbox that is deleted at any moment of a remount leaves nothing", async () => {
  for (let ms = 0; ms < 20; ms += 2) {
    await launch(32);
    unmount("root");
    unmount("disk");
    const remounted = remount().catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, ms));
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await machine.driver.destroy(id, soon());
    await remounted;
    expect(await machine.driver.list(soon())).toEqual([]);
  }
});

test("a stop waits for a remount in progress", async () => {
  const porter = new Porter();
  onTestFinished(() => porter.close());
  const { driver } = await machine.again({ porter });
  await launch();
  unmount("root");
  let isOver = false;
  vi.spyOn(porter, "remount").mockImplementation(async () => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    isOver = true;
    return "gone";
  });
  const remounted = driver.remount(id, soon()).catch((error: unknown) => error);
  await expect.poll(() => vi.mocked(porter.remount).mock.calls.length).toBe(1);
  await driver.stop(id, { graceMs: 0 }, soon());
  expect(isOver).toBe(true);
  expect(String(await remounted)).toContain("the instance has ended");
});

test("a remount during a launch is refused", async () => {
  id = newSandboxId();
  const launched = machine.driver.launch(orderFor(id), soon());
  await expect(remount()).rejects.toThrow("another operation on the instance");
  await launched;
  expect(await observe()).toMatchObject({ seen: "present", problems: [] });
});

import type { DriveId, SandboxId } from "@holdfast/contract";
import type { MountOrder } from "@holdfast/engine";
import { beforeEach, describe, expect, it } from "vitest";
import { type Armed, Faults } from "../schedule/armed-faults.ts";
import { Random } from "../schedule/random.ts";
import { VirtualTime } from "../time/virtual-time.ts";
import { dump, restore } from "./checkpoints.ts";
import { drivesOf } from "./drives.ts";
import type { Fact } from "./facts.ts";
import { filesOf } from "./files.ts";
import { Host, type SimulatedInstance } from "./host.ts";
import { mount, unmount } from "./mounts.ts";
import { Process } from "./process.ts";

const sandboxId = "sbx_1" as SandboxId;
const driveId = "drv_1" as DriveId;
const checkpointId = "ckp_1" as never;
const { signal } = new AbortController();
const order: MountOrder = { sandboxId, driveId, path: "/mnt", subpath: "/", readOnly: false, make: true };

let time: VirtualTime;
let host: Host;
let faults: Faults;
let process: Process;
let facts: Fact[];

beforeEach(() => {
  time = new VirtualTime();
  facts = [];
  faults = new Faults(() => undefined);
  const report = (fact: Fact) => facts.push(fact);
  host = new Host({ time, random: new Random(1), faults, report, keepsMemory: true });
  process = new Process({ number: 1, time, faults, onDeath: () => undefined, onSpin: () => undefined });
});

/** Runs an operation while virtual time passes. */
async function during<Result>(work: Promise<Result>): Promise<Result> {
  const settled = work.then(
    () => undefined,
    () => undefined,
  );
  await time.quiet();
  await time.pass(1_000, () => true);
  await settled;
  return work;
}

const parts = () => ({ host, process, signal });
const drives = () => drivesOf(host, process);
const make = (sizeMb: number | null = null) => during(drives().make({ id: driveId, sizeMb }, signal));
const seen = async () => (await during(drives().observe([driveId], signal))).get(driveId);
const fault = (kind: Armed["kind"], flag = false): Armed => ({ kind, ms: 0, flag, skip: 0, on: null });
const off = (keepClosed: boolean, struck: Armed | null = null) =>
  during(unmount(parts(), { id: sandboxId, path: "/mnt", keepClosed }, struck));

/** Writes a file at the mount. Returns where it landed, or why it failed. */
async function write(instance: SimulatedInstance): Promise<string | null> {
  const files = filesOf(async (work) => work(), host, instance, instance);
  const body = (async function* () {
    yield Buffer.from("text");
  })();
  await files.write("/mnt/file", body, {}, signal);
  const wrote = facts.findLast((fact) => fact.type === "wrote");
  return wrote?.driveId ?? null;
}

describe("a drive", () => {
  it("is observed when it is created, and not when it is missing, incomplete, or not opened since a boot", async () => {
    expect(await seen()).toMatchObject({ seen: "absent" });
    await make(64);
    expect(await seen()).toMatchObject({ seen: "present", problem: null });
    host.reboot();
    expect(await seen()).toMatchObject({ seen: "present", problem: { code: "drive_closed" } });
    await during(drives().open(driveId, signal));
    expect(await seen()).toMatchObject({ problem: null });
    const drive = host.drives.get(driveId);
    if (drive !== undefined) drive.isAway = true;
    expect(await seen()).toMatchObject({ seen: "absent" });
  });

  it("that is partly created stays, and is completed by the next attempt", async () => {
    faults.arm("drive.make", fault("make-half"));
    await expect(make()).rejects.toThrow("could not be created");
    expect(await seen()).toMatchObject({ problem: { code: "drive_half" } });
    await make();
    expect(await seen()).toMatchObject({ problem: null });
    expect(facts.filter(({ type }) => type === "drive-made")).toHaveLength(1);
  });
});

describe("a mount", () => {
  it("receives writes; the directory beneath is sealed until it is unmounted", async () => {
    await make();
    const instance = host.spawn({ sandboxId, generation: 1 });
    expect(await write(instance)).toBeNull();
    await during(mount(parts(), order, null));
    expect(await write(instance)).toBe(driveId);
    await off(true);
    await expect(write(instance)).rejects.toThrow("read-only");
    await off(false);
    expect(await write(instance)).toBeNull();
  });

  it("that is incomplete is sealed, and the driver does not report it", async () => {
    await make();
    const instance = host.spawn({ sandboxId, generation: 1 });
    await expect(during(mount(parts(), order, fault("mount-half")))).rejects.toThrow("over it");
    await expect(write(instance)).rejects.toThrow("read-only");
    expect(host.see(sandboxId)).toMatchObject({ mounts: [] });
  });

  it("of a missing drive is refused, and of one that disappeared is reported", async () => {
    const instance = host.spawn({ sandboxId, generation: 1 });
    await expect(during(mount(parts(), order, null))).rejects.toMatchObject({ code: "drive_gone" });
    await make();
    await during(mount(parts(), order, null));
    expect(host.see(sandboxId)).toMatchObject({ mounts: [{ path: "/mnt", problem: null }] });
    await during(drives().destroy(driveId, signal));
    expect(host.see(sandboxId)).toMatchObject({ mounts: [{ problem: { code: "drive_gone" } }] });
    await expect(write(instance)).rejects.toThrow("no such file");
  });

  it.each([true, false])("is restored with memory, or is empty if its drive is gone: %s", async (isGone) => {
    await make();
    const instance = host.spawn({ sandboxId, generation: 1 });
    await during(mount(parts(), order, null));
    host.hold(instance, "frozen");
    const checkpoint = await during(dump(parts(), { sandboxId, generation: 1, id: checkpointId }, null));
    host.kill(instance, "asleep");
    if (isGone) await during(drives().destroy(driveId, signal));
    const resources = { memoryMb: 1, cpus: 1, pids: 1 };
    const { sandboxId: _sandboxId, make: _make, ...point } = order;
    const back = {
      sandboxId,
      name: "one",
      generation: 2,
      checkpoint,
      image: "host",
      resources,
      mounts: [point],
    };
    await during(restore(parts(), back, null));
    const woken = host.instanceOf(sandboxId);
    if (woken === null) throw new Error("nothing was restored");
    host.release(woken, "frozen");
    if (isGone) await expect(write(woken)).rejects.toThrow("read-only");
    else expect(await write(woken)).toBe(driveId);
  });
});

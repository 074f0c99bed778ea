import { type DriveId, newDriveId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import {
  apart,
  driveEvents,
  makeDrive,
  mount,
  mounted,
  mountsIn,
  removeDrive,
} from "../testing/engine-with-drives.ts";
import { aborted, eventsOf } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const broken = async () => {
  throw new Error("the disk is broken");
};

describe("a drive", () => {
  it("is created, recorded, measured and listed", async () => {
    const { engine, driver } = await testEngine();
    const { drive, existed } = await engine.drives.create(
      { name: "data", sizeMb: 64, labels: { team: "red" } },
      { signal },
    );
    expect({ existed, status: drive.status, sizeMb: drive.sizeMb }).toEqual({
      existed: false,
      status: "ready",
      sizeMb: 64,
    });
    expect(driver.drives.directories.get(drive.id as DriveId)).toMatchObject({ sizeMb: 64 });
    expect(await engine.drives.get("data", signal)).toMatchObject({
      id: drive.id,
      usage: { usedBytes: 1, freeBytes: 2 },
    });
    await makeDrive(engine, "other");
    const names = async (filter: object) =>
      (await engine.drives.list({ limit: 10, ...filter })).items.map(({ name }) => name);
    expect(await names({})).toEqual(["data", "other"]);
    expect(await names({ labels: { team: "red" } })).toEqual(["data"]);
    const { nextCursor } = await engine.drives.list({ limit: 1 });
    expect(await names({ cursor: nextCursor })).toEqual(["other"]);
    expect(await codeOf(names({ cursor: "nowhere" }))).toBe("invalid_request");
    expect(await driveEvents(engine, "data")).toEqual(["drive.created"]);
  });

  it("changes its labels one request at a time, and keeps them after a restart", async () => {
    const { engine, restart } = await testEngine();
    await makeDrive(engine, "data", { labels: { team: "red", old: "x" } });
    const keys = Array.from({ length: 8 }, (_, index) => `k${index}`);
    const change = (labels: Record<string, string | null>) =>
      engine.drives.update("data", { labels }, signal);
    await Promise.all([change({ team: "blue", old: null }), ...keys.map((key) => change({ [key]: "x" }))]);
    const wanted = { team: "blue", ...Object.fromEntries(keys.map((key) => [key, "x"])) };
    expect((await engine.drives.get("data", signal)).labels).toEqual(wanted);
    await change({ team: "blue" });
    expect(await driveEvents(engine, "data")).toEqual(["drive.created", ...Array(9).fill("drive.updated")]);
    const many = Object.fromEntries(Array.from({ length: 60 }, (_, index) => [`m${index}`, "x"]));
    expect(await codeOf(change(many))).toBe("invalid_request");
    await engine.stop();
    const next = await restart();
    expect((await next.drives.get("data", signal)).labels).toEqual(wanted);
  });

  it("is gone after a concurrent change and delete", async () => {
    const { engine } = await testEngine();
    await makeDrive(engine, "data");
    const change = (key: string) => engine.drives.update("data", { labels: { [key]: "x" } }, signal);
    const changes = [change("a"), change("b")].map((each) => codeOf(each).catch(() => "changed"));
    await removeDrive(engine, "data");
    await Promise.all(changes);
    expect(await codeOf(change("c"))).toBe("drive_not_found");
  });

  it("with a taken name is rejected, or returned on request if the size matches", async () => {
    const { engine, driver } = await testEngine();
    const { id } = await makeDrive(engine, "data", { sizeMb: 64 });
    expect(await codeOf(makeDrive(engine, "data"))).toBe("drive_exists");
    expect(await codeOf(makeDrive(engine, "data", { ifExists: "return", sizeMb: 128 }))).toBe("drive_exists");
    const again = engine.drives.create({ name: "data", ifExists: "return" }, { signal });
    expect(await again).toMatchObject({ existed: true, drive: { id, sizeMb: 64 } });
    expect(driver.drives.made).toBe(1);
  });

  it("is created once for concurrent requests", async () => {
    const { engine, driver } = await testEngine();
    const gate = Promise.withResolvers<void>();
    driver.drives.faults.make = () => gate.promise;
    const creates = [1, 2, 3].map(() =>
      engine.drives.create({ name: "data", ifExists: "return" }, { signal }),
    );
    await eventually(async () =>
      expect(await engine.drives.list({ limit: 10 })).toMatchObject({
        items: [{ name: "data", status: "creating" }],
      }),
    );
    gate.resolve();
    const made = await Promise.all(creates);
    expect(new Set(made.map(({ drive }) => drive.id)).size).toBe(1);
    expect(made.filter(({ existed }) => !existed)).toHaveLength(1);
  });

  it("is rejected beyond the limit, and if the disk has no space", async () => {
    const { engine, driver } = await testEngine({ maxDrives: 1, diskReserveBytes: 1_000 });
    driver.diskFreeBytes = 10;
    expect(await codeOf(makeDrive(engine, "data"))).toBe("disk_full");
    driver.diskFreeBytes = 1 << 30;
    await eventually(() => makeDrive(engine, "data"));
    expect(await codeOf(makeDrive(engine, "more"))).toBe("too_many_drives");
    expect(driver.drives.made).toBe(1);
  });

  it("with an invalid or unknown name is rejected", async () => {
    const { engine } = await testEngine();
    expect(await codeOf(makeDrive(engine, "no/name"))).toBe("invalid_request");
    expect(await codeOf(engine.drives.get("none", signal))).toBe("drive_not_found");
    expect(await codeOf(removeDrive(engine, newDriveId()))).toBe("drive_not_found");
  });

  it("that takes too long to measure is returned without its usage", async () => {
    const { engine, driver } = await testEngine({ driveUsageMs: 30 });
    await makeDrive(engine, "data");
    driver.drives.faults.usage = never;
    expect(await engine.drives.get("data", signal)).toMatchObject({ status: "ready", usage: null });
  });
});

describe("a drive that can't be created", () => {
  const failures = [
    ["before anything is there", { make: broken }],
    ["when it is there", { makeAnswer: broken }],
    ["for ever", { make: never }],
  ] as const;
  it.each(failures)("%s is removed again by its record, and its name is free", async (_when, faults) => {
    const { engine, driver, store } = await testEngine({ driveCallMs: 100 });
    driver.drives.faults = faults;
    expect(await codeOf(makeDrive(engine, "data"))).toBe("internal");
    await eventually(async () => expect(await store.drives()).toEqual([]));
    expect(driver.drives.directories.size).toBe(0);
    driver.drives.faults = {};
    expect(await makeDrive(engine, "data")).toMatchObject({ status: "ready" });
  });

  it("is not created if it can't be recorded", async () => {
    const { engine, driver, store } = await testEngine();
    const commit = store.commit.bind(store);
    store.commit = broken;
    expect(await codeOf(makeDrive(engine, "data"))).toBe("internal");
    store.commit = commit;
    expect(driver.drives.made).toBe(0);
    expect(await makeDrive(engine, "data")).toMatchObject({ status: "ready" });
  });

  it("is given up once the store accepts that", async () => {
    const { engine, driver, store } = await testEngine();
    driver.drives.faults.make = broken;
    const commit = store.commit.bind(store);
    let refusals = 2;
    store.commit = async (change) => {
      const isGivenUp = change.events?.some(({ type }) => type === "drive.deleting") ?? false;
      if (isGivenUp) refusals -= 1;
      if (isGivenUp && refusals >= 0) return broken();
      return commit(change);
    };
    expect(await codeOf(makeDrive(engine, "data"))).toBe("internal");
    await eventually(async () => expect(await store.drives()).toEqual([]));
  });

  it("because the server stops is created by the next server", async () => {
    const { engine, driver, restart } = await testEngine();
    driver.drives.faults.make = (_id, inner) => aborted(inner);
    const create = codeOf(makeDrive(engine, "data"));
    await eventually(async () => expect((await engine.drives.list({ limit: 1 })).items).toHaveLength(1));
    await engine.stop();
    await create;
    driver.drives.faults = {};
    const next = await restart();
    await eventually(async () =>
      expect(await next.drives.get("data", signal)).toMatchObject({ status: "ready" }),
    );
    expect(driver.drives.made).toBe(1);
  });

  it("by the next server is removed by it, and affects nothing else", async () => {
    const { engine, driver, store, restart } = await testEngine();
    driver.drives.faults.make = (_id, inner) => aborted(inner);
    const create = codeOf(makeDrive(engine, "data"));
    await eventually(async () => expect(await store.drives()).toHaveLength(1));
    await engine.stop();
    await create;
    driver.drives.faults.make = broken;
    const next = await restart();
    await eventually(async () => expect(await store.drives()).toEqual([]));
    expect((await next.drives.list({ limit: 10 })).items).toEqual([]);
  });
});

describe("a delete", () => {
  it("of an unmounted drive removes it, and frees its name", async () => {
    const { engine, driver, store } = await testEngine();
    const { id } = await makeDrive(engine, "data");
    expect(await removeDrive(engine, "data")).toBeNull();
    expect({ left: driver.drives.directories.size, records: await store.drives() }).toEqual({
      left: 0,
      records: [],
    });
    expect(await driveEvents(engine, id)).toEqual(["drive.created", "drive.deleting", "drive.deleted"]);
    expect(await makeDrive(engine, "data")).not.toMatchObject({ id });
  });

  it("is rejected while a sandbox has it mounted, also one in standby or paused", async () => {
    const { engine, driver, driveId } = await mounted();
    const isRefused = async () => expect(await codeOf(removeDrive(engine, "data"))).toBe("drive_mounted");
    await isRefused();
    await engine.sandboxes.pause("box", signal);
    await isRefused();
    await engine.sandboxes.resume("box", signal);
    await engine.sandboxes.standby("box", signal);
    await isRefused();
    expect(await engine.drives.get("data", signal)).toMatchObject({
      status: "ready",
      mounts: [{ path: "/data" }],
    });
    expect(driver.drives.directories.has(driveId)).toBe(true);
    await remove(engine, "box");
    expect(await removeDrive(engine, "data")).toBeNull();
  });

  it("is still rejected after a restart of the server", async () => {
    const { engine, restart } = await mounted();
    await engine.sandboxes.standby("box", signal);
    await engine.stop();
    const next = await restart();
    expect(await codeOf(removeDrive(next, "data"))).toBe("drive_mounted");
  });

  it("is rejected while a mount, or the creation of a sandbox with one, is in progress", async () => {
    const { engine, driver } = await apart();
    const gate = Promise.withResolvers<void>();
    driver.drives.faults.open = () => gate.promise;
    const mounting = mount(engine, "box");
    const creating = engine.sandboxes.create(
      { name: "other", mounts: [{ drive: "data", path: "/data" }] },
      { wait: true, signal },
    );
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(await codeOf(removeDrive(engine, "data"))).toBe("drive_mounted");
    gate.resolve();
    await Promise.all([mounting, creating]);
    expect((await engine.drives.get("data", signal)).mounts).toHaveLength(2);
  });

  it("rejects every new mount from its start", async () => {
    const { engine, driver } = await apart();
    const gate = Promise.withResolvers<void>();
    driver.drives.faults.destroy = () => gate.promise;
    const removing = removeDrive(engine, "data");
    expect(await codeOf(mount(engine, "box"))).toBe("drive_deleting");
    expect(await codeOf(makeDrive(engine, "data", { ifExists: "return" }))).toBe("drive_deleting");
    gate.resolve();
    expect(await removing).toBeNull();
    expect(await codeOf(mount(engine, "box"))).toBe("drive_not_found");
  });

  it("that can't be recorded does not begin", async () => {
    const { engine, driver, store, driveId } = await apart();
    const commit = store.commit.bind(store);
    store.commit = broken;
    expect(await codeOf(removeDrive(engine, "data"))).toBe("internal");
    store.commit = commit;
    expect(driver.drives.directories.has(driveId)).toBe(true);
    expect(await mount(engine, "box")).toMatchObject({ mount: { state: "proven" } });
  });

  it("that keeps failing is recorded once per cause, and retried with a backoff until it succeeds", async () => {
    const { engine, driver } = await testEngine({ driveBackoffMs: [10, 30, 60] });
    const { id } = await makeDrive(engine, "data");
    let cause = "busy";
    driver.drives.faults.destroy = async () => {
      throw new Error(cause);
    };
    expect(await removeDrive(engine, "data")).toMatchObject({
      status: "deleting",
      cause: { message: "busy" },
    });
    const failures = async () =>
      (await driveEvents(engine, id)).filter((type) => type === "drive.delete_failed").length;
    await eventually(() => expect(driver.drives.destroys).toBeGreaterThan(3));
    expect(await failures()).toBe(1);
    cause = "busier";
    await eventually(async () => expect(await failures()).toBe(2));
    driver.drives.faults = {};
    await eventually(async () =>
      expect(await codeOf(engine.drives.get("data", signal))).toBe("drive_not_found"),
    );
    expect(driver.drives.directories.size).toBe(0);
  });

  it("ends only after the drive was observed to be gone", async () => {
    const { engine, driver } = await testEngine();
    const { id } = await makeDrive(engine, "data");
    driver.drives.faults.observe = () => ({ seen: "unknown", at: 0, why: "EIO" });
    expect(await removeDrive(engine, "data")).toMatchObject({ status: "deleting" });
    driver.drives.faults = {};
    await eventually(async () => expect(await driveEvents(engine, id)).toContain("drive.deleted"));
  });

  it("that a server did not finish is finished by the next server", async () => {
    const { engine, driver, store, restart } = await testEngine();
    await makeDrive(engine, "data");
    driver.drives.faults.destroy = (_id, inner) => aborted(inner);
    const removing = codeOf(removeDrive(engine, "data"));
    await eventually(() => expect(driver.drives.destroys).toBe(1));
    await engine.stop();
    await removing;
    driver.drives.faults = {};
    await restart();
    await eventually(async () => expect(await store.drives()).toEqual([]));
    expect(driver.drives.directories.size).toBe(0);
  });
});

describe("a forced delete", () => {
  it("unmounts the drive from a running sandbox, which is degraded with the cause and can give up the path", async () => {
    const { engine, store, inside } = await mounted();
    expect(await removeDrive(engine, "data", true)).toBeNull();
    expect(await store.drives()).toEqual([]);
    // At the path of the drive is a directory that can't be written to.
    expect(inside()).toMatchObject({ ino: null });
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({
        status: "degraded",
        cause: { code: "mount_broken" },
        mounts: [{ path: "/data", state: "broken", cause: { code: "drive_gone" } }],
      }),
    );
    expect(await codeOf(engine.execs.start("box", { argv: ["exit", "0"] }, { signal }))).toBe(
      "sandbox_degraded",
    );
    await engine.mounts.unmount("box", "/data", signal);
    expect(inside()).toBeUndefined();
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", mounts: [] }),
    );
    await eventually(async () =>
      expect(await eventsOf(engine, "box")).toEqual(
        expect.arrayContaining(["sandbox.degraded", "sandbox.recovered"]),
      ),
    );
  });

  it("does not wake a sandbox in standby, which wakes with its memory and without the drive", async () => {
    const { engine, driver, inside } = await mounted();
    const exec = await engine.execs.start("box", { argv: ["sleep"] }, { signal });
    await engine.sandboxes.standby("box", signal);
    expect(await removeDrive(engine, "data", true)).toBeNull();
    expect(driver.restores).toBe(0);
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_degraded");
    expect(inside()).toMatchObject({ ino: null });
    expect(await engine.sandboxes.get("box")).toMatchObject({
      status: "degraded",
      cause: { code: "mount_broken" },
    });
    await engine.mounts.unmount("box", "/data", signal);
    expect(await engine.execs.get(exec.exec.id)).toMatchObject({ status: "running" });
  });

  it("ends only after the drive was unmounted from every running sandbox", async () => {
    const { engine, driver, driveId, inside } = await mounted();
    driver.faults.unmount = broken;
    expect(await removeDrive(engine, "data", true)).toMatchObject({ status: "deleting" });
    expect(driver.drives.directories.has(driveId)).toBe(true);
    driver.faults = {};
    await eventually(async () =>
      expect(await codeOf(engine.drives.get("data", signal))).toBe("drive_not_found"),
    );
    expect(inside()).toMatchObject({ ino: null });
  });

  it("also removes a mount made at the last moment", async () => {
    const { engine, driver, inside } = await apart();
    const gate = Promise.withResolvers<void>();
    driver.faults.mount = () => gate.promise;
    const mounting = mount(engine, "box");
    await eventually(async () => expect(await mountsIn(engine, "box")).toHaveLength(1));
    driver.drives.faults.destroy = async () => {
      gate.resolve();
      await mounting;
    };
    expect(await removeDrive(engine, "data", true)).toBeNull();
    expect(inside()).toMatchObject({ ino: null });
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("degraded"));
  });

  it("leaves a sandbox that is being restored without the drive", async () => {
    const { engine, driver, inside } = await mounted();
    await engine.sandboxes.standby("box", signal);
    driver.faults.restoreAnswer = async () => {
      expect(await removeDrive(engine, "data", true)).toBeNull();
    };
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_degraded");
    expect(inside()).toMatchObject({ ino: null });
  });

  it("leaves no mount if one is in progress", async () => {
    const { engine, driver, inside } = await apart();
    const gate = Promise.withResolvers<void>();
    driver.faults.mount = () => gate.promise;
    const mounting = codeOf(mount(engine, "box"));
    await eventually(async () => expect(await mountsIn(engine, "box")).toHaveLength(1));
    expect(await removeDrive(engine, "data", true)).toBeNull();
    gate.resolve();
    expect(await mounting).toBe("drive_degraded");
    expect(await mountsIn(engine, "box")).toEqual([]);
    expect(inside()).toBeUndefined();
  });
});

describe("a missing drive", () => {
  it("is degraded within one pass, with the sandboxes that mount it, and all recover when it is back", async () => {
    const { engine, driver, driveId } = await mounted();
    const statuses = async () => [
      (await engine.drives.get("data", signal)).status,
      (await engine.sandboxes.get("box")).status,
    ];
    expect(await statuses()).toEqual(["ready", "ready"]);
    driver.drives.take(driveId);
    await eventually(async () => expect(await statuses()).toEqual(["degraded", "degraded"]));
    expect(await engine.drives.get("data", signal)).toMatchObject({ cause: { code: "drive_gone" } });
    driver.drives.giveBack(driveId);
    await eventually(async () => expect(await statuses()).toEqual(["ready", "ready"]));
    expect(await driveEvents(engine, "data")).toEqual(
      expect.arrayContaining(["drive.degraded", "drive.recovered"]),
    );
    expect(driver.drives.made).toBe(1);
  });

  it("is not mounted, is never created again, and can be deleted", async () => {
    const { engine, driver, driveId, restart } = await apart();
    driver.drives.take(driveId);
    expect(await codeOf(mount(engine, "box"))).toBe("drive_degraded");
    await engine.stop();
    const next = await restart();
    expect(await codeOf(mount(next, "box"))).toBe("drive_degraded");
    expect(driver.drives.made).toBe(1);
    expect(await removeDrive(next, "data")).toBeNull();
  });

  it("stays degraded until it is observed again; a failed observation changes nothing", async () => {
    const { engine, driver, driveId } = await apart();
    driver.drives.take(driveId);
    await eventually(async () => expect((await engine.drives.get("data", signal)).status).toBe("degraded"));
    driver.drives.faults.observe = () => ({ seen: "unknown", at: 0, why: "EIO" });
    await new Promise((resolve) => setTimeout(resolve, 150));
    const seen = await engine.drives.list({ limit: 1 });
    expect(seen.items).toMatchObject([{ status: "degraded" }]);
    driver.drives.observe = broken;
    await new Promise((resolve) => setTimeout(resolve, 150));
    expect((await engine.drives.list({ limit: 1 })).items).toMatchObject([{ status: "degraded" }]);
    expect(await driveEvents(engine, driveId)).not.toContain("drive.recovered");
  });

  it("that can't be observed is reported, and mounted if it is there", async () => {
    const { engine, driver } = await apart();
    driver.drives.observe = broken;
    expect(await engine.drives.get("data", signal)).toMatchObject({ status: "ready" });
    expect(await mount(engine, "box")).toMatchObject({ mount: { state: "proven" } });
  });

  it("that could not be opened is opened later", async () => {
    const { engine, driver, restart } = await apart();
    await engine.stop();
    let isOpen = false;
    driver.drives.faults.open = broken;
    const shut = { code: "drive_closed", message: "its disk is not mounted" };
    driver.drives.faults.observe = () => ({ seen: "present", at: 0, problem: isOpen ? null : shut });
    const next = await restart();
    expect(await next.drives.get("data", signal)).toMatchObject({ status: "degraded", cause: shut });
    driver.drives.faults.open = async () => {
      isOpen = true;
    };
    await eventually(async () => expect((await next.drives.get("data", signal)).status).toBe("ready"));
  });
});

describe("an orphaned or unreadable drive", () => {
  it("without a record is reported, and never removed", async () => {
    const { engine, driver } = await testEngine();
    await makeDrive(engine, "data");
    const stray = newDriveId();
    driver.drives.put(stray);
    const { findings } = await engine.audit();
    expect(findings).toMatchObject([{ kind: "orphan", driveId: stray, action: "left" }]);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(driver.drives.directories.has(stray)).toBe(true);
  });

  it("with an unreadable record is left alone, and is not an orphan", async () => {
    const { engine, driver, store, restart } = await testEngine();
    const { id } = await makeDrive(engine, "data");
    await makeDrive(engine, "fine");
    await engine.stop();
    const [bent] = await store.drives();
    const all = store.drives.bind(store);
    store.drives = async () => (await all()).filter((record) => record.id !== bent?.id);
    store.unreadableDrives = async () => (bent === undefined ? [] : [bent.id]);
    const next = await restart();
    expect(await codeOf(next.drives.get("data", signal))).toBe("drive_not_found");
    expect(await next.drives.get("fine", signal)).toMatchObject({ status: "ready" });
    // The drive keeps its name until it is deleted by its id.
    expect(await codeOf(makeDrive(next, "data"))).toBe("drive_exists");
    const { findings } = await next.audit();
    expect(findings).toMatchObject([{ kind: "unreadable", driveId: id, action: "left" }]);
    expect(driver.drives.directories.has(id as DriveId)).toBe(true);
    expect(await removeDrive(next, id)).toBeNull();
    expect(driver.drives.directories.has(id as DriveId)).toBe(false);
    expect(await makeDrive(next, "data")).toMatchObject({ status: "ready" });
  });

  it("with an unreadable record is not deleted while it is mounted, unless forced", async () => {
    const { engine, store, driveId, inside, restart } = await mounted();
    await engine.stop();
    store.drives = async () => [];
    store.unreadableDrives = async () => [driveId];
    const next = await restart();
    expect(await codeOf(removeDrive(next, driveId))).toBe("drive_mounted");
    expect(await removeDrive(next, driveId, true)).toBeNull();
    expect(inside()).toMatchObject({ ino: null });
  });
});

import type { MountDrive, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { refusedTarget } from "../model/mount-machine.ts";
import { MountRefused, type Store } from "../ports/index.ts";
import type { MountRecord } from "../ports/records.ts";
import { apart, makeDrive, mount, mounted, mountsIn, removeDrive } from "../testing/engine-with-drives.ts";
import { fork, save } from "../testing/forked-sandbox.ts";
import type { HostileDriver } from "../testing/hostile-driver.ts";
import { eventsOf, start } from "../testing/sleeping-sandbox.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const refuse = async () => {
  throw new MountRefused("mount_refused", "a link is in the way");
};
const fail = async () => {
  throw new Error("the porter ended at once");
};
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

const unmount = (engine: Awaited<ReturnType<typeof testEngine>>["engine"], path = "/data") =>
  engine.mounts.unmount("box", path, signal);

const withDrive = (mounts: MountDrive[] = [{ drive: "data", path: "/data" }], more = {}) => ({
  name: "box",
  mounts,
  ...more,
});

/** Records each driver step with its target as it begins. */
function stepsOf(driver: HostileDriver): string[] {
  const steps: string[] = [];
  driver.faults.mount = async ({ path }) => void steps.push(`mount ${path}`);
  driver.faults.unmount = async (path) => void steps.push(`unmount ${path}`);
  driver.faults.connect = async () => void steps.push("connect");
  driver.faults.thaw = async () => void steps.push("thaw");
  return steps;
}

/** Sets the record to its state right after a server wrote it and crashed. */
async function storeMounts(store: Store, id: SandboxId, mounts: MountRecord[]): Promise<void> {
  const before = await store.sandbox(id);
  if (before === null) throw new Error("there is no record");
  const record = { ...before, mounts, revision: before.revision + 1 };
  await store.commit({ changes: [{ kind: "sandbox.update", record, expectedRevision: before.revision }] });
}

describe("a mount whose instance is replaced meanwhile", () => {
  it("is rejected, and removed from the new instance", async () => {
    const { engine, driver, inside } = await apart();
    const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const [begun, again] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    let calls = 0;
    driver.faults.mount = () => {
      calls += 1;
      (calls === 1 ? begun : again).resolve();
      return calls === 1 ? first.promise : calls === 2 ? second.promise : Promise.resolve();
    };
    const refused = codeOf(mount(engine, "box"));
    await begun.promise;
    const restarted = engine.sandboxes.restart("box", signal);
    await again.promise;
    first.reject(new Error("it was broken off"));
    expect(await refused).toBe("mount_failed");
    second.resolve();
    await restarted;
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual([]));
    expect(inside()).toBeUndefined();
  });
});

describe("a mount", () => {
  it("returns after the same directory was seen from inside and outside", async () => {
    const { engine, inside, driveId } = await apart();
    expect(await mount(engine, "box", { subpath: "a/b", readOnly: true })).toEqual({
      existed: false,
      mount: {
        drive: "data",
        driveId,
        path: "/data",
        subpath: "/a/b",
        readOnly: true,
        state: "proven",
        cause: null,
      },
    });
    expect(inside()).toMatchObject({ driveId, subpath: "/a/b", readOnly: true });
    const { proof, mounts } = await engine.sandboxes.get("box");
    expect(mounts).toMatchObject([{ path: "/data", state: "proven" }]);
    expect(proof?.ok).toBe(true);
    expect((await engine.sandboxes.verify("box", signal)).checks).toContainEqual(
      expect.objectContaining({ name: "mounts", ok: true }),
    );
    expect(await eventsOf(engine, "box")).toContain("mount.added");
  });

  it("is idempotent, and repairs a broken mount", async () => {
    const { engine, inside } = await mounted({ observeEveryMs: 60_000 });
    expect(await mount(engine, "box")).toMatchObject({ existed: true, mount: { state: "proven" } });
    const there = inside();
    if (there !== undefined) there.ino = null;
    expect((await engine.sandboxes.verify("box", signal)).ok).toBe(false);
    expect(await mount(engine, "box")).toMatchObject({ existed: true, mount: { state: "proven" } });
    expect((await eventsOf(engine, "box")).filter((type) => type === "mount.added")).toHaveLength(1);
  });

  const others: [claim: string, input: Partial<MountDrive>][] = [
    ["another drive at the path", { drive: "other" }],
    ["another part of the drive", { subpath: "part" }],
    ["the drive for reading only", { readOnly: true }],
    ["a path below it", { path: "/data/below" }],
    ["a path above it", { path: "/" }],
  ];
  it.each(others)("of %s is rejected, and changes nothing", async (_claim, input) => {
    const { engine, inside, driveId } = await mounted();
    await makeDrive(engine, "other");
    expect(await codeOf(mount(engine, "box", input))).toMatch(/^mount_(conflict|refused)$/);
    expect(await mountsIn(engine, "box")).toEqual(["data at /data: proven"]);
    expect(inside()).toMatchObject({ driveId, subpath: "/", readOnly: false });
  });

  it("nested in another is a conflict both ways; one beside it is not", async () => {
    const { engine } = await apart();
    await mount(engine, "box", { path: "/a/b" });
    expect(await codeOf(mount(engine, "box", { path: "/a" }))).toBe("mount_conflict");
    expect(await codeOf(mount(engine, "box", { path: "/a/b/c" }))).toBe("mount_conflict");
    await mount(engine, "box", { path: "/a/bc" });
    expect(await mountsIn(engine, "box")).toHaveLength(2);
  });

  it("is rejected beyond the limit", async () => {
    const { engine } = await mounted({ mountsPerSandbox: 1 });
    expect(await codeOf(mount(engine, "box", { path: "/more" }))).toBe("too_many_mounts");
    expect(
      await codeOf(
        engine.sandboxes.create(
          { mounts: ["/a", "/b"].map((path) => ({ drive: "data", path })) },
          { wait: true, signal },
        ),
      ),
    ).toBe("too_many_mounts");
  });

  it("of an unknown drive, or in an unknown sandbox, is rejected", async () => {
    const { engine } = await apart();
    expect(await codeOf(mount(engine, "box", { drive: "none" }))).toBe("drive_not_found");
    expect(await codeOf(mount(engine, "none"))).toBe("sandbox_not_found");
    expect(await codeOf(unmount(engine))).toBe("mount_not_found");
  });

  it("is rejected in a paused sandbox, and wakes one in standby", async () => {
    const { engine, driver } = await apart();
    await engine.sandboxes.pause("box", signal);
    expect(await codeOf(mount(engine, "box"))).toBe("wrong_state");
    await engine.sandboxes.resume("box", signal);
    await engine.sandboxes.standby("box", signal);
    expect(await mount(engine, "box")).toMatchObject({ mount: { state: "proven" } });
    expect(driver.restores).toBe(1);
  });

  it("cancels an idle suspension before the freeze", async () => {
    const { engine, driver } = await testEngine({ maintainEveryMs: 20 });
    await makeDrive(engine, "data");
    const lifecycle = { idleStandbyMs: 1 };
    const gate = Promise.withResolvers<void>();
    const { capacity } = driver;
    await engine.sandboxes.create({ name: "box", lifecycle }, { wait: true, signal });
    driver.capacity = async () => {
      await gate.promise;
      return capacity.call(driver);
    };
    await pause(60);
    const mounting = mount(engine, "box");
    gate.resolve();
    expect(await mounting).toMatchObject({ mount: { state: "proven" } });
    expect(driver.restores).toBe(0);
  });
});

describe("a mount target", () => {
  const refused = [
    "/",
    "/proc",
    "/proc/self",
    "/sys/fs",
    "/dev/shm",
    "/.holdfast",
    "/.holdfast/keeper",
  ].concat(["/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/tmp"]);
  it.each(refused)("%s is rejected", async (path) => {
    expect(refusedTarget(path)).not.toBeNull();
    const { engine, driver } = await apart();
    driver.faults.mount = async () => {
      throw new Error("the driver was asked");
    };
    expect(await codeOf(mount(engine, "box", { path }))).toBe("mount_refused");
    const create = engine.sandboxes.create({ mounts: [{ drive: "data", path }] }, { wait: true, signal });
    expect(await codeOf(create)).toBe("mount_refused");
  });

  it.each(["/usr/local", "/tmp/cache", "/etc/app", "/home/me", "/processes", "/devices"])(
    "%s is not",
    (path) => {
      expect(refusedTarget(path)).toBeNull();
    },
  );

  it("that is no absolute path, or leads out of the drive, is rejected", async () => {
    const { engine } = await apart();
    for (const path of ["data", "/a/../b", "/a\0b"])
      expect(await codeOf(mount(engine, "box", { path }))).toBe("invalid_path");
    for (const subpath of ["..", "a/../../b", "a\0b"])
      expect(await codeOf(mount(engine, "box", { subpath }))).toBe("invalid_path");
  });

  it("is normalised", async () => {
    const { engine } = await mounted();
    expect(await mount(engine, "box", { path: "//data/./", subpath: "/./" })).toMatchObject({
      existed: true,
    });
  });
});

describe("concurrent mounts", () => {
  it("of the same drive at one path become one mount", async () => {
    const { engine, driver } = await apart();
    const steps = stepsOf(driver);
    const both = await Promise.all([mount(engine, "box"), mount(engine, "box")]);
    expect(both.map(({ existed }) => existed).sort()).toEqual([false, true]);
    expect(await mountsIn(engine, "box")).toEqual(["data at /data: proven"]);
    expect(steps.filter((step) => step === "unmount /data")).toEqual([]);
  });

  it("of two drives at one path: one succeeds, the other is a conflict", async () => {
    const { engine, inside } = await apart();
    const other = await makeDrive(engine, "other");
    const codes = await Promise.all(
      ["data", "other"].map((drive) => codeOf(mount(engine, "box", { drive }))),
    );
    expect(codes.sort()).toEqual(["fulfilled", "mount_conflict"]);
    const { items } = await engine.mounts.list("box");
    expect(items).toMatchObject([{ driveId: inside()?.driveId, state: "proven" }]);
    expect(other.mounts).toEqual([]);
  });

  it("run one after another, and an unmount waits for its turn", async () => {
    const { engine, driver } = await apart();
    let busy = 0;
    const alone = async () => {
      busy += 1;
      if (busy > 1) throw new Error("two at a time");
      await pause(5);
      busy -= 1;
    };
    driver.faults.mount = alone;
    driver.faults.unmount = alone;
    const paths = ["/a", "/b", "/c"];
    const mounts = paths.map((path) => mount(engine, "box", { path }));
    await mounts[0];
    await Promise.all([...mounts, unmount(engine, "/a")]);
    expect(await mountsIn(engine, "box")).toEqual(["data at /b: proven", "data at /c: proven"]);
  });

  it("are not made if the caller disconnects while they are queued", async () => {
    const { engine, driver } = await apart();
    const gate = Promise.withResolvers<void>();
    driver.faults.mount = () => gate.promise;
    const first = mount(engine, "box", { path: "/first" });
    await eventually(async () => expect(await mountsIn(engine, "box")).toHaveLength(1));
    const leaver = new AbortController();
    const left = engine.mounts.mount("box", { drive: "data", path: "/second" }, leaver.signal);
    leaver.abort(new Error("gone"));
    await expect(left).rejects.toThrow("gone");
    gate.resolve();
    await first;
    expect(await mountsIn(engine, "box")).toEqual(["data at /first: proven"]);
    expect(await removeDrive(engine, "data").catch(({ code }) => code)).toBe("drive_mounted");
  });

  it("end when their sandbox is deleted", async () => {
    const { engine, driver, store } = await apart();
    driver.faults.mount = (_order, inner) =>
      new Promise((_, reject) => inner.addEventListener("abort", () => reject(inner.reason)));
    const mounting = codeOf(mount(engine, "box"));
    await eventually(async () => expect(await mountsIn(engine, "box")).toHaveLength(1));
    expect((await remove(engine, "box")).status).toBe("terminated");
    expect(await mounting).toMatch(/wrong_state|sandbox_gone/);
    expect(await removeDrive(engine, "data")).toBeNull();
    expect(await store.drives()).toEqual([]);
  });
});

describe("a mount that fails", () => {
  const failures = [
    ["is refused", "mount_refused", { mount: refuse }],
    ["fails", "mount_failed", { mount: fail }],
    ["fails when it is done", "mount_failed", { mountAnswer: fail }],
    ["is never answered", "deadline", { mount: never }],
    ["is never answered when it is done", "deadline", { mountAnswer: never }],
  ] as const;
  it.each(failures)(
    "because it %s leaves nothing, in the sandbox and in its record",
    async (_how, code, faults) => {
      const { engine, driver, inside, store, id } = await apart({ driveCallMs: 100 });
      driver.faults = faults;
      expect(await codeOf(mount(engine, "box"))).toBe(code);
      expect(inside()).toBeUndefined();
      expect((await store.sandbox(id))?.mounts).toEqual([]);
      expect(await eventsOf(engine, "box")).toContain("mount.failed");
      driver.faults = {};
      expect(await removeDrive(engine, "data")).toBeNull();
    },
  );

  it("because a different directory is seen inside leaves nothing", async () => {
    const { engine, driver, inside, id } = await apart();
    driver.faults.mountAnswer = async () => {
      const there = driver.instances.get(id)?.mounts.get("/data");
      if (there !== undefined) there.ino = "another";
    };
    expect(await codeOf(mount(engine, "box"))).toBe("mount_failed");
    expect(inside()).toBeUndefined();
    expect(await mountsIn(engine, "box")).toEqual([]);
  });

  it("because it can't be recorded did not begin", async () => {
    const { engine, driver, store } = await apart();
    const steps = stepsOf(driver);
    const commit = store.commit.bind(store);
    store.commit = fail;
    expect(await codeOf(mount(engine, "box"))).toBe("internal");
    store.commit = commit;
    expect(steps.filter((step) => step.startsWith("mount"))).toEqual([]);
    expect(await mount(engine, "box")).toMatchObject({ existed: false });
  });

  it("and can't be removed either is shown, and removed later", async () => {
    const { engine, driver, inside, store, id } = await apart();
    driver.faults = { mountAnswer: fail, unmount: fail };
    expect(await codeOf(mount(engine, "box"))).toBe("mount_failed");
    expect((await store.sandbox(id))?.mounts).toMatchObject([{ path: "/data", state: "removing" }]);
    expect(await codeOf(removeDrive(engine, "data"))).toBe("drive_mounted");
    expect(await codeOf(mount(engine, "box"))).toBe("mount_conflict");
    driver.faults = {};
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual([]));
    expect(inside()).toBeUndefined();
    expect(await eventsOf(engine, "box")).toContain("mount.removed");
  });

  it("does not degrade the sandbox while it is tried or rolled back", async () => {
    const { engine, driver } = await apart({ driveCallMs: 400, proofFreshMs: 0 });
    const statuses = new Set<string>();
    driver.faults = { mountAnswer: never, unmount: () => pause(200).then(() => undefined) };
    const mounting = codeOf(mount(engine, "box"));
    for (let n = 0; n < 25; n += 1) {
      await engine.sandboxes.verify("box", signal);
      statuses.add((await engine.sandboxes.get("box")).status);
      await pause(20);
    }
    expect(await mounting).toBe("deadline");
    expect([...statuses]).toEqual(["ready"]);
  });

  it("does not degrade the sandbox while it takes long", async () => {
    const { engine, driver } = await apart({ proofFreshMs: 0 });
    driver.faults.mount = () => pause(200).then(() => undefined);
    const mounting = mount(engine, "box");
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual(["data at /data: unproven"]));
    expect((await engine.sandboxes.verify("box", signal)).ok).toBe(true);
    expect((await start(engine, "box", ["exit", "0"])).id).toBeDefined();
    expect(await mounting).toMatchObject({ mount: { state: "proven" } });
  });

  it("although it existed is no longer proven, and its sandbox is not ready", async () => {
    const { engine, driver, id } = await mounted({ maintainEveryMs: 60_000 });
    driver.faults.mountAnswer = async () => {
      const there = driver.instances.get(id)?.mounts.get("/data");
      if (there !== undefined) there.ino = "another";
    };
    expect(await codeOf(mount(engine, "box"))).toBe("mount_failed");
    expect(await engine.sandboxes.get("box")).toMatchObject({
      status: "degraded",
      cause: { code: "mount_broken" },
    });
    expect(await mountsIn(engine, "box")).not.toEqual(["data at /data: proven"]);
  });

  it("is not proven by an earlier mount at the same path", async () => {
    const { engine, driver } = await mounted();
    await unmount(engine);
    const gate = Promise.withResolvers<void>();
    driver.faults.mount = () => gate.promise;
    const mounting = mount(engine, "box");
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual(["data at /data: unproven"]));
    gate.resolve();
    await mounting;
  });

  it("returns even if its sandbox stops answering", async () => {
    const { engine, driver, id } = await apart({ proofDeadlineMs: 200, linkWaitMs: 50 });
    driver.faults.mountAnswer = async () => {
      driver.faults.connect = fail;
      for (const link of driver.instances.get(id)?.links ?? []) link.drop("broken");
    };
    expect(await codeOf(mount(engine, "box"))).toMatch(/link_lost|mount_failed|deadline/);
    driver.faults = {};
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual([]));
  });
});

describe("an unmount", () => {
  it("returns after the mount was seen to be gone, and frees the path", async () => {
    const { engine, inside, store, id } = await mounted();
    await unmount(engine, "/data/");
    expect(inside()).toBeUndefined();
    expect((await store.sandbox(id))?.mounts).toEqual([]);
    expect(await codeOf(unmount(engine))).toBe("mount_not_found");
    expect(await eventsOf(engine, "box")).toContain("mount.removed");
    expect(await removeDrive(engine, "data")).toBeNull();
  });

  it("that fails is retried, and the sandbox does not miss the drive", async () => {
    const { engine, driver, inside } = await mounted();
    driver.faults.unmount = fail;
    expect(await codeOf(unmount(engine))).toBe("mount_failed");
    expect(await codeOf(mount(engine, "box"))).toBe("mount_conflict");
    await pause(100);
    expect((await engine.sandboxes.verify("box", signal)).ok).toBe(true);
    expect((await engine.sandboxes.get("box")).status).toBe("ready");
    driver.faults = {};
    await eventually(() => expect(inside()).toBeUndefined());
    await eventually(async () => expect(await mountsIn(engine, "box")).toEqual([]));
  });

  it("can be requested again while it is pending", async () => {
    const { engine, driver, inside } = await mounted({ maintainEveryMs: 60_000 });
    driver.faults.unmount = fail;
    expect(await codeOf(unmount(engine))).toBe("mount_failed");
    driver.faults = {};
    await unmount(engine);
    expect(inside()).toBeUndefined();
  });
});

describe("a mount in a create request", () => {
  it("is made before the first proof", async () => {
    const { engine, driver } = await testEngine();
    await makeDrive(engine, "data");
    const steps = stepsOf(driver);
    const { sandbox } = await engine.sandboxes.create(withDrive(), { wait: true, signal });
    expect(sandbox).toMatchObject({ status: "ready", mounts: [{ path: "/data", state: "proven" }] });
    expect(steps.slice(0, 2)).toEqual(["mount /data", "connect"]);
    expect(sandbox.proof?.checks).toContainEqual(expect.objectContaining({ name: "mounts", ok: true }));
  });

  it("that can't be made fails the creation, and nothing is left", async () => {
    const { engine, driver, store } = await testEngine();
    await makeDrive(engine, "data");
    driver.faults.mount = refuse;
    const create = engine.sandboxes.create(withDrive(), { wait: true, signal });
    await expect(create).rejects.toMatchObject({
      code: "launch_failed",
      message: expect.stringContaining("link"),
    });
    await eventually(() => expect(driver.directories.size).toBe(0));
    driver.faults = {};
    // Both the name and the drive are free.
    expect(await removeDrive(engine, "data")).toBeNull();
    expect((await engine.sandboxes.create({ name: "box" }, { wait: true, signal })).sandbox.status).toBe(
      "ready",
    );
    expect(await store.drives()).toEqual([]);
  });

  it("that shows a different directory inside fails the creation", async () => {
    const { engine, driver } = await testEngine();
    await makeDrive(engine, "data");
    driver.faults.mountAnswer = async () => {
      for (const { mounts } of driver.instances.values())
        for (const there of mounts.values()) there.ino = "another";
    };
    expect(await codeOf(engine.sandboxes.create(withDrive(), { wait: true, signal }))).toBe("launch_failed");
  });

  it("needs an existing drive and must not conflict with another", async () => {
    const { engine, driver } = await testEngine();
    await makeDrive(engine, "data");
    const create = (...mounts: MountDrive[]) =>
      codeOf(engine.sandboxes.create(withDrive(mounts), { wait: true, signal }));
    expect(await create({ drive: "none", path: "/a" })).toBe("drive_not_found");
    const twice = { drive: "data", path: "/a" };
    expect(await create(twice, twice)).toBe("mount_conflict");
    expect(await create(twice, { drive: "data", path: "/a/b" })).toBe("mount_conflict");
    expect(driver.launches).toBe(0);
    expect(await removeDrive(engine, "data")).toBeNull();
  });

  it("waits for a drive that is being created", async () => {
    const { engine, driver } = await testEngine();
    const gate = Promise.withResolvers<void>();
    driver.drives.faults.make = () => gate.promise;
    const making = makeDrive(engine, "data");
    await eventually(async () => expect((await engine.drives.list({ limit: 1 })).items).toHaveLength(1));
    const creating = engine.sandboxes.create(withDrive(), { wait: true, signal });
    gate.resolve();
    await making;
    expect((await creating).sandbox.mounts).toMatchObject([{ state: "proven" }]);
  });

  it("is the only kind of mount that a fork has: it gets none of its source", async () => {
    const { engine, driver } = await mounted();
    await makeDrive(engine, "other");
    await start(engine, "box", ["sleep"]);
    const { id: checkpoint } = await save(engine, "box");
    const bare = await fork(engine, checkpoint);
    expect(bare.mounts).toEqual([]);
    expect(driver.instances.get(bare.id as SandboxId)?.mounts.size).toBe(0);
    const mounts = [{ drive: "other", path: "/data" }];
    const other = await fork(engine, checkpoint, { mounts });
    expect(other.mounts).toMatchObject([{ drive: "other", state: "proven" }]);
    expect(bare.status).toBe("ready");
  });
});

describe("mounts are restored", () => {
  it("before the proof, when a sandbox restarts from its files", async () => {
    const { engine, driver } = await testEngine();
    await makeDrive(engine, "data");
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    const { sandbox } = await engine.sandboxes.create(withDrive(undefined, { lifecycle }), {
      wait: true,
      signal,
    });
    const steps = stepsOf(driver);
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({ status: "ready", generation: 2 }),
    );
    expect(steps.indexOf("mount /data")).toBeGreaterThan(-1);
    expect(steps.indexOf("mount /data")).toBeLessThan(steps.lastIndexOf("connect"));
    expect(await mountsIn(engine, "box")).toEqual(["data at /data: proven"]);
  });

  it("before any process resumes, when a sandbox wakes", async () => {
    const { engine, driver, inside } = await mounted();
    await engine.sandboxes.standby("box", signal);
    expect(await mountsIn(engine, "box")).toEqual(["data at /data: unproven"]);
    const steps = stepsOf(driver);
    expect(await engine.sandboxes.wake("box", signal)).toMatchObject({ status: "ready" });
    expect(steps.slice(0, 3)).toEqual(["mount /data", "thaw", "connect"]);
    expect(inside()?.ino).toMatch(/^drive/);
  });

  it("when standby preserved only files", async () => {
    const all = await testEngine();
    all.driver.standby = { kind: "files", why: "there is no criu" };
    await makeDrive(all.engine, "data");
    await all.engine.sandboxes.create(withDrive(), { wait: true, signal });
    await all.engine.sandboxes.standby("box", signal);
    expect(await all.engine.sandboxes.wake("box", signal)).toMatchObject({ mounts: [{ state: "proven" }] });
  });

  it("when the server ended between the record and the mount", async () => {
    const { engine, store, id, driveId, inside, restart } = await apart();
    await engine.stop();
    const point = { driveId, drive: "data", path: "/data", subpath: "/", readOnly: false };
    await storeMounts(store, id, [{ ...point, state: "wanted" }]);
    const next = await restart();
    await eventually(async () => expect(await mountsIn(next, "box")).toEqual(["data at /data: proven"]));
    expect(inside()?.ino).toMatch(/^drive/);
    expect(await next.sandboxes.get("box")).toMatchObject({ status: "ready" });
  });

  it("not, when the server ended between the record of an unmount and the unmount", async () => {
    const { engine, store, id, driveId, inside, restart } = await mounted();
    await engine.stop();
    const point = { driveId, drive: "data", path: "/data", subpath: "/", readOnly: false };
    await storeMounts(store, id, [{ ...point, state: "removing" }]);
    const next = await restart();
    await eventually(async () => expect(await mountsIn(next, "box")).toEqual([]));
    expect(inside()).toBeUndefined();
  });

  it("not, when they were given up during standby: the sandbox wakes to its own disk", async () => {
    const { engine, store, id, driveId, inside, restart } = await mounted();
    await engine.sandboxes.standby("box", signal);
    await engine.stop();
    const point = { driveId, drive: "data", path: "/data", subpath: "/", readOnly: false };
    await storeMounts(store, id, [{ ...point, state: "removing" }]);
    const next = await restart();
    expect(await next.sandboxes.wake("box", signal)).toMatchObject({ status: "ready", mounts: [] });
    expect(inside()).toBeUndefined();
  });

  it("by themselves, when the first attempt failed", async () => {
    const { engine, driver, inside } = await mounted();
    await engine.sandboxes.standby("box", signal);
    let failures = 1;
    driver.faults.restoreAnswer = async () => {
      const there = inside();
      if (there !== undefined) there.ino = null;
    };
    driver.faults.mount = async () => {
      failures -= 1;
      if (failures >= 0) await fail();
    };
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_degraded");
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("ready"));
    expect(inside()?.ino).toMatch(/^drive/);
  });
});

describe("a deleted drive", () => {
  it("leaves a woken sandbox degraded, with its memory", async () => {
    const { engine, driver, driveId, inside } = await mounted();
    const exec = await start(engine, "box", ["sleep"]);
    await engine.sandboxes.standby("box", signal);
    driver.drives.take(driveId);
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_degraded");
    expect(await engine.sandboxes.get("box")).toMatchObject({
      status: "degraded",
      generation: 2,
      cause: { code: "mount_broken" },
    });
    expect(inside()).toMatchObject({ ino: null });
    expect(driver.restores).toBe(1);
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running", suspended: false });
    driver.drives.giveBack(driveId);
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("ready"));
  });

  it("leaves a restarted sandbox degraded, not failed", async () => {
    const { engine, driver } = await testEngine();
    const { id: driveId } = await makeDrive(engine, "data");
    const lifecycle = { onMemoryLoss: "cold-start" } as const;
    const { sandbox } = await engine.sandboxes.create(withDrive(undefined, { lifecycle }), {
      wait: true,
      signal,
    });
    driver.drives.take(driveId as never);
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({
        generation: 2,
        cause: { code: "mount_broken" },
      }),
    );
  });

  it("that never answers does not prevent the wake", async () => {
    const { engine, driver, inside } = await mounted({ wakeDeadlineMs: 1_000, driveCallMs: 5_000 });
    const exec = await start(engine, "box", ["sleep"]);
    await engine.sandboxes.standby("box", signal);
    driver.faults.restoreAnswer = async () => {
      const there = inside();
      if (there !== undefined) there.ino = null;
    };
    driver.faults.mount = never;
    expect(await codeOf(engine.sandboxes.wake("box", signal))).toBe("sandbox_degraded");
    expect(await engine.execs.get(exec.id)).toMatchObject({ status: "running" });
    expect((await engine.sandboxes.get("box")).status).toBe("degraded");
  });

  it("does not prevent other mounts and unmounts", async () => {
    const { engine, driver, driveId } = await mounted();
    await makeDrive(engine, "other");
    driver.drives.take(driveId);
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("degraded"));
    expect(await mount(engine, "box", { drive: "other", path: "/other" })).toMatchObject({
      mount: { state: "proven" },
    });
    expect(await mountsIn(engine, "box")).toEqual(["data at /data: broken", "other at /other: proven"]);
    await unmount(engine, "/other");
    await unmount(engine);
    await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("ready"));
  });

  it("and a mount removed from outside are reported within one pass", async () => {
    const { engine, inside } = await mounted({ maintainEveryMs: 60_000 });
    const there = inside();
    if (there !== undefined) there.ino = null;
    await eventually(async () =>
      expect(await engine.sandboxes.get("box")).toMatchObject({
        status: "degraded",
        cause: { code: "mount_broken" },
      }),
    );
  });
});

it("a change of mounts whose sandbox is suspended before its turn is refused after a limited number of tries", async () => {
  const { engine, driver } = await apart({ callTriesMax: 1, quietWaitMs: 60_000 });
  const begun = Promise.withResolvers<void>();
  const mounting = Promise.withResolvers<void>();
  driver.faults.mount = () => {
    begun.resolve();
    return mounting.promise;
  };
  const first = codeOf(mount(engine, "box"));
  await begun.promise;
  const second = codeOf(mount(engine, "box", { path: "/other" }));
  const standby = engine.sandboxes.standby("box", signal);
  await eventually(async () => expect((await engine.sandboxes.get("box")).status).toBe("suspending"));
  mounting.resolve();
  expect(await first).toBe("fulfilled");
  expect(await second).toBe("sandbox_busy");
  expect((await standby).status).toBe("standby");
});

/** What an instance stands on is removed, moved or replaced on the host while it runs. */
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  newCheckpointId,
  newDriveId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import type { Instance } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { findCriu } from "../checkpoint/find-criu.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
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
const remove = (path: string) => rmSync(path, { recursive: true });

async function problems(driver = machine.driver) {
  const seen = (await driver.observe([id], soon())).get(id);
  if (seen?.seen !== "present") throw new Error(`it is ${seen?.seen}`);
  return seen.problems.map(({ code, message }) => ({ code, message }));
}
const codes = async () => (await problems()).map(({ code }) => code);

async function launch(diskMb?: number): Promise<Instance> {
  id = newSandboxId();
  const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
  const instance = await machine.driver.launch(orderFor(id, { resources }), soon());
  (await machine.driver.connect(instance, soon())).close();
  expect(await problems()).toEqual([]);
  return instance;
}

describe.each([
  ["in the state directory", undefined, []],
  ["on a disk of its own", 32, ["disk"]],
] as const)("a running sandbox with its files %s", (_where, diskMb, below) => {
  const file = (...names: string[]) => place(...below, ...names);

  test.each([
    ["upper", "files_gone"],
    ["work", "files_gone"],
    [join("work", "work"), "files_gone"],
    ["control", "control_gone"],
    [join("control", "journals"), "journals_gone"],
    [join("control", "keeper.sock"), "socket_gone"],
  ])("reports a removed %s as %s", async (name, code) => {
    await launch(diskMb);
    remove(file(name));
    expect((await codes())[0]).toBe(code);
    expect((await problems())[0]?.message).toContain("was removed or moved on the host");
  });

  test.each(["upper", "work", "control", join("control", "journals")])(
    "reports a moved %s, and is well again once it is back in its place",
    async (name) => {
      await launch(diskMb);
      renameSync(file(name), file("elsewhere"));
      expect(await codes()).not.toEqual([]);
      renameSync(file("elsewhere"), file(name));
      expect(await codes()).toEqual([]);
    },
  );

  test.each(["upper", "control", join("control", "journals")])(
    "reports that another directory is in the place of %s",
    async (name) => {
      await launch(diskMb);
      renameSync(file(name), file("elsewhere"));
      mkdirSync(file(name));
      expect((await problems())[0]?.message).toContain("was replaced by another one on the host");
    },
  );
});

test("a lost control directory is one problem, although the journals are lost with it", async () => {
  await launch();
  remove(place("control"));
  expect(await codes()).toEqual(["control_gone"]);
});

test("a restart brings lost journals back, and commands run again", async () => {
  await launch();
  remove(place("control", "journals"));
  expect(await codes()).toEqual(["journals_gone"]);
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  const again = await machine.driver.launch(orderFor(id, { generation: 2, restart: true }), soon());
  const link = await machine.driver.connect(again, soon());
  expect((await run(link, "echo back")).output).toBe("back\n");
  link.close();
  expect(await codes()).toEqual([]);
  remove(place("control", "journals"));
  expect(await codes()).toEqual(["journals_gone"]);
});

test("a restart brings a lost socket back, and a file that is not a socket does not stand for it", async () => {
  await launch();
  remove(place("control", "keeper.sock"));
  writeFileSync(place("control", "keeper.sock"), "");
  expect(await codes()).toEqual(["socket_gone"]);
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  const again = await machine.driver.launch(orderFor(id, { generation: 2, restart: true }), soon());
  (await machine.driver.connect(again, soon())).close();
  expect(await codes()).toEqual([]);
});

test("an image file of the sandbox's own disk that was cut is reported while the disk still works", async () => {
  await launch(32);
  truncateSync(place("disk.img"), 0);
  expect(await problems()).toEqual([
    { code: "disk_gone", message: expect.stringContaining("no longer has its size") },
  ]);
  truncateSync(place("disk.img"), 32 * 1_048_576);
});

test("a deleted image file of the sandbox's own disk is reported while the disk still works", async () => {
  await launch(32);
  remove(place("disk.img"));
  expect(await codes()).toEqual(["disk_gone"]);
});

test("a moved sandbox directory is reported as lost files before it is reported as an unmounted root", async () => {
  await launch();
  renameSync(place(), `${place()}-moved`);
  expect((await codes())[0]).toBe("files_gone");
  const { driver } = await machine.again();
  expect((await problems(driver))[0]).toMatchObject({ code: "files_gone" });
  await driver.close();
  renameSync(`${place()}-moved`, place());
  expect(await codes()).toEqual([]);
});

describe("a keeper outside its cgroup", () => {
  const hierarchies = readHierarchies();
  const cgroups = () => hierarchies.map(({ dir }) => join(dir, `holdfast-${machine.installation}`, id));

  /** Moves every process of the sandbox to the cgroups above, as a person at the host can. */
  function moveOut(): void {
    for (const dir of cgroups().filter((each) => existsSync(each)))
      for (const pid of readFileSync(join(dir, "cgroup.procs"), "utf8").match(/\d+/g) ?? [])
        writeFileSync(join(dir, "..", "..", "cgroup.procs"), pid);
  }

  test("is reported with the limits that are not in force, at once if the cgroup is gone", async () => {
    await launch();
    for (let pass = 0; pass < 8; pass++) expect(await codes()).toEqual([]);
    moveOut();
    for (const dir of cgroups().filter((each) => existsSync(each))) rmdirSync(dir);
    expect(await problems()).toEqual([
      { code: "cgroup_gone", message: expect.stringMatching(/limits on .*memory.* are not in force/) },
    ]);
  });

  test("is reported within a few observations if the cgroup is still there", async () => {
    await launch();
    moveOut();
    let seen: string[] = [];
    for (let pass = 0; pass < 4 && seen.length === 0; pass++) seen = await codes();
    expect(seen).toEqual(["cgroup_gone"]);
  });
});

describe("an instance that an earlier version launched", () => {
  const forgetPaths = () => {
    const { writePaths: _, ...note } = JSON.parse(readFileSync(place("instance.json"), "utf8"));
    writeFileSync(place("instance.json.new"), JSON.stringify(note));
    renameSync(place("instance.json.new"), place("instance.json"));
  };

  test("is compared with the paths that its recovery found", async () => {
    const instance = await launch();
    forgetPaths();
    const { driver } = await machine.again();
    expect(await problems(driver)).toEqual([]);
    await driver.recover(instance, soon());
    expect(await problems(driver)).toEqual([]);
    renameSync(place("upper"), place("elsewhere"));
    expect(await problems(driver)).toMatchObject([{ code: "files_gone" }]);
    await driver.close();
  });

  test("is well after its disk was mounted again, if that was unmounted at its recovery", async () => {
    const instance = await launch(32);
    forgetPaths();
    execFileSync("umount", ["-l", place("disk")]);
    const { driver } = await machine.again();
    await driver.recover(instance, soon());
    expect(await problems(driver)).toMatchObject([{ code: "disk_unmounted" }]);
    await driver.remount(id, soon());
    expect(await problems(driver)).toEqual([]);
    await driver.close();
  });

  test("is reported if its files were lost before its recovery", async () => {
    const instance = await launch();
    forgetPaths();
    remove(place("upper"));
    const { driver } = await machine.again();
    await driver.recover(instance, soon());
    expect(await problems(driver)).toMatchObject([{ code: "files_gone" }]);
    await driver.close();
  });
});

const found = await findCriu();
describe.skipIf(!("path" in found))("standby", () => {
  const suspend = async ({ generation }: Instance) => {
    await machine.driver.freeze(id, soon());
    const order = { sandboxId: id, generation, id: newCheckpointId() };
    return machine.driver.checkpoint(order, soon()).catch((error: unknown) => String(error));
  };

  test("is refused while files are missing that the wake needs", async () => {
    const instance = await launch();
    renameSync(place("upper"), place("elsewhere"));
    expect(await suspend(instance)).toMatch(/some of its files are missing on the host/);
  });

  test("is refused while the keeper's program is missing", async () => {
    const instance = await launch();
    const keeper = join(machine.stateDir, "keepers", instance.keeperVersion, "keeper");
    const run = (...argv: [string, ...string[]]) => execFileSync(argv[0], argv.slice(1), { stdio: "ignore" });
    // The program may be immutable.
    try {
      run("chattr", "-i", keeper);
    } catch {}
    renameSync(keeper, `${keeper}.away`);
    try {
      expect(await suspend(instance)).toMatch(/its keeper's program is missing on the host/);
    } finally {
      renameSync(`${keeper}.away`, keeper);
    }
  });
});

describe("the look for the files of a sandbox without an instance", () => {
  const missing = async () => (await machine.driver.missing([id], soon())).get(id);

  test.each([
    ["upper", "the directory of its files"],
    ["work", "the work directory"],
    ["control", "its control directory"],
    ["order.json", "the note of its image"],
    ["root", "the directory of its root"],
  ])("names a missing %s, after which its files can't be read", async (name, words) => {
    await launch();
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    expect(await missing()).toBeNull();
    if (name === "root") execFileSync("umount", [place("root")]);
    renameSync(place(name), place("elsewhere"));
    expect(await missing()).toContain(words);
    await expect(machine.driver.files(id, soon())).rejects.toThrow();
    renameSync(place("elsewhere"), place(name));
    expect(await missing()).toBeNull();
  });

  test("names a missing image of the sandbox, without which a restart is refused", async () => {
    await launch();
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    const { image, imageVersion } = JSON.parse(readFileSync(place("order.json"), "utf8"));
    const version = join(machine.stateDir, "images", image, imageVersion);
    renameSync(version, `${version}.away`);
    expect(await missing()).toBe("its image is missing on the host");
    const order = orderFor(id, { generation: 2, restart: true });
    await expect(machine.driver.launch(order, soon())).rejects.toThrow();
    renameSync(`${version}.away`, version);
    expect(await missing()).toBeNull();
  });

  test("names a missing disk image, mounted or not, and directories that are gone altogether", async () => {
    await launch(32);
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    expect(await missing()).toBeNull();
    renameSync(place("disk.img"), place("elsewhere"));
    expect(await missing()).toContain("the image file of its own disk");
    renameSync(place("elsewhere"), place("disk.img"));
    await machine.reboot();
    expect(await missing()).toBeNull();
    await machine.driver.destroy(id, soon());
    expect(await missing()).toBe("all its files are missing on the host");
  });
});

test.each([
  ["deleted", remove],
  ["cut", (image: string) => truncateSync(image, 4_096)],
])("a drive whose image file was %s is reported while its file system still works", async (_, damage) => {
  await launch();
  const driveId = newDriveId();
  const { drives } = machine.driver;
  await drives.make({ id: driveId, sizeMb: 32 }, soon());
  const problem = async () => {
    const seen = (await drives.observe([driveId], soon())).get(driveId);
    return seen?.seen === "present" ? seen.problem : seen;
  };
  expect(await problem()).toBeNull();
  damage(join(machine.stateDir, "drives", driveId, "disk.img"));
  expect(await problem()).toMatchObject({
    code: "drive_gone",
    message: expect.stringContaining("image file"),
  });
  await drives.destroy(driveId, soon());
});

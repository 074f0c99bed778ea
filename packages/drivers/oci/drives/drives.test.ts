/** Drives in real instances: mounts from outside, memory standby, forks and cold starts. */
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  type DriveId,
  newCheckpointId,
  newDriveId,
  newExecId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import type { Instance, Link, MountOrder, MountPoint } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { findCriu } from "../checkpoint/find-criu.ts";
import { layoutOf } from "../machine/layout.ts";
import { processOf, type TestMachine, testMachine } from "../testing/test-machine.ts";
import { dataIn } from "./drives.ts";

const hasCriu = "path" in (await findCriu());
const soon = () => AbortSignal.timeout(40_000);
let machine: TestMachine;
const sandboxes: SandboxId[] = [];
const drives: DriveId[] = [];
const links: Link[] = [];

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  for (const link of links.splice(0)) link.close();
  for (const id of sandboxes.splice(0)) {
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    await machine.driver.destroy(id, soon());
  }
  for (const id of drives.splice(0)) await machine.driver.drives.destroy(id, soon());
});
afterAll(() => machine?.dispose());

const layout = () => layoutOf(machine.stateDir, machine.installation);
const dataOf = (id: DriveId) => dataIn(layout().drive(id));

async function makeDrive(sizeMb: number | null = null): Promise<DriveId> {
  const id = newDriveId();
  drives.push(id);
  await machine.driver.drives.make({ id, sizeMb }, soon());
  return id;
}

const connect = async (instance: Instance): Promise<Link> => {
  const link = await machine.driver.connect(instance, soon());
  links.push(link);
  return link;
};

async function launch(mounts: readonly MountPoint[] = []): Promise<[Instance, Link]> {
  const sandboxId = newSandboxId();
  sandboxes.push(sandboxId);
  const instance = await machine.driver.launch(orderFor(sandboxId), soon());
  for (const each of mounts) await mount({ ...each, sandboxId });
  return [instance, await connect(instance)];
}

const at = (driveId: DriveId, changes: Partial<MountPoint> = {}): MountPoint => ({
  driveId,
  path: "/workspace",
  subpath: "/",
  readOnly: false,
  ...changes,
});

const mount = (order: Omit<MountOrder, "make">, make = true) =>
  machine.driver.mount({ ...order, make }, soon());
const unmount = (id: SandboxId, path = "/workspace", keepClosed = false) =>
  machine.driver.unmount(id, path, { keepClosed }, soon());
const seenIn = async (id: SandboxId) => {
  const seen = (await machine.driver.observe([id], soon())).get(id);
  if (seen?.seen !== "present") throw new Error(`the instance is ${seen?.seen}`);
  return seen.mounts;
};
const outputOf = async (link: Link, command: string, user = "") => {
  const { output, exitCode } = await run(link, command, user);
  return exitCode === 0 ? output : `${output}(${exitCode})`;
};

describe("a drive", () => {
  test("can be written by root and by uid 1000, whichever of them created a file", async () => {
    const [{ sandboxId }, link] = await launch([at(await makeDrive())]);
    expect(await outputOf(link, "echo a > /workspace/mine && mkdir /workspace/dir")).toBe("");
    expect(
      await outputOf(
        link,
        "echo b >> /workspace/mine; echo c > /workspace/dir/r; mkdir /workspace/roots",
        "root",
      ),
    ).toBe("");
    expect(
      await outputOf(
        link,
        "echo d >> /workspace/dir/r; echo e > /workspace/roots/f; cat /workspace/mine /workspace/dir/r",
      ),
    ).toBe("a\nb\nc\nd\n");
    expect(await seenIn(sandboxId)).toMatchObject([{ path: "/workspace", problem: null }]);
  });

  test("shows the same files in every sandbox and in its own file view at once", async () => {
    const drive = await makeDrive();
    const [, one] = await launch([at(drive)]);
    const [, other] = await launch([at(drive, { path: "/home/user/deep/down" })]);
    await run(one, "echo hi > /workspace/a; ln -s /etc/passwd /workspace/link; mkfifo /workspace/pipe");
    expect(await outputOf(other, "cat deep/down/a 2>/dev/null || cat /home/user/deep/down/a")).toBe("hi\n");
    const { files, close } = await machine.driver.drives.files(drive, soon());
    try {
      const { entries } = await files.list("/", { limit: 10 }, soon());
      expect(entries.map(({ name, stat }) => [name, stat.kind]).sort()).toEqual([
        ["a", "file"],
        ["link", "symlink"],
        ["pipe", "fifo"],
      ]);
      await expect(files.read("/link", { offset: 0, length: null }, soon())).rejects.toThrow();
      await expect(files.read("/pipe", { offset: 0, length: null }, soon())).rejects.toThrow();
    } finally {
      await close();
    }
  });

  test("can't grow beyond its size limit", async () => {
    const drive = await makeDrive(32);
    const [, link] = await launch([at(drive)]);
    const { exitCode, output } = await run(link, "head -c 64M /dev/zero > /workspace/big; echo done");
    expect([exitCode, output]).toEqual([0, expect.stringContaining("No space left")]);
    expect(await outputOf(link, "echo fine > /tmp/x && cat /tmp/x")).toBe("fine\n");
    const { usedBytes, freeBytes } = await machine.driver.drives.usage(drive, soon());
    expect(usedBytes).toBeGreaterThan(10_000_000);
    expect(freeBytes).toBeLessThan(5_000_000);
  });

  test("mounted by subpath shows only the subdirectory, which is created if missing, and follows no link", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive, { subpath: "/a/b" }), at(drive, { path: "/all" })]);
    await run(link, "echo x > /workspace/f; ln -s /etc /all/etc");
    expect(await outputOf(link, "cat /all/a/b/f")).toBe("x\n");
    const planted = mount({ ...at(drive, { path: "/w2", subpath: "/etc" }), sandboxId });
    await expect(planted).rejects.toMatchObject({ code: "mount_refused" });
    await unmount(sandboxId, "/w2");
  });

  test("mounted read-only can't be written, not even by root", async () => {
    const drive = await makeDrive();
    const [, writer] = await launch([at(drive)]);
    const [, reader] = await launch([at(drive, { readOnly: true })]);
    await run(writer, "echo x > /workspace/f");
    expect(await outputOf(reader, "cat /workspace/f")).toBe("x\n");
    expect(await outputOf(reader, "touch /workspace/g", "root")).toContain("Read-only");
  });

  test("is mounted nosuid and nodev", async () => {
    const drive = await makeDrive();
    const [instance] = await launch([at(drive)]);
    const { pid } = processOf(instance);
    const line = readFileSync(`/proc/${pid}/mountinfo`, "utf8")
      .split("\n")
      .find((each) => each.includes(" /workspace "));
    expect(line).toMatch(/nosuid,nodev/);
  });

  test("is unmounted, and the directory under it is as before", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch();
    await run(link, "mkdir -m 750 /home/user/w; echo under > /home/user/w/u");
    const path = "/home/user/w";
    await mount({ ...at(drive, { path }), sandboxId });
    expect(await outputOf(link, `ls -A ${path}; echo over > ${path}/o`)).toBe("");
    // A process works in the directory: the unmount must succeed nevertheless.
    await run(link, `sh -c 'cd ${path}; sleep 100' >/dev/null 2>&1 &`);
    await unmount(sandboxId, path);
    await unmount(sandboxId, path);
    expect(
      await outputOf(link, `cat ${path}/u; stat -c '%a %u' ${path}; echo more > ${path}/m; ls ${path}`),
    ).toBe("under\n750 1000\nm\nu\n");
    expect(await seenIn(sandboxId)).toEqual([]);
  });

  test.each([
    ["a file", "echo x > /w", "/w"],
    ["a link to a directory", "ln -s /home /w", "/w"],
    ["below a link", "ln -s /home /w", "/w/x"],
    ["a directory of the host", "true", "/usr/w"],
  ])("is refused at %s", async (_, prepare, path) => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch();
    await run(link, prepare, "root");
    await expect(mount({ ...at(drive, { path }), sandboxId })).rejects.toMatchObject({
      code: "mount_refused",
    });
    await unmount(sandboxId, path);
    expect(await seenIn(sandboxId)).toEqual([]);
  });

  test("is mounted once at a path, and replaces another drive there on request", async () => {
    const [drive, second] = [await makeDrive(), await makeDrive()];
    const [instance] = await launch([at(drive), at(drive)]);
    const { sandboxId } = instance;
    const { pid } = processOf(instance);
    const count = () =>
      readFileSync(`/proc/${pid}/mountinfo`, "utf8")
        .split("\n")
        .filter((each) => each.includes(" /workspace ")).length;
    expect(count()).toBe(1);
    await mount({ ...at(second), sandboxId });
    expect(count()).toBe(1);
    expect(await seenIn(sandboxId)).toMatchObject([{ driveId: second, problem: null }]);
  });
});

describe("a mount", () => {
  const onDisk = (id: SandboxId, path: string) => existsSync(join(layout().sandbox(id).upper, path));

  test("that is moved with its parent directory is reported, and restored at its path", async () => {
    const drive = await makeDrive();
    const path = "/home/user/p/w";
    const [instance, link] = await launch([at(drive, { path })]);
    const { sandboxId } = instance;
    const { pid } = processOf(instance);
    await run(link, "cd /home/user; mv p q");
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "mount_gone" } }]);
    await mount({ ...at(drive, { path }), sandboxId });
    expect(await seenIn(sandboxId)).toMatchObject([{ path, problem: null }]);
    const table = readFileSync(`/proc/${pid}/mountinfo`, "utf8");
    expect(table.match(/ \/home\/user\/[pq]\/w /g)).toEqual([` ${path} `]);
    expect(await outputOf(link, "cd /home/user; echo own > q/w/own; cat q/w/own; echo in > p/w/in")).toBe(
      "own\n",
    );
    expect(existsSync(join(dataOf(drive), "in"))).toBe(true);
  });

  test("that was moved is unmounted at its new path", async () => {
    const drive = await makeDrive(32);
    const path = "/home/user/p/w";
    const [{ sandboxId }, link] = await launch([at(drive, { path })]);
    await run(link, "cd /home/user; mv p q; ln -s q p");
    await unmount(sandboxId, path);
    expect(await outputOf(link, "grep -c q/w /proc/self/mountinfo")).toBe("0\n(1)");
    expect(await outputOf(link, "cd /home/user; echo own > q/w/own; cat p/w/own")).toBe("own\n");
    await machine.driver.drives.destroy(drive, soon());
  });

  test("is refused in a directory of the host, and leaves no trace", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }] = await launch();
    const asked = mount({ ...at(drive, { path: "/usr/local" }), sandboxId });
    await expect(asked).rejects.toMatchObject({ code: "mount_refused" });
    await unmount(sandboxId, "/usr/local");
    expect(statSync("/usr/local").uid).toBe(0);
  });

  test("of a subdirectory that was replaced is reported, and a removed subdirectory is not created again", async () => {
    const drive = await makeDrive();
    const [{ sandboxId: id }] = await launch([at(drive, { subpath: "/part" })]);
    renameSync(join(dataOf(drive), "part"), join(dataOf(drive), "old"));
    mkdirSync(join(dataOf(drive), "part"));
    expect(await seenIn(id)).toMatchObject([{ problem: { code: "drive_replaced" } }]);
    await mount({ ...at(drive, { subpath: "/part" }), sandboxId: id }, false);
    expect(await seenIn(id)).toMatchObject([{ problem: null }]);
    rmSync(join(dataOf(drive), "part"), { recursive: true });
    const again = mount({ ...at(drive, { subpath: "/part" }), sandboxId: id }, false);
    await expect(again).rejects.toMatchObject({ code: "drive_gone" });
    expect(existsSync(join(dataOf(drive), "part"))).toBe(false);
  });

  test("restores owner and mode of its directory, even if the server died after the mount", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch();
    await run(link, "mkdir -m 700 /mine; chown 3:4 /mine", "root");
    await mount({ ...at(drive, { path: "/mine" }), sandboxId });
    // The state after a server died between the mount and the update of its note.
    const note = layout().sandbox(sandboxId).mounts;
    const { mounts } = JSON.parse(readFileSync(note, "utf8"));
    writeFileSync(note, JSON.stringify({ mounts: [{ ...mounts[0], mounted: null }] }));
    await mount({ ...at(drive, { path: "/mine" }), sandboxId }, false);
    await unmount(sandboxId, "/mine");
    expect(await outputOf(link, "stat -c '%u %g %a' /mine")).toBe("3 4 700\n");
    expect(onDisk(sandboxId, "mine")).toBe(true);
  });

  test("is established again if its notes can't be read", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive)]);
    writeFileSync(layout().sandbox(sandboxId).mounts, "");
    expect(await seenIn(sandboxId)).toEqual([]);
    await mount({ ...at(drive), sandboxId }, false);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: null }]);
    expect(await outputOf(link, "grep -c ' /workspace ' /proc/self/mountinfo")).toBe("1\n");
  });
});

describe("a drive that is removed from outside", () => {
  const writes = "echo lost > /workspace/lost";

  test("is reported if its directory is deleted, and not even root can write to the mount point", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive)]);
    rmSync(dataOf(drive), { recursive: true });
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_gone" }, outside: null }]);
    for (const user of ["", "root"]) expect(await outputOf(link, writes, user)).toMatch(/\(\d+\)$/);
    await unmount(sandboxId, "/workspace", true);
    for (const user of ["", "root"]) expect(await outputOf(link, writes, user)).toMatch(/\(\d+\)$/);
    expect(existsSync(join(layout().sandbox(sandboxId).upper, "workspace", "lost"))).toBe(false);
  });

  test("is reported if another directory takes its place", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }] = await launch([at(drive)]);
    renameSync(dataOf(drive), `${dataOf(drive)}.old`);
    mkdirSync(dataOf(drive));
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_replaced" } }]);
  });

  test("is reported if its file system is unmounted, and opening the drive mounts it again", async () => {
    const drive = await makeDrive(32);
    const [{ sandboxId }, link] = await launch([at(drive)]);
    await run(link, "echo kept > /workspace/f");
    execFileSync("umount", ["-l", layout().drive(drive).disk]);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_unmounted" } }]);
    expect((await machine.driver.drives.observe([drive], soon())).get(drive)).toMatchObject({
      problem: { code: "drive_unmounted" },
    });
    await machine.driver.drives.open(drive, soon());
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: null }]);
    expect(await outputOf(link, "cat /workspace/f")).toBe("kept\n");
  });

  test("is reported if it is unmounted inside, and no process can write to the mount point", async () => {
    const drive = await makeDrive();
    const [instance, link] = await launch([at(drive)]);
    const { sandboxId } = instance;
    const { pid } = processOf(instance);
    execFileSync("nsenter", ["-t", String(pid), "-m", "umount", "/workspace"]);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "mount_gone" } }]);
    for (const user of ["", "root"]) expect(await outputOf(link, writes, user)).toMatch(/denied|\(\d+\)$/);
    expect(
      await outputOf(link, "chmod 777 /workspace; chown 0 /workspace; ls -A /workspace", "root"),
    ).toContain("not permitted");
    await mount({ ...at(drive), sandboxId });
    expect(await outputOf(link, `${writes}; cat /workspace/lost`)).toBe("lost\n");
  });
});

describe.skipIf(!hasCriu)("memory standby with a drive", () => {
  async function suspend({ sandboxId, generation }: Instance) {
    for (const link of links.splice(0)) link.close();
    await machine.driver.freeze(sandboxId, soon());
    const checkpoint = await machine.driver.checkpoint(
      { sandboxId, generation, id: newCheckpointId() },
      soon(),
    );
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    return checkpoint;
  }

  async function wake(
    instance: Instance,
    checkpoint: Awaited<ReturnType<typeof suspend>>,
    mounts: readonly MountPoint[],
  ) {
    const { sandboxId, generation } = instance;
    const { name, image } = orderFor(sandboxId);
    const order = {
      sandboxId,
      name,
      generation: generation + 1,
      checkpoint,
      image,
      resources: DEFAULT_RESOURCES,
      mounts,
    };
    const next = await machine.driver.restore(order, soon());
    expect(existsSync(join(layout().sandbox(sandboxId).staged, "0"))).toBe(false);
    await machine.driver.thaw(sandboxId, soon());
    return [next, await connect(next)] as const;
  }

  const start = async (link: Link, command: string, cwd = "/") => {
    const id = newExecId();
    const order = {
      id,
      argv: ["/bin/sh", "-c", command],
      env: { PATH: "/usr/bin:/bin" },
      cwd,
      user: "",
      timeoutMs: 0,
      stdin: false,
      tty: null,
    };
    await link.startExec({ ...order, journalCapBytes: 1_048_576, digest: "0".repeat(64) }, soon());
    return id;
  };

  test("restores mounts with their subpaths and options, open files and working directories", async () => {
    const drive = await makeDrive();
    const limited = await makeDrive(32);
    const mounts = [
      at(drive),
      at(drive, { path: "/part", subpath: "/a/part", readOnly: true }),
      at(limited, { path: "/limited" }),
    ];
    const [instance, link] = await launch(mounts);
    await start(link, "exec 3>>log; while :; do echo tick >&3; sleep 0.1; done", "/workspace");
    await start(
      link,
      "cd sub 2>/dev/null || mkdir sub && cd sub; while :; do pwd > /limited/where; sleep 0.1; done",
      "/limited",
    );
    await expect.poll(() => outputOf(link, "wc -l < /workspace/log")).not.toBe("0\n");
    const checkpoint = await suspend(instance);
    const before = readFileSync(join(dataOf(drive), "log"), "utf8").length;
    const [next, back] = await wake(instance, checkpoint, mounts);
    expect(await seenIn(next.sandboxId)).toMatchObject(mounts.map(({ path }) => ({ path, problem: null })));
    await expect.poll(() => statSync(join(dataOf(drive), "log")).size).toBeGreaterThan(before);
    expect(await outputOf(back, "cat /limited/where; touch /part/x")).toContain("/limited/sub\n");
    expect(await outputOf(back, "touch /part/x", "root")).toContain("Read-only");
    const line = readFileSync(`/proc/${processOf(next).pid}/mountinfo`, "utf8")
      .split("\n")
      .find((each) => each.includes(" /workspace "));
    expect(line).toMatch(/nosuid,nodev/);
    for (const each of mounts) {
      const inside = await back.files.stat(each.path, { follow: false }, soon());
      expect((await seenIn(next.sandboxId)).find(({ path }) => path === each.path)?.outside).toEqual({
        dev: inside.dev,
        ino: inside.ino,
      });
    }
    // A repeated mount request changes nothing, and the instance can be suspended again.
    for (const each of mounts) await mount({ ...each, sandboxId: next.sandboxId });
    const again = await suspend(next);
    const [last, late] = await wake(next, again, mounts);
    expect(await outputOf(late, "cat /limited/where")).toBe("/limited/sub\n");
    await unmount(last.sandboxId);
  });

  test("succeeds although another sandbox has changed the open files meanwhile", async () => {
    const drive = await makeDrive();
    const [instance, link] = await launch([at(drive)]);
    const [, other] = await launch([at(drive)]);
    await run(link, "cd /workspace; for f in a b c; do echo first > $f; done");
    const hold = (open: string) => start(link, `exec ${open}; while :; do sleep 0.1; done`, "/workspace");
    const readers = [await hold("3<>a"), await hold("3<b"), await hold("3>>c")];
    await start(link, "exec 3<a; while :; do cat <&3 >> /tmp/read; sleep 0.1; done", "/workspace");
    const map =
      "import mmap,time; f=open('/workspace/b'); m=mmap.mmap(f.fileno(),0,prot=1); open('/tmp/mapped','w'); time.sleep(1000)";
    await start(link, `python3 -c "${map}"`);
    await expect.poll(() => outputOf(link, "ls /tmp/mapped"), { timeout: 15_000 }).toBe("/tmp/mapped\n");
    links.splice(links.indexOf(other), 1);
    const checkpoint = await suspend(instance);
    await run(
      other,
      "cd /workspace; for f in a b c; do echo more and more >> $f; chmod 600 $f; done",
      "root",
    );
    const [, back] = await wake(instance, checkpoint, [at(drive)]);
    for (const id of readers)
      expect((await back.listExecs(soon())).find((exec) => exec.id === id)).toMatchObject({
        state: "running",
      });
    await expect
      .poll(() => outputOf(back, "cat /tmp/read"), { timeout: 15_000 })
      .toBe("first\nmore and more\n");
    other.close();
  });

  test("is refused while the sandbox holds a lock in the drive", async () => {
    const drive = await makeDrive();
    const [{ sandboxId, generation }, link] = await launch([at(drive)]);
    await start(link, "exec 3>l; flock 3; while :; do sleep 0.1; done", "/workspace");
    await expect.poll(() => outputOf(link, "flock -n /workspace/l true")).toBe("(1)");
    for (const each of links.splice(0)) each.close();
    await machine.driver.freeze(sandboxId, soon());
    const id = newCheckpointId();
    await expect(machine.driver.checkpoint({ sandboxId, generation, id }, soon())).rejects.toThrow("lock");
    await machine.driver.thaw(sandboxId, soon());
  });

  test("succeeds without the drive, and blocks writes to its mount point until it is mounted again", async () => {
    const drive = await makeDrive();
    const [instance, link] = await launch([at(drive)]);
    await run(link, "echo kept > /tmp/kept");
    const checkpoint = await suspend(instance);
    renameSync(dataOf(drive), `${dataOf(drive)}.away`);
    const [{ sandboxId }, back] = await wake(instance, checkpoint, [at(drive)]);
    expect(await outputOf(back, "cat /tmp/kept; ls -A /workspace")).toBe("kept\n");
    for (const user of ["", "root"])
      expect(await outputOf(back, "echo x > /workspace/x", user)).toContain("denied");
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_gone" } }]);
    await expect(mount({ ...at(drive), sandboxId })).rejects.toMatchObject({ code: "drive_gone" });
    renameSync(`${dataOf(drive)}.away`, dataOf(drive));
    await mount({ ...at(drive), sandboxId });
    expect(await outputOf(back, "echo x > /workspace/x; cat /workspace/x")).toBe("x\n");
  });

  test("does not follow a link that another sandbox puts in place of the subdirectory", async () => {
    const drive = await makeDrive();
    const [instance] = await launch([at(drive, { subpath: "/sub" })]);
    const checkpoint = await suspend(instance);
    rmSync(join(dataOf(drive), "sub"), { recursive: true });
    symlinkSync("/etc", join(dataOf(drive), "sub"));
    const [, back] = await wake(instance, checkpoint, [at(drive, { subpath: "/sub" })]);
    expect(await outputOf(back, "ls -A /workspace")).toBe("");
  });

  test("gives a fork its own drives, and not those of its source", async () => {
    const [drive, own] = [await makeDrive(), await makeDrive()];
    const [instance, link] = await launch([
      at(drive),
      at(drive, { path: "/second" }),
      at(drive, { path: "/reading" }),
    ]);
    await run(link, "echo shared > /workspace/f; echo mem > /tmp/mem");
    for (const each of links.splice(0)) each.close();
    const { sandboxId, generation } = instance;
    await machine.driver.freeze(sandboxId, soon());
    const id = newCheckpointId();
    const maxBytes = 1_000_000_000;
    await machine.driver.save({ sandboxId, generation, id, kind: "memory", journals: [], maxBytes }, soon());
    const saved = newCheckpointId();
    await machine.driver.save(
      { sandboxId, generation, id: saved, kind: "files", journals: [], maxBytes },
      soon(),
    );
    await machine.driver.thaw(sandboxId, soon());
    for (const [checkpoint, kind] of [
      [id, "memory"],
      [saved, "files"],
    ] as const) {
      const forkId = newSandboxId();
      sandboxes.push(forkId);
      const mounts = [at(own), at(drive, { path: "/reading", readOnly: true })];
      const fork = { sandboxId, id: checkpoint, kind, generation };
      const made = await machine.driver.launch(
        orderFor(forkId, { generation: generation + 1, fork, mounts }),
        soon(),
      );
      for (const each of mounts) await mount({ ...each, sandboxId: forkId });
      const back = await connect(made);
      expect(
        await outputOf(
          back,
          "cat /tmp/mem; cat /workspace/f; echo own > /workspace/g; echo mine > /second/h; ls /second",
          "root",
        ),
      ).toMatch(/^mem\ncat: .*No such file.*\nh\n$/);
      expect(existsSync(join(dataOf(drive), "h"))).toBe(false);
      expect(await outputOf(back, "cat /reading/f; echo x > /reading/f", "root")).toMatch(
        /^shared\n.*Read-only/,
      );
      expect(await seenIn(forkId)).toMatchObject([
        { driveId: own, problem: null },
        { driveId: drive, problem: null },
      ]);
    }
  });
});

describe("a cold start", () => {
  test("blocks writes to the mount point until the drive is mounted again", async () => {
    const drive = await makeDrive();
    const [instance] = await launch([at(drive)]);
    const { sandboxId } = instance;
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    const order = orderFor(sandboxId, { generation: 2, restart: true });
    const next = await machine.driver.launch(order, soon());
    const link = await connect(next);
    expect(await outputOf(link, "echo lost > /workspace/lost", "root")).toMatch(/denied|\(\d+\)$/);
    await mount({ ...at(drive), sandboxId });
    expect(await outputOf(link, "echo found > /workspace/found; cat /workspace/found")).toBe("found\n");
    expect(existsSync(join(dataOf(drive), "found"))).toBe(true);
  });
});

describe("creating and removing a drive", () => {
  test("restarts an aborted creation, and leaves an existing drive unchanged", async () => {
    const id = newDriveId();
    drives.push(id);
    const { dir } = layout().drive(id);
    mkdirSync(join(dir, "data", "half"), { recursive: true });
    await machine.driver.drives.make({ id, sizeMb: null }, soon());
    expect(existsSync(join(dataOf(id), "half"))).toBe(false);
    mkdirSync(join(dataOf(id), "kept"));
    await machine.driver.drives.make({ id, sizeMb: null }, soon());
    expect(existsSync(join(dataOf(id), "kept"))).toBe(true);
    expect(await machine.driver.drives.list(soon())).toContain(id);
  });

  test("fails while the drive is mounted in a sandbox", async () => {
    const drive = await makeDrive(32);
    const [{ sandboxId }] = await launch([at(drive)]);
    await expect(machine.driver.drives.destroy(drive, soon())).rejects.toThrow("in use");
    await machine.driver.unmount(sandboxId, "/workspace", { keepClosed: true }, soon());
    await machine.driver.drives.destroy(drive, soon());
    expect((await machine.driver.drives.observe([drive], soon())).get(drive)).toMatchObject({
      seen: "absent",
    });
  });

  test("a drive with its own file system can be opened after a reboot of the host", async () => {
    const drive = await makeDrive(32);
    mkdirSync(join(dataOf(drive), "kept"));
    await machine.reboot();
    expect((await machine.driver.drives.observe([drive], soon())).get(drive)).toMatchObject({
      problem: { code: "drive_unmounted" },
    });
    await machine.driver.drives.open(drive, soon());
    expect(existsSync(join(dataOf(drive), "kept"))).toBe(true);
  });
});

/** Drives in real instances: mounted from outside, kept through memory standby, forks and cold starts. */
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
import { orderFor, run } from "../suite.ts";
import { findCriu } from "./criu-binary.ts";
import { dataIn } from "./drives.ts";
import { layoutOf } from "./layout.ts";
import { type TestMachine, testMachine } from "./testing.ts";

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
  for (const id of drives.splice(0)) await machine.drives.destroy(id, soon());
});
afterAll(() => machine?.dispose());

const layout = () => layoutOf(machine.stateDir, machine.installation);
const dataOf = (id: DriveId) => dataIn(layout().drive(id));

async function makeDrive(sizeMb: number | null = null): Promise<DriveId> {
  const id = newDriveId();
  drives.push(id);
  await machine.drives.make({ id, sizeMb }, soon());
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
  if (seen?.seen !== "present") throw new Error(`it is ${seen?.seen}`);
  return seen.mounts;
};
const says = async (link: Link, command: string, user = "") => {
  const { output, exitCode } = await run(link, command, user);
  return exitCode === 0 ? output : `${output}(${exitCode})`;
};

describe("a drive", () => {
  test("is written by root and by uid 1000 alike, whoever made what is in it", async () => {
    const [{ sandboxId }, link] = await launch([at(await makeDrive())]);
    expect(await says(link, "echo a > /workspace/mine && mkdir /workspace/dir")).toBe("");
    expect(
      await says(
        link,
        "echo b >> /workspace/mine; echo c > /workspace/dir/r; mkdir /workspace/roots",
        "root",
      ),
    ).toBe("");
    expect(
      await says(
        link,
        "echo d >> /workspace/dir/r; echo e > /workspace/roots/f; cat /workspace/mine /workspace/dir/r",
      ),
    ).toBe("a\nb\nc\nd\n");
    expect(await seenIn(sandboxId)).toMatchObject([{ path: "/workspace", problem: null }]);
  });

  test("shows the same files in every sandbox and to its own file view, at once", async () => {
    const drive = await makeDrive();
    const [, one] = await launch([at(drive)]);
    const [, other] = await launch([at(drive, { path: "/home/user/deep/down" })]);
    await run(one, "echo hi > /workspace/a; ln -s /etc/passwd /workspace/link; mkfifo /workspace/pipe");
    expect(await says(other, "cat deep/down/a 2>/dev/null || cat /home/user/deep/down/a")).toBe("hi\n");
    const { files, close } = await machine.drives.files(drive, soon());
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

  test("has the size that it was made with, and no more", async () => {
    const drive = await makeDrive(32);
    const [, link] = await launch([at(drive)]);
    const { exitCode, output } = await run(link, "head -c 64M /dev/zero > /workspace/big; echo done");
    expect([exitCode, output]).toEqual([0, expect.stringContaining("No space left")]);
    expect(await says(link, "echo fine > /tmp/x && cat /tmp/x")).toBe("fine\n");
    const { usedBytes, freeBytes } = await machine.drives.usage(drive, soon());
    expect(usedBytes).toBeGreaterThan(10_000_000);
    expect(freeBytes).toBeLessThan(5_000_000);
  });

  test("of which a part is mounted shows that part, made where it was missing, and no link leads elsewhere", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive, { subpath: "/a/b" }), at(drive, { path: "/all" })]);
    await run(link, "echo x > /workspace/f; ln -s /etc /all/etc");
    expect(await says(link, "cat /all/a/b/f")).toBe("x\n");
    const planted = mount({ ...at(drive, { path: "/w2", subpath: "/etc" }), sandboxId });
    await expect(planted).rejects.toMatchObject({ code: "mount_refused" });
    await unmount(sandboxId, "/w2");
  });

  test("that is mounted for reading is not written, not even by root", async () => {
    const drive = await makeDrive();
    const [, writer] = await launch([at(drive)]);
    const [, reader] = await launch([at(drive, { readOnly: true })]);
    await run(writer, "echo x > /workspace/f");
    expect(await says(reader, "cat /workspace/f")).toBe("x\n");
    expect(await says(reader, "touch /workspace/g", "root")).toContain("Read-only");
  });

  test("runs no set-uid program of another's and has no devices", async () => {
    const drive = await makeDrive();
    const [{ pid }] = await launch([at(drive)]);
    const line = readFileSync(`/proc/${pid}/mountinfo`, "utf8")
      .split("\n")
      .find((each) => each.includes(" /workspace "));
    expect(line).toMatch(/nosuid,nodev/);
  });

  test("is taken off again, and the directory under it is what it was", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch();
    await run(link, "mkdir -m 750 /home/user/w; echo under > /home/user/w/u");
    const path = "/home/user/w";
    await mount({ ...at(drive, { path }), sandboxId });
    expect(await says(link, `ls -A ${path}; echo over > ${path}/o`)).toBe("");
    // Also while something is in it.
    await run(link, `sh -c 'cd ${path}; sleep 100' >/dev/null 2>&1 &`);
    await unmount(sandboxId, path);
    await unmount(sandboxId, path);
    expect(
      await says(link, `cat ${path}/u; stat -c '%a %u' ${path}; echo more > ${path}/m; ls ${path}`),
    ).toBe("under\n750 1000\nm\nu\n");
    expect(await seenIn(sandboxId)).toEqual([]);
  });

  test.each([
    ["a file", "echo x > /w", "/w"],
    ["a link to a directory", "ln -s /home /w", "/w"],
    ["below a link", "ln -s /home /w", "/w/x"],
    ["what only the host writes", "true", "/usr/w"],
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

  test("is there once, and in the place of another only where it is asked for", async () => {
    const [drive, second] = [await makeDrive(), await makeDrive()];
    const [{ sandboxId, pid }] = await launch([at(drive), at(drive)]);
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

  test("that is carried away with the directory above it is told, and put back where it belongs", async () => {
    const drive = await makeDrive();
    const path = "/home/user/p/w";
    const [{ sandboxId, pid }, link] = await launch([at(drive, { path })]);
    await run(link, "cd /home/user; mv p q");
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "mount_gone" } }]);
    await mount({ ...at(drive, { path }), sandboxId });
    expect(await seenIn(sandboxId)).toMatchObject([{ path, problem: null }]);
    const table = readFileSync(`/proc/${pid}/mountinfo`, "utf8");
    expect(table.match(/ \/home\/user\/[pq]\/w /g)).toEqual([` ${path} `]);
    expect(await says(link, "cd /home/user; echo own > q/w/own; cat q/w/own; echo in > p/w/in")).toBe(
      "own\n",
    );
    expect(existsSync(join(dataOf(drive), "in"))).toBe(true);
  });

  test("that is carried away is not called unmounted before it is", async () => {
    const drive = await makeDrive(32);
    const path = "/home/user/p/w";
    const [{ sandboxId }, link] = await launch([at(drive, { path })]);
    await run(link, "cd /home/user; mv p q; ln -s q p");
    await unmount(sandboxId, path);
    expect(await says(link, "grep -c q/w /proc/self/mountinfo")).toBe("0\n(1)");
    expect(await says(link, "cd /home/user; echo own > q/w/own; cat p/w/own")).toBe("own\n");
    await machine.drives.destroy(drive, soon());
  });

  test("is refused on what is the host's, and nothing is left of that", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }] = await launch();
    const asked = mount({ ...at(drive, { path: "/usr/local" }), sandboxId });
    await expect(asked).rejects.toMatchObject({ code: "mount_refused" });
    await unmount(sandboxId, "/usr/local");
    expect(statSync("/usr/local").uid).toBe(0);
  });

  test("of a part that another directory takes the place of is told, and of one that is removed not made anew", async () => {
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

  test("gives its directory back as it was, whatever became of the server in between", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch();
    await run(link, "mkdir -m 700 /mine; chown 3:4 /mine", "root");
    await mount({ ...at(drive, { path: "/mine" }), sandboxId });
    // As a server leaves it that dies between the mount and what it notes of it.
    const note = layout().sandbox(sandboxId).mounts;
    const { mounts } = JSON.parse(readFileSync(note, "utf8"));
    writeFileSync(note, JSON.stringify({ mounts: [{ ...mounts[0], mounted: null }] }));
    await mount({ ...at(drive, { path: "/mine" }), sandboxId }, false);
    await unmount(sandboxId, "/mine");
    expect(await says(link, "stat -c '%u %g %a' /mine")).toBe("3 4 700\n");
    expect(onDisk(sandboxId, "mine")).toBe(true);
  });

  test("is made again where what is noted of it can't be read", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive)]);
    writeFileSync(layout().sandbox(sandboxId).mounts, "");
    expect(await seenIn(sandboxId)).toEqual([]);
    await mount({ ...at(drive), sandboxId }, false);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: null }]);
    expect(await says(link, "grep -c ' /workspace ' /proc/self/mountinfo")).toBe("1\n");
  });
});

describe("a drive that is taken away behind our back", () => {
  const writes = "echo lost > /workspace/lost";

  test("by its directory is told, and nothing is written elsewhere, not by root either", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }, link] = await launch([at(drive)]);
    rmSync(dataOf(drive), { recursive: true });
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_gone" }, outside: null }]);
    for (const user of ["", "root"]) expect(await says(link, writes, user)).toMatch(/\(\d+\)$/);
    await unmount(sandboxId, "/workspace", true);
    for (const user of ["", "root"]) expect(await says(link, writes, user)).toMatch(/\(\d+\)$/);
    expect(existsSync(join(layout().sandbox(sandboxId).upper, "workspace", "lost"))).toBe(false);
  });

  test("by another in its place is told", async () => {
    const drive = await makeDrive();
    const [{ sandboxId }] = await launch([at(drive)]);
    renameSync(dataOf(drive), `${dataOf(drive)}.old`);
    mkdirSync(dataOf(drive));
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_replaced" } }]);
  });

  test("by its file system is told, and it is mounted again when it is opened", async () => {
    const drive = await makeDrive(32);
    const [{ sandboxId }, link] = await launch([at(drive)]);
    await run(link, "echo kept > /workspace/f");
    execFileSync("umount", ["-l", layout().drive(drive).disk]);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_unmounted" } }]);
    expect((await machine.drives.observe([drive], soon())).get(drive)).toMatchObject({
      problem: { code: "drive_unmounted" },
    });
    await machine.drives.open(drive, soon());
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: null }]);
    expect(await says(link, "cat /workspace/f")).toBe("kept\n");
  });

  test("from inside is told, and nobody writes under it", async () => {
    const drive = await makeDrive();
    const [{ sandboxId, pid }, link] = await launch([at(drive)]);
    execFileSync("nsenter", ["-t", String(pid), "-m", "umount", "/workspace"]);
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "mount_gone" } }]);
    for (const user of ["", "root"]) expect(await says(link, writes, user)).toMatch(/denied|\(\d+\)$/);
    expect(await says(link, "chmod 777 /workspace; chown 0 /workspace; ls -A /workspace", "root")).toContain(
      "not permitted",
    );
    await mount({ ...at(drive), sandboxId });
    expect(await says(link, `${writes}; cat /workspace/lost`)).toBe("lost\n");
  });
});

describe.skipIf(!hasCriu)("memory that goes to disk with a drive", () => {
  async function sleep({ sandboxId, generation }: Instance) {
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
    checkpoint: Awaited<ReturnType<typeof sleep>>,
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

  test("comes back with it, open files, working directories, parts and rights included", async () => {
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
    await expect.poll(() => says(link, "wc -l < /workspace/log")).not.toBe("0\n");
    const checkpoint = await sleep(instance);
    const before = readFileSync(join(dataOf(drive), "log"), "utf8").length;
    const [next, back] = await wake(instance, checkpoint, mounts);
    expect(await seenIn(next.sandboxId)).toMatchObject(mounts.map(({ path }) => ({ path, problem: null })));
    await expect.poll(() => statSync(join(dataOf(drive), "log")).size).toBeGreaterThan(before);
    expect(await says(back, "cat /limited/where; touch /part/x")).toContain("/limited/sub\n");
    expect(await says(back, "touch /part/x", "root")).toContain("Read-only");
    const line = readFileSync(`/proc/${next.pid}/mountinfo`, "utf8")
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
    // Mounted again is mounted once, and it can sleep again.
    for (const each of mounts) await mount({ ...each, sandboxId: next.sandboxId });
    const again = await sleep(next);
    const [last, late] = await wake(next, again, mounts);
    expect(await says(late, "cat /limited/where")).toBe("/limited/sub\n");
    await unmount(last.sandboxId);
  });

  test("comes back though others have changed, in the meantime, what it has open", async () => {
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
    await expect.poll(() => says(link, "ls /tmp/mapped"), { timeout: 15_000 }).toBe("/tmp/mapped\n");
    links.splice(links.indexOf(other), 1);
    const checkpoint = await sleep(instance);
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
    await expect.poll(() => says(back, "cat /tmp/read"), { timeout: 15_000 }).toBe("first\nmore and more\n");
    other.close();
  });

  test("is not put to sleep while it holds a lock that others may want", async () => {
    const drive = await makeDrive();
    const [{ sandboxId, generation }, link] = await launch([at(drive)]);
    await start(link, "exec 3>l; flock 3; while :; do sleep 0.1; done", "/workspace");
    await expect.poll(() => says(link, "flock -n /workspace/l true")).toBe("(1)");
    for (const each of links.splice(0)) each.close();
    await machine.driver.freeze(sandboxId, soon());
    const id = newCheckpointId();
    await expect(machine.driver.checkpoint({ sandboxId, generation, id }, soon())).rejects.toThrow("lock");
    await machine.driver.thaw(sandboxId, soon());
  });

  test("whose drive is gone comes back without, and writes nothing elsewhere until it has it again", async () => {
    const drive = await makeDrive();
    const [instance, link] = await launch([at(drive)]);
    await run(link, "echo kept > /tmp/kept");
    const checkpoint = await sleep(instance);
    renameSync(dataOf(drive), `${dataOf(drive)}.away`);
    const [{ sandboxId }, back] = await wake(instance, checkpoint, [at(drive)]);
    expect(await says(back, "cat /tmp/kept; ls -A /workspace")).toBe("kept\n");
    for (const user of ["", "root"])
      expect(await says(back, "echo x > /workspace/x", user)).toContain("denied");
    expect(await seenIn(sandboxId)).toMatchObject([{ problem: { code: "drive_gone" } }]);
    await expect(mount({ ...at(drive), sandboxId })).rejects.toMatchObject({ code: "drive_gone" });
    renameSync(`${dataOf(drive)}.away`, dataOf(drive));
    await mount({ ...at(drive), sandboxId });
    expect(await says(back, "echo x > /workspace/x; cat /workspace/x")).toBe("x\n");
  });

  test("is not led elsewhere by what another sandbox puts in the place of its part", async () => {
    const drive = await makeDrive();
    const [instance] = await launch([at(drive, { subpath: "/sub" })]);
    const checkpoint = await sleep(instance);
    rmSync(join(dataOf(drive), "sub"), { recursive: true });
    symlinkSync("/etc", join(dataOf(drive), "sub"));
    const [, back] = await wake(instance, checkpoint, [at(drive, { subpath: "/sub" })]);
    expect(await says(back, "ls -A /workspace")).toBe("");
  });

  test("is forked with the drives that the fork is to have, and without the others", async () => {
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
        await says(
          back,
          "cat /tmp/mem; cat /workspace/f; echo own > /workspace/g; echo mine > /second/h; ls /second",
          "root",
        ),
      ).toMatch(/^mem\ncat: .*No such file.*\nh\n$/);
      expect(existsSync(join(dataOf(drive), "h"))).toBe(false);
      expect(await says(back, "cat /reading/f; echo x > /reading/f", "root")).toMatch(/^shared\n.*Read-only/);
      expect(await seenIn(forkId)).toMatchObject([
        { driveId: own, problem: null },
        { driveId: drive, problem: null },
      ]);
    }
  });
});

describe("a cold start", () => {
  test("has the drive again, and is closed where the drive was when that is gone", async () => {
    const drive = await makeDrive();
    const [instance] = await launch([at(drive)]);
    const { sandboxId } = instance;
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    const order = orderFor(sandboxId, { generation: 2, restart: true });
    const next = await machine.driver.launch(order, soon());
    const link = await connect(next);
    expect(await says(link, "echo lost > /workspace/lost", "root")).toMatch(/denied|\(\d+\)$/);
    await mount({ ...at(drive), sandboxId });
    expect(await says(link, "echo found > /workspace/found; cat /workspace/found")).toBe("found\n");
    expect(existsSync(join(dataOf(drive), "found"))).toBe(true);
  });
});

describe("making and removing", () => {
  test("one that was begun is made anew, one that is there is left as it is", async () => {
    const id = newDriveId();
    drives.push(id);
    const { dir } = layout().drive(id);
    mkdirSync(join(dir, "data", "half"), { recursive: true });
    await machine.drives.make({ id, sizeMb: null }, soon());
    expect(existsSync(join(dataOf(id), "half"))).toBe(false);
    mkdirSync(join(dataOf(id), "kept"));
    await machine.drives.make({ id, sizeMb: null }, soon());
    expect(existsSync(join(dataOf(id), "kept"))).toBe(true);
    expect(await machine.drives.list(soon())).toContain(id);
  });

  test("one that is still mounted somewhere is not called removed", async () => {
    const drive = await makeDrive(32);
    const [{ sandboxId }] = await launch([at(drive)]);
    await expect(machine.drives.destroy(drive, soon())).rejects.toThrow("in use");
    await machine.driver.unmount(sandboxId, "/workspace", { keepClosed: true }, soon());
    await machine.drives.destroy(drive, soon());
    expect((await machine.drives.observe([drive], soon())).get(drive)).toMatchObject({ seen: "absent" });
  });

  test("comes back after a restart of the host", async () => {
    const drive = await makeDrive(32);
    mkdirSync(join(dataOf(drive), "kept"));
    await machine.reboot();
    expect((await machine.drives.observe([drive], soon())).get(drive)).toMatchObject({
      problem: { code: "drive_unmounted" },
    });
    await machine.drives.open(drive, soon());
    expect(existsSync(join(dataOf(drive), "kept"))).toBe(true);
  });
});

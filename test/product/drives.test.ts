import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from "node:fs";
import { join } from "node:path";
import { NUMBERS } from "@holdfast/contract";
import type { Drive, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";

/** Number of repetitions of the loops of rounds. */
const TIMES = Number(process.env.HOLDFAST_DRIVE_ROUNDS ?? 2);
const PATIENCE_MS = 60_000 + TIMES * 30_000;
/** Time limit for reporting changes made from outside. */
const NOTICED_MS = 15_000;

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start({
    HOLDFAST_NUMBERS_JSON: JSON.stringify({ observeEveryMs: 1_000, maintainEveryMs: 1_000 }),
  });
  client = server.client();
});
afterEach(async () => {
  const { items: boxes } = await client.sandboxes.list({ limit: 1000 });
  await Promise.all(boxes.map(async ({ id }) => (await client.sandboxes.get(id)).delete()));
  const { items: drives } = await client.drives.list();
  await Promise.all(drives.map(({ id }) => client.drives.delete(id)));
}, 60_000);
afterAll(async () => {
  client?.close();
  await server[Symbol.asyncDispose]();
});

const at = (drive: Drive, path = "/workspace") => [{ drive: drive.name, path }];
const dirOf = (drive: Drive) => join(server.dir, "drives", drive.id);
/** Returns the host path of a file on the sandbox's own disk. */
const onRootDisk = (box: Sandbox, path: string) => join(server.dir, "sandboxes", box.id, "upper", path);
const noticed = { timeout: NOTICED_MS, interval: 100 };

const errorOf = async (answer: Response) => ((await answer.json()) as { error?: object }).error;

/** Returns the error of a single write under the mount. */
const refusal = async (box: Sandbox, user?: string) => {
  const body = JSON.stringify({ command: "echo lost > /workspace/lost", user });
  const headers = { "content-type": "application/json" };
  return errorOf(await server.fetch(`/v1/sandboxes/${box.id}/execs`, { method: "POST", headers, body }));
};

/** Writes, reads and lists files through every way of access, as both kinds of user. */
async function round(box: Sandbox, drive: Drive, name: string): Promise<void> {
  const path = `/workspace/${name}`;
  const wrote = await box.exec(`printf %s ${name} > ${path}`, {
    user: name.endsWith("0") ? "root" : undefined,
  });
  expect(wrote.exitCode).toBe(0);
  expect(await box.files.readText(path)).toBe(name);
  expect(await drive.files.readText(`/${name}`)).toBe(name);
  await box.files.write(`${path}.api`, name);
  await drive.files.write(`/${name}.drive`, name);
  expect((await box.exec(`cat ${path}.api ${path}.drive`)).stdout).toBe(`${name}${name}`);
  const names = [name, `${name}.api`, `${name}.drive`];
  for (const files of [await box.files.list("/workspace"), await drive.files.list("/")])
    expect(files.items.map((item) => item.name)).toEqual(expect.arrayContaining(names));
}

describe("a drive that is mounted", () => {
  it(
    "serves eight writers, readers and listers at once, right after it was mounted",
    async () => {
      for (let time = 0; time < TIMES; time += 1) {
        const drive = await client.drives.create({ name: `rounds-${time}` });
        const box = await client.sandboxes.create();
        expect(await box.mount(drive.name, "/workspace")).toMatchObject({ state: "proven", cause: null });
        await Promise.all(Array.from({ length: 8 }, (_, i) => round(box, drive, `file-${i}`)));
        await box.delete();
      }
    },
    PATIENCE_MS,
  );

  it.skipIf(!memoryStandby)(
    "serves three sandboxes that come out of standby, five times each",
    async () => {
      for (let time = 0; time < TIMES; time += 1) {
        const drive = await client.drives.create({ name: `asleep-${time}` });
        const boxes = await Promise.all([1, 2, 3].map(() => client.sandboxes.create({ mounts: at(drive) })));
        for (let each = 0; each < 5; each += 1) {
          await Promise.all(boxes.map((box) => box.standby()));
          await Promise.all(boxes.map((box, i) => round(box, drive, `box-${i}-round-${each}`)));
          for (const box of boxes) expect((await box.refresh()).mounts).toMatchObject([{ state: "proven" }]);
        }
        await Promise.all(boxes.map((box) => box.delete()));
      }
    },
    PATIENCE_MS,
  );

  it("is mounted once however often it is requested, and another drive at its path is a conflict", async () => {
    const [drive, other] = [await client.drives.create(), await client.drives.create()];
    const box = await client.sandboxes.create();
    const mounts = await Promise.all(Array.from({ length: 6 }, () => box.mount(drive.id, "/workspace")));
    expect(new Set(mounts.map(({ state }) => state))).toEqual(new Set(["proven"]));
    expect((await box.exec("grep -c ' /workspace ' /proc/self/mountinfo")).stdout).toBe("1\n");
    for (const path of ["/workspace", "/workspace/below"])
      await expect(box.mount(other.id, path)).rejects.toMatchObject({ code: "mount_conflict", status: 409 });
    await expect(box.mount(drive.id, "/workspace", { readOnly: true })).rejects.toMatchObject({
      code: "mount_conflict",
    });
    const rivals = await Promise.allSettled([box.mount(drive.id, "/two"), box.mount(other.id, "/two")]);
    expect(rivals.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
  });

  it.each([
    "/",
    "/proc",
    "/proc/x",
    "/sys",
    "/dev/shm",
    "/.holdfast",
    "/.holdfast/control",
    "/etc",
    "/usr",
    "/tmp",
  ])("is refused at %s", async (path) => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create();
    await expect(box.mount(drive.id, path)).rejects.toMatchObject({ code: "mount_refused", status: 422 });
    expect(await box.mounts()).toEqual([]);
    expect((await box.verify()).ok).toBe(true);
  });

  it("is unmounted while in use, and the files under it are visible again", async () => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create();
    await box.files.write("/home/user/w/under", "it");
    await box.mount(drive.id, "/home/user/w");
    const user = await box.execs.start("cd w; echo in; sleep 300");
    await vi.waitFor(async () => expect((await box.exec("pgrep -f 'sleep 300'")).exitCode).toBe(0));
    await box.unmount("/home/user/w");
    expect(await box.files.readText("/home/user/w/under")).toBe("it");
    expect((await box.exec("echo more > w/more; ls w")).stdout).toBe("more\nunder\n");
    await expect(box.unmount("/home/user/w")).rejects.toMatchObject({ code: "mount_not_found" });
    await user.cancel();
  });

  it.skipIf(!memoryStandby)(
    "keeps open files and working directories through standby, even if another process writes",
    async () => {
      const drive = await client.drives.create({ sizeMb: 64 });
      const box = await client.sandboxes.create({
        mounts: [{ drive: drive.name, path: "/w", subpath: "a/b" }],
      });
      const script =
        "cd /w && exec 3>>log 4<>both && while :; do date +%s%N >&3; echo x >&4; sleep 0.05; done";
      const run = await box.execs.start(script, { keepAwake: false });
      const size = async () => (await drive.files.stat("/a/b/log")).sizeBytes;
      await vi.waitFor(async () => expect(await size()).toBeGreaterThan(0), noticed);
      for (let time = 0; time < 3; time += 1) {
        await box.standby();
        const asleep = await size();
        // The same inode is seen, and has grown.
        const both = join(dirOf(drive), "disk", "data", "a", "b", "both");
        appendFileSync(both, "by another\n");
        await box.wake();
        await vi.waitFor(async () => expect(await size()).toBeGreaterThan(asleep), noticed);
        expect((await client.execs.get(run.id)).info.status).toBe("running");
      }
      await run.cancel();
    },
  );

  it.skipIf(!memoryStandby)("keeps a sandbox awake that holds a lock in it", async () => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create({ mounts: at(drive) });
    const run = await box.execs.start("cd /workspace; exec 3>l; flock 3; sleep 1000", { keepAwake: false });
    await vi.waitFor(
      async () => expect((await box.exec("flock -n /workspace/l true")).exitCode).toBe(1),
      noticed,
    );
    const answer = await server.fetch(`/v1/sandboxes/${box.id}/standby`, { method: "POST" });
    expect(await errorOf(answer)).toMatchObject({
      code: "standby_failed",
      message: expect.stringContaining("lock"),
    });
    expect((await box.refresh()).status).toBe("ready");
    await run.cancel();
    expect((await box.standby()).status).toBe("standby");
  });

  it("requested for an existing sandbox is mounted there, or the sandbox is not returned", async () => {
    const drive = await client.drives.create();
    const other = await client.drives.create();
    const first = await client.sandboxes.create({ name: "had" });
    const again = await client.sandboxes.getOrCreate({ name: "had", mounts: at(drive) });
    expect([again.id, again.info.mounts]).toMatchObject([
      first.id,
      [{ path: "/workspace", state: "proven" }],
    ]);
    const rival = client.sandboxes.getOrCreate({ name: "had", mounts: at(other) });
    await expect(rival).rejects.toMatchObject({ code: "mount_conflict" });
  });

  it.skipIf(!memoryStandby)("is mounted in a fork only if the fork requests it", async () => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create({ mounts: at(drive) });
    await box.exec("echo shared > /workspace/f; echo own > ~/own");
    const { id: fromCheckpoint } = await box.checkpoints.create();
    const without = await client.sandboxes.create({ fromCheckpoint });
    expect(without.info.mounts).toEqual([]);
    expect(
      (await without.exec("cat own; ls -A /workspace; echo mine > /workspace/mine; cat /workspace/mine"))
        .stdout,
    ).toBe("own\nmine\n");
    const having = await client.sandboxes.create({ fromCheckpoint, mounts: at(drive) });
    expect((await having.exec("cat own /workspace/f")).stdout).toBe("own\nshared\n");
    expect((await drive.files.list("/")).items.map(({ name }) => name)).toEqual(["f"]);
  });

  it("is proven again after the server was killed", async () => {
    const drive = await client.drives.create({ sizeMb: 64 });
    const boxes = await Promise.all(
      ["/one", "/two"].map((path) => client.sandboxes.create({ mounts: at(drive, path) })),
    );
    await boxes[0]?.exec("echo kept > /one/f");
    await server.kill("SIGKILL");
    await server.start();
    client.close();
    client = server.client();
    for (const { id } of boxes) {
      const box = await client.sandboxes.get(id);
      await vi.waitFor(async () => expect(await box.mounts()).toMatchObject([{ state: "proven" }]), noticed);
    }
    expect((await (await client.sandboxes.get(boxes[1]?.id ?? "")).exec("cat /two/f")).stdout).toBe("kept\n");
  });
});

describe("a drive that is deleted", () => {
  it("while a sandbox has it, awake or asleep, is refused with the sandbox's name", async () => {
    const drive = await client.drives.create({ name: "in-use" });
    const box = await client.sandboxes.create({ name: "its-user", mounts: at(drive) });
    await expect(drive.delete()).rejects.toMatchObject({
      code: "drive_mounted",
      status: 409,
      message: expect.stringContaining("its-user"),
    });
    await box.standby();
    await expect(drive.delete()).rejects.toMatchObject({ code: "drive_mounted" });
    expect((await box.exec("echo still > /workspace/f; cat /workspace/f")).stdout).toBe("still\n");
    await box.delete();
    await drive.delete();
    expect(existsSync(dirOf(drive))).toBe(false);
    await expect(client.drives.get("in-use")).rejects.toMatchObject({ code: "drive_not_found" });
  });

  it.each([null, 64])(
    "by force is unmounted from its sandboxes, and nothing is written in its place (%s MB)",
    async (sizeMb) => {
      const drive = await client.drives.create(sizeMb === null ? {} : { sizeMb });
      const box = await client.sandboxes.create({ mounts: at(drive) });
      await box.exec("echo x > /workspace/f");
      await drive.delete({ force: true });
      expect(existsSync(dirOf(drive))).toBe(false);
      await vi.waitFor(async () => expect((await box.refresh()).status).toBe("degraded"), noticed);
      for (const user of [undefined, "root"])
        expect(await refusal(box, user)).toMatchObject({
          code: "sandbox_degraded",
          retryable: true,
          dispatched: "no",
        });
      expect(existsSync(onRootDisk(box, "workspace/lost"))).toBe(false);
      await box.unmount("/workspace");
      await vi.waitFor(async () => expect((await box.refresh()).status).toBe("ready"), noticed);
      expect((await box.exec("echo own > /workspace/own; cat /workspace/own")).stdout).toBe("own\n");
    },
  );
});

describe("a drive whose files are removed from outside", () => {
  const LOSSES: Record<string, (drive: Drive) => void> = {
    "its directory is removed": (drive) =>
      rmSync(join(dirOf(drive), "data"), { recursive: true, force: true }),
    "all of it is moved away": (drive) => renameSync(dirOf(drive), join(server.dir, `away-${drive.id}`)),
  };

  it.each(Object.keys(LOSSES))(
    "because %s is reported in time, with a typed error, and nothing is written to the root disk",
    async (how) => {
      const drive = await client.drives.create();
      const box = await client.sandboxes.create({ mounts: at(drive) });
      const writer = await box.execs.start(
        "i=0; while :; do i=$((i+1)); echo $i > /workspace/$i; sleep 0.02; done",
        { user: "root" },
      );
      await vi.waitFor(
        async () => expect((await box.files.list("/workspace")).items).not.toEqual([]),
        noticed,
      );
      LOSSES[how]?.(drive);
      await vi.waitFor(async () => {
        expect(await box.refresh()).toMatchObject({
          status: "degraded",
          cause: { code: "mount_broken" },
          mounts: [{ state: "broken" }],
        });
        expect(await drive.refresh()).toMatchObject({ status: "degraded" });
      }, noticed);
      for (const user of [undefined, "root"])
        expect(await refusal(box, user)).toMatchObject({
          code: "sandbox_degraded",
          retryable: true,
          dispatched: "no",
        });
      expect(await errorOf(await server.fetch(`/v1/drives/${drive.name}/files/list?path=/`))).toMatchObject({
        code: "drive_degraded",
      });
      const upper = onRootDisk(box, "workspace");
      expect(existsSync(upper) ? readdirSync(upper) : []).toEqual([]);
      const { items } = await drive.events({ types: ["drive.degraded"] });
      expect(items).toHaveLength(1);
      await writer.cancel().catch(() => undefined);
      await box.delete();
      if (how.includes("moved away")) renameSync(join(server.dir, `away-${drive.id}`), dirOf(drive));
    },
  );

  it("because its file system is unmounted is reported in time, and it is mounted again", async () => {
    const drive = await client.drives.create({ sizeMb: 64 });
    const box = await client.sandboxes.create({ mounts: at(drive) });
    await box.exec("echo kept > /workspace/f");
    execFileSync("umount", ["-l", join(dirOf(drive), "disk")]);
    const isTold = async () => {
      expect((await drive.events({ types: ["drive.degraded"] })).items).toHaveLength(1);
      expect((await box.events({ types: ["sandbox.degraded"] })).items).toMatchObject([
        { data: { cause: { code: "mount_broken" } } },
      ]);
    };
    await vi.waitFor(isTold, noticed);
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("ready"), noticed);
    expect(await drive.refresh()).toMatchObject({ status: "ready", cause: null });
    expect((await box.exec("cat /workspace/f")).stdout).toBe("kept\n");
  });

  it("serves again by itself once the files are back", async () => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create({ mounts: at(drive) });
    await box.exec("echo kept > /workspace/f");
    const away = join(server.dir, `away-${drive.id}`);
    renameSync(dirOf(drive), away);
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("degraded"), noticed);
    renameSync(away, dirOf(drive));
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("ready"), noticed);
    expect((await box.exec("cat /workspace/f")).stdout).toBe("kept\n");
    const types = async () => (await drive.events()).items.map(({ type }) => type);
    await vi.waitFor(
      async () =>
        expect(await types()).toEqual(["drive.created", "mount.added", "drive.degraded", "drive.recovered"]),
      noticed,
    );
  });

  it.skipIf(!memoryStandby)(
    "while a sandbox sleeps leaves the sandbox degraded after its wake, and serves again once it is mounted again",
    async () => {
      const drive = await client.drives.create();
      const box = await client.sandboxes.create({ mounts: at(drive) });
      const counter = await box.execs.start("while :; do sleep 0.1; done", { keepAwake: false });
      await box.standby();
      const away = join(server.dir, `away-${drive.id}`);
      renameSync(dirOf(drive), away);
      expect(await refusal(box, "root")).toMatchObject({ code: "sandbox_degraded" });
      expect(await box.refresh()).toMatchObject({ status: "degraded", cause: { code: "mount_broken" } });
      expect((await client.execs.get(counter.id)).info.status).toBe("running");
      renameSync(away, dirOf(drive));
      await box.mount(drive.name, "/workspace");
      expect((await box.exec("echo there > /workspace/f; cat /workspace/f")).stdout).toBe("there\n");
      expect(existsSync(onRootDisk(box, "workspace/lost"))).toBe(false);
      await counter.cancel();
    },
  );
});

describe("an entry that a sandbox's root plants in a drive", () => {
  const PLANTED = [
    ["a link to a file of the host", "ln -s /etc/shadow /workspace/x"],
    ["a link up and out", "ln -s ../../../../../../../../etc/shadow /workspace/x"],
    ["a link to a directory of the host", "ln -s /etc /workspace/x"],
    ["a link to the host's processes", "ln -s /proc/1/root/etc/shadow /workspace/x"],
    ["a pipe", "mkfifo /workspace/x"],
    ["a device", "mknod /workspace/x b 254 0 || mknod /workspace/x c 1 1 || mkfifo /workspace/x"],
    [
      "a hard link to an unreadable file",
      "ln /etc/hostname /workspace/x 2>/dev/null || ln -s /etc/hostname /workspace/x",
    ],
    ["a socket", "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/workspace/x\")'"],
  ] as const;

  it.each(PLANTED)("reaches nothing of the host through the drive's files: %s", async (_, plant) => {
    const drive = await client.drives.create();
    const box = await client.sandboxes.create({ mounts: at(drive) });
    await box.exec(plant, { user: "root" });
    const shadow = lstatSync("/etc/shadow");
    for (const path of ["/x", "/x/shadow", "/x/../x"]) {
      const read = await drive.files.read(path).then(
        (bytes) => Buffer.from(bytes).toString(),
        (error: { status: number }) => error.status,
      );
      expect(read).toSatisfy(
        (answer: unknown) => typeof answer === "number" && answer >= 400 && answer < 500,
      );
      await drive.files.write(path, "evil").catch(() => undefined);
    }
    await drive.files.remove("/x", { recursive: true }).catch(() => undefined);
    const after = lstatSync("/etc/shadow");
    expect([after.ino, after.mtimeMs, after.size]).toEqual([shadow.ino, shadow.mtimeMs, shadow.size]);
  });
});

/** Returns the largest number of processes that served files of a directory at a time, until `isOver`. */
async function mostJails(dir: string, isOver: () => boolean): Promise<number> {
  let most = 0;
  while (!isOver()) {
    const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
    const jails = pids.filter((pid) => {
      const words = commandLine(pid);
      return words.includes("jail") && words.some((word) => word.startsWith(dir));
    });
    most = Math.max(most, jails.length);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return most;
}

function commandLine(pid: string): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

describe("file calls of a drive", () => {
  it("beyond the jails that run at a time wait, or are refused undone: none is lost", async () => {
    const drive = await client.drives.create();
    const content = Buffer.alloc(1_048_576, "x");
    await drive.files.write("/big", content);
    const read = async () => {
      const answer = await server.fetch(`/v1/drives/${drive.id}/files?path=/big`);
      if (answer.status === 200) return (await answer.arrayBuffer()).byteLength;
      return errorOf(answer);
    };
    let isOver = false;
    const most = mostJails(dirOf(drive), () => isOver);
    const answers = await Promise.all(Array.from({ length: 200 }, read));
    isOver = true;
    const served = answers.filter((answer) => answer === content.length);
    expect(served.length).toBeGreaterThanOrEqual(NUMBERS.jailsAtOnce);
    for (const refused of answers.filter((answer) => answer !== content.length))
      expect(refused).toMatchObject({ code: "too_many_file_calls", dispatched: "no", retryable: true });
    // A jail consists of two processes, and a closed jail may still be ending while the next one starts.
    expect(await most).toBeGreaterThan(0);
    expect(await most).toBeLessThanOrEqual(NUMBERS.jailsAtOnce * 3);
  });
});

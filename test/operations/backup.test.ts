import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { CLI, TestServer } from "../support/server/test-server.ts";

const run = promisify(execFile);

/** Runs the command line for a server. */
const holdfast = (server: TestServer, ...args: string[]) =>
  run(process.execPath, [CLI, ...args], { env: server.env, timeout: 100_000, maxBuffer: 50_000_000 });

/** Describes every file of a tree inside a sandbox: type, mode, owner, size and content. */
const LISTING = `cd /home/user && find . -xdev \\( -path ./growing -prune \\) -o -printf '%P %y %#m %U:%G %l\\n' | sort; find . -xdev -type f ! -name growing -print0 | sort -z | xargs -0 sha256sum; cat /etc/marker; ls /etc | wc -l; ls /etc/hosts`;

const outputOf = async (box: Sandbox, command: string, user = "root"): Promise<string> => {
  const done = await box.exec(command, { user });
  if (done.exitCode !== 0) throw new Error(`${command}: ${done.stdout} ${done.stderr}`);
  return done.stdout;
};

const SETUP = `cd /home/user && mkdir -p deep/er && echo content > deep/er/file && ln -s deep/er/file link && ln deep/er/file hard && head -c 300000 /dev/urandom > random && chmod 600 random && truncate -s 1M sparse && mkfifo pipe && echo mine > /etc/marker && echo 127.0.0.1 extra >> /etc/hosts && rm -f /etc/motd`;

let root: string;
let original: TestServer;
let client: Holdfast;

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), "holdfast-backup-"));
  original = await TestServer.start({}, { dir: join(root, "original") });
  client = original.client();
});
afterAll(async () => {
  client.close();
  await original[Symbol.asyncDispose]();
  rmSync(root, { recursive: true, force: true });
});

describe("a backup of a serving installation", () => {
  const backup = () => join(root, "backup");
  const target = () => join(root, "restored");
  const before = new Map<string, string>();
  let restored: TestServer;
  let other: Holdfast;
  let growing: string;
  const pids = new Map<string, number>();

  beforeAll(async () => {
    const drive = await client.drives.create({ name: "shared" });
    const sized = await client.drives.create({ name: "sized", sizeMb: 64 });
    const mounts = [
      { drive: drive.name, path: "/work" },
      { drive: sized.name, path: "/limited" },
    ];
    const running = await client.sandboxes.create({ name: "running", mounts });
    const limited = await client.sandboxes.create({ name: "limited", resources: { diskMb: 128 } });
    const sleeping = await client.sandboxes.create({ name: "sleeping" });
    const paused = await client.sandboxes.create({ name: "paused" });
    for (const box of [running, limited, sleeping, paused]) await outputOf(box, SETUP);
    await outputOf(
      running,
      "echo on the drive > /work/file; echo limited > /limited/file; ln -s file /work/link",
    );
    await running.checkpoints.create({ name: "saved" });
    await sleeping.execs.start("n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.1; done");
    for (const box of [running, limited, sleeping, paused])
      before.set(box.info.name ?? "", await outputOf(box, LISTING));
    await sleeping.standby();
    await paused.pause();
    // A sandbox that writes during the backup: each line must be whole, and the file have no gap.
    const writer = await running.execs.start(
      "n=0; while :; do n=$((n+1)); echo line $n >> growing; echo line $n >> /work/growing; done",
    );
    growing = writer.id;
    for (const { id } of [running, limited, paused]) pids.set(id, original.keeperPid(id));
    const { stdout } = await holdfast(original, "backup", backup(), "--json");
    expect(JSON.parse(stdout)).toMatchObject({ state: "done", sandboxes: 4, drives: 2, skipped: [] });
    await holdfast(original, "restore", backup(), target());
    restored = await TestServer.start({}, { dir: target() });
    other = restored.client();
  }, 200_000);
  afterAll(async () => {
    other?.close();
    await restored?.[Symbol.asyncDispose]();
  });

  it("is restored beside its original with an identity of its own, and every file is the same", async () => {
    expect(restored.installation).not.toBe(original.installation);
    await vi.waitFor(
      async () => {
        const states = (await other.sandboxes.list()).items.map(({ name, status }) => [name, status]);
        expect(Object.fromEntries(states)).toEqual({
          running: "standby",
          limited: "standby",
          sleeping: "standby",
          paused: "standby",
        });
      },
      { timeout: 60_000, interval: 100 },
    );
    for (const [name, listing] of before) {
      const box = await other.sandboxes.get(name);
      expect(await outputOf(box, LISTING), name).toBe(listing);
    }
  }, 120_000);

  it("has what was written up to one moment, on the sandbox's own disk and on its drive", async () => {
    const box = await other.sandboxes.get("running");
    const lines = async (path: string) => (await outputOf(box, `cat ${path}`)).split("\n");
    const [own, shared] = [await lines("/home/user/growing"), await lines("/work/growing")];
    expect(own.length).toBeGreaterThan(1);
    expect([own.length - 1, own.length]).toContain(shared.length);
    for (const [n, line] of own.slice(0, -1).entries()) expect(line).toBe(`line ${n + 1}`);
    expect(own.at(-1)).toBe("");
    expect(await outputOf(box, "cat /work/file /limited/file; readlink /work/link")).toBe(
      "on the drive\nlimited\nfile\n",
    );
  });

  it("keeps sizes in force: those of a sandbox's disk and of a drive", async () => {
    const limited = await other.sandboxes.get("limited");
    const running = await other.sandboxes.get("running");
    const mb = async (box: Sandbox, path: string) =>
      Number((await outputOf(box, `df -m --output=size ${path} | tail -1`)).trim());
    expect(await mb(limited, "/home/user")).toBeLessThan(129);
    expect(await mb(running, "/limited")).toBeLessThan(65);
  });

  it("records that memory is lost where it was not in the backup, and ends the commands that it had", async () => {
    const box = await other.sandboxes.get("running");
    const events = (await other.events.list({ sandbox: box.id, limit: 1000 })).items;
    expect(events.map(({ type }) => type)).toContain("sandbox.memory_lost");
    expect((await other.execs.get(growing)).info.status).toBe("lost");
  });

  it.skipIf(!memoryStandby)(
    "wakes a sleeping sandbox with its memory: its command has not begun again",
    async () => {
      const box = await other.sandboxes.get("sleeping");
      const count = async () => Number(await outputOf(box, "cat /tmp/count"));
      const first = await count();
      await expect.poll(count, { timeout: 15_000 }).toBeGreaterThan(first);
      const types = (await other.events.list({ sandbox: box.id, limit: 1000 })).items.map(({ type }) => type);
      expect(types).not.toContain("sandbox.memory_lost");
      await box.standby();
      expect(await count()).toBeGreaterThan(first);
    },
    100_000,
  );

  it("has named checkpoints, and a sandbox can start from them", async () => {
    const box = await other.sandboxes.get("running");
    const [saved] = await box.checkpoints.list();
    expect(saved?.name).toBe("saved");
    const fork = await other.sandboxes.create({ fromCheckpoint: saved?.id ?? "" });
    expect(await outputOf(fork, "cat /etc/marker /home/user/hard")).toBe("mine\ncontent\n");
  });

  it("touches nothing of the original, which runs on", async () => {
    const states = (await client.sandboxes.list()).items.map(({ name, status }) => [name, status]);
    expect(Object.fromEntries(states)).toEqual({
      running: "ready",
      limited: "ready",
      sleeping: "standby",
      paused: "paused",
    });
    for (const [id, pid] of pids) expect(original.keeperPid(id)).toBe(pid);
    expect((await client.execs.get(growing)).info.status).toBe("running");
    const audit = await client.audit();
    expect(audit.findings).toEqual([]);
    expect((await other.audit()).findings).toEqual([]);
    const running = await client.sandboxes.get("running");
    expect(await outputOf(running, LISTING)).toBe(before.get("running"));
  });

  it("names what it could not copy, and has everything else", async () => {
    const { id } = await client.sandboxes.get("sleeping");
    const device = join(original.dir, "sandboxes", id, "upper", "device");
    await run("mknod", [device, "b", "7", "0"]);
    const partial = join(root, "partial");
    const failed = await holdfast(original, "backup", partial, "--json").catch((error: unknown) => error);
    rmSync(device);
    const result = failed as { code: number; stdout: string };
    expect(result.code).toBe(1);
    const reason = expect.stringContaining("there is a device");
    expect(JSON.parse(result.stdout)).toMatchObject({
      ...{ state: "incomplete", sandboxes: 3, drives: 2 },
      skipped: [{ kind: "sandbox", name: "sleeping", reason }],
    });
    const target = join(root, "partial-restored");
    const restored = await holdfast(original, "restore", partial, target, "--json").catch(
      (error: unknown) => error,
    );
    const { sandboxes } = JSON.parse((restored as { stdout: string }).stdout) as {
      sandboxes: { name: string; state: string }[];
    };
    expect(Object.fromEntries(sandboxes.map(({ name, state }) => [name, state]))).toEqual({
      ...{ running: "cold", limited: "cold", paused: "cold", sleeping: "not restored" },
    });
  });

  it("is not overwritten: a restore refuses a directory that is not empty", async () => {
    await expect(holdfast(original, "restore", backup(), target())).rejects.toThrow(/not empty/);
    await expect(holdfast(original, "backup", backup())).rejects.toThrow(/must be empty/);
  });

  it("is refused by a server, as is a restore that did not finish", async () => {
    const started = (dir: string) => TestServer.start({}, { dir });
    await expect(started(backup())).rejects.toThrow(/is a backup/);
    const unfinished = mkdtempSync(join(root, "unfinished-"));
    writeFileSync(join(unfinished, "restoring.json"), "{}");
    await expect(started(unfinished)).rejects.toThrow(/did not finish/);
    expect(existsSync(join(backup(), "backup.json"))).toBe(true);
    expect(readdirSync(unfinished)).not.toContain("holdfast.db");
  });
});

it("a backup without a running server prints its result, and no log of the server that it starts", async () => {
  const own = await TestServer.start({}, { dir: join(root, "stopped") });
  await using _ = own;
  const holder = own.client();
  const { id } = await holder.sandboxes.create({ name: "box" });
  holder.close();
  await own.kill("SIGKILL");
  // The server that the backup starts logs that the keeper is stopped.
  process.kill(own.keeperPid(id), "SIGSTOP");
  const { stdout, stderr } = await holdfast(own, "backup", join(root, "stopped-backup"));
  expect(stdout).toMatch(/^Backed up 1 sandbox/);
  expect(stderr).toBe("");
});

describe("a backup or restore that is killed", () => {
  const OFFLINE = join(import.meta.dirname, "../../packages/daemon/src/offline.ts");
  const BIG = "head -c 150000000 /dev/zero | tr '\\0' x > /home/user/big";

  it("leaves the source as it was, and the target refused until it is complete", async () => {
    const own = await TestServer.start({}, { dir: join(root, "killed") });
    await using _ = own;
    const holder = own.client();
    const box = await holder.sandboxes.create({ name: "box", resources: { diskMb: 1024 } });
    await outputOf(box, BIG);
    const sum = await outputOf(box, "sha256sum /home/user/big");
    const [partial, backup, target] = ["partial", "whole", "target"].map((name) =>
      join(root, `killed-${name}`),
    ) as [string, string, string];
    await holder.backup(partial);
    await expect.poll(() => existsSync(join(partial, "sandboxes", box.id)), { interval: 5 }).toBe(true);
    await own.kill("SIGKILL");
    await expect(holdfast(own, "restore", partial, target)).rejects.toThrow(/incomplete backup/);
    await own.start();
    const again = own.client();
    const same = await again.sandboxes.get("box");
    expect(await outputOf(same, "sha256sum /home/user/big")).toBe(sum);

    await holdfast(own, "backup", backup);
    for (const ms of [300]) {
      const child = spawn(process.execPath, [OFFLINE, "restore", backup, target], { stdio: "ignore" });
      const exited = once(child, "exit");
      await expect
        .poll(() => existsSync(join(target, "restoring.json")), { timeout: 30_000, interval: 5 })
        .toBe(true);
      await new Promise((resolve) => setTimeout(resolve, ms));
      child.kill("SIGKILL");
      await exited;
      if (!existsSync(join(target, "restoring.json"))) break;
      await expect(TestServer.start({}, { dir: target })).rejects.toThrow(/did not finish/);
    }
    if (existsSync(join(target, "restoring.json"))) await holdfast(own, "restore", backup, target);
    const restored = await TestServer.start({}, { dir: target });
    await using __ = restored;
    const other = restored.client();
    expect(await outputOf(await other.sandboxes.get("box"), "sha256sum /home/user/big")).toBe(sum);
    other.close();
    again.close();
    holder.close();
  }, 200_000);
});

describe("a state directory that was copied with cp", () => {
  let own: TestServer;
  const copy = () => join(root, "copied");
  const pids = new Map<string, number>();
  beforeAll(async () => {
    own = await TestServer.start({}, { dir: join(root, "copied-from") });
    const holder = own.client();
    const drive = await holder.drives.create({ name: "plain" });
    const sized = await holder.drives.create({ name: "sized", sizeMb: 32 });
    const mounts = [
      { drive: drive.name, path: "/work" },
      { drive: sized.name, path: "/limited" },
    ];
    const running = await holder.sandboxes.create({ name: "running", mounts });
    const limited = await holder.sandboxes.create({ name: "limited", resources: { diskMb: 128 } });
    const sleeping = await holder.sandboxes.create({ name: "sleeping" });
    for (const box of [running, limited, sleeping]) await outputOf(box, SETUP);
    await outputOf(running, "echo here | tee /work/file > /limited/file");
    await sleeping.execs.start("n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.1; done");
    await sleeping.standby();
    for (const { id } of [running, limited]) pids.set(id, own.keeperPid(id));
    holder.close();
    await own.kill("SIGTERM");
    await run("cp", ["-a", own.dir, copy()]);
  }, 120_000);
  afterAll(() => own[Symbol.asyncDispose]());

  it("is refused with the reason and the command, and touches nothing of its original", async () => {
    await expect(TestServer.start({}, { dir: copy() })).rejects.toThrow(
      /is a copy of [\s\S]*holdfast restore/,
    );
    await own.start();
    const holder = own.client();
    for (const [id, pid] of pids) {
      expect(own.keeperPid(id)).toBe(pid);
      expect((await holder.sandboxes.get(id)).info.status).toBe("ready");
    }
    holder.close();
  });

  it("can be restored like a backup: files, drives and memory come back", async () => {
    const target = join(root, "copied-restored");
    await holdfast(own, "restore", copy(), target);
    await using restored = await TestServer.start({}, { dir: target });
    const other = restored.client();
    const running = await other.sandboxes.get("running");
    expect(await outputOf(running, "cat /work/file /limited/file /home/user/hard /etc/marker")).toBe(
      "here\nhere\ncontent\nmine\n",
    );
    expect(await outputOf(await other.sandboxes.get("limited"), "cat /home/user/hard /etc/marker")).toBe(
      "content\nmine\n",
    );
    const sleeping = await other.sandboxes.get("sleeping");
    expect(Number(await outputOf(sleeping, "cat /tmp/count"))).toBeGreaterThan(0);
    other.close();
  });

  it.skipIf(!memoryStandby)(
    "starts cold what can't be woken, whatever its policy, and keeps what fails",
    async () => {
      const target = join(root, "copied-damaged");
      await holdfast(own, "restore", copy(), target);
      const damaged = new TestServer({}, { dir: target });
      for (const id of readdirSync(join(target, "sandboxes"))) {
        const kept = join(target, "sandboxes", id, "checkpoints");
        for (const name of existsSync(kept) ? readdirSync(kept) : []) {
          const images = join(kept, name, "images");
          const pages = readdirSync(images).find((each) => each.startsWith("pages-")) ?? "";
          truncateSync(join(images, pages), 4096);
        }
      }
      await damaged.start();
      await using _ = damaged;
      const other = damaged.client();
      const box = await other.sandboxes.get("sleeping");
      expect(await outputOf(box, "cat /home/user/hard")).toBe("content\n");
      const { items } = await other.events.list({ sandbox: box.id, limit: 1000 });
      expect(items.map(({ type }) => type)).toContain("sandbox.memory_lost");
      other.close();
    },
  );
});

describe("a copy by hand that was put back in place, file by file", () => {
  it("is refused with the command that restores it, and everything comes back", async () => {
    const dir = join(root, "by-hand");
    await using own = await TestServer.start({}, { dir });
    const holder = own.client();
    const drive = await holder.drives.create({ name: "data" });
    const boxes = [
      await holder.sandboxes.create({ name: "one", mounts: [{ drive: drive.name, path: "/work" }] }),
      await holder.sandboxes.create({ name: "two" }),
    ] as const;
    await outputOf(boxes[0], "echo here > /work/file");
    for (const box of boxes) await outputOf(box, "echo mine > /home/user/file");
    for (const box of boxes) await box.standby();
    await own.kill("SIGTERM");
    const away = `${dir}.away`;
    // The originals are moved, and not removed, so that this test can clean up.
    await run("sh", [
      "-ec",
      `cp -a ${dir} ${dir}.bak; mkdir ${away} ${away}/sandboxes ${away}/drives
       for each in sandboxes drives; do mv ${dir}/$each/* ${away}/$each; done; cp -a ${dir}.bak/. ${dir}/`,
    ]);
    await expect(TestServer.start({}, { dir })).rejects.toThrow(
      /were replaced by copies[\s\S]*holdfast restore/,
    );
    const target = `${dir}-restored`;
    await holdfast(own, "restore", dir, target);
    await using restored = await TestServer.start({}, { dir: target });
    const other = restored.client();
    expect(await outputOf(await other.sandboxes.get("one"), "cat /work/file /home/user/file")).toBe(
      "here\nmine\n",
    );
    expect(await outputOf(await other.sandboxes.get("two"), "cat /home/user/file")).toBe("mine\n");
    other.close();
    await run("sh", [
      "-ec",
      `for each in sandboxes drives; do rm -r ${dir}/$each/*; mv ${away}/$each/* ${dir}/$each; done`,
    ]);
    await own.start();
    holder.close();
  }, 100_000);
});

describe("a backup or restore of something else", () => {
  it("creates no directory if the source is not a backup", async () => {
    const [nothing, target] = [mkdtempSync(join(root, "nothing-")), join(root, "from-nothing")];
    await expect(holdfast(original, "restore", nothing, target)).rejects.toThrow(/is not a backup/);
    expect(existsSync(target)).toBe(false);
    expect(readdirSync(nothing)).toEqual([]);
  });

  it("is refused if the target leads into the state directory, also by a link", async () => {
    const link = join(root, "link");
    symlinkSync(original.dir, link);
    for (const target of [join(link, "backup"), join(link, "not", "yet", "backup")])
      await expect(holdfast(original, "backup", target)).rejects.toThrow(/must be outside/);
  });
});

describe("a sandbox or drive in one file", () => {
  const shell = (server: TestServer, script: string) =>
    run("sh", ["-ec", script], { env: { ...server.env, HF: `${process.execPath} ${CLI}` }, timeout: 60_000 });

  it("is imported beside the original and into another installation, with every file", async () => {
    const drive = await client.drives.create({ name: "data", sizeMb: 32, labels: { kind: "data" } });
    const box = await client.sandboxes.create({
      name: "exported",
      env: { GREETING: "hello" },
      resources: { diskMb: 128 },
      mounts: [{ drive: drive.name, path: "/work" }],
    });
    await outputOf(box, SETUP);
    await outputOf(box, "cp -a /home/user/deep /work/; chmod 640 /work/deep/er/file");
    const listing = await outputOf(box, LISTING);
    const pid = original.keeperPid(box.id);
    const [file, driveFile] = [join(root, "box.tar"), join(root, "drive.tar")];
    await shell(original, `$HF export exported > ${file}; $HF drive export data > ${driveFile}`);
    await using far = await TestServer.start({}, { dir: join(root, "far") });
    for (const server of [original, far]) {
      const { stdout } = await shell(
        server,
        `$HF import --name copy ${file}; $HF drive import --name copied-data - < ${driveFile}`,
      );
      expect(stdout).toBe("copy\ncopied-data\n");
      const other = server.client();
      const copy = await other.sandboxes.get("copy");
      expect(copy.info).toMatchObject({ status: "standby", mounts: [] });
      expect(await outputOf(copy, LISTING)).toBe(listing);
      expect(await outputOf(copy, "echo $GREETING; touch /work/mine; stat -c %a /work")).toBe("hello\n755\n");
      await copy.mount("copied-data", "/data");
      expect(await outputOf(copy, "cat /data/deep/er/file; stat -c %a /data/deep/er/file")).toBe(
        "content\n640\n",
      );
      expect((await other.drives.get("copied-data")).info).toMatchObject({
        sizeMb: 32,
        labels: { kind: "data" },
      });
      await expect(shell(server, `$HF import --name copy ${file}`)).rejects.toThrow(/already/);
      expect((await other.audit()).findings).toEqual([]);
      expect(readdirSync(join(server.dir, "transfers"))).toEqual([]);
      other.close();
    }
    expect(original.keeperPid(box.id)).toBe(pid);
    expect((await box.refresh()).status).toBe("ready");
  }, 150_000);

  it("is refused if it is none, or leads anywhere else on the host", async () => {
    const forged = mkdtempSync(join(root, "forged-"));
    const resources = { memoryMb: 512, cpus: 1, pids: 512 };
    const spec = { image: "host", env: {}, cwd: null, resources, lifecycle: {}, labels: {} };
    const id = "sbx_0000000000000000";
    const info = { format: 1, kind: "sandbox", id, name: "forged", idBase: 0x7000_0000, spec };
    const archive = join(root, "forged.tar");
    const forge = (change: object, script: string) => {
      const text = JSON.stringify({ ...info, image: { name: "host", version: "1" }, ...change });
      return shell(
        original,
        `cd ${forged}; rm -rf *; mkdir -p state/sandboxes/${id} state/images; printf %s '${text}' > export.json; ${script}; tar -cf ${archive} .`,
      );
    };
    const imported = () => shell(original, `$HF import ${archive}`);
    await forge({}, `ln -s /etc state/sandboxes/${id}/upper`);
    await expect(imported()).rejects.toThrow(/not a valid Holdfast export/);
    await forge({}, `mkdir state/sandboxes/${id}/upper; mknod state/sandboxes/${id}/upper/disk b 7 0`);
    await expect(imported()).rejects.toThrow(/there is a device/);
    await forge({ id: "sbx_../../x" }, ":");
    await expect(imported()).rejects.toThrow(/no valid id/);
    await forge({ kind: "drive" }, ":");
    await expect(imported()).rejects.toThrow(/contains a drive/);
    writeFileSync(archive, "no archive at all");
    await expect(imported()).rejects.toThrow(/can't be unpacked/);
    expect(readdirSync(join(original.dir, "transfers"))).toEqual([]);
    expect((await client.sandboxes.list()).items.map(({ name }) => name)).not.toContain("forged");
  });
});

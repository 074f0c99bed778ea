import { execFile } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { CLI, TestServer } from "../support/server/test-server.ts";
import { Counters } from "../support/workloads/counters.ts";

const BROKEN = join(import.meta.dirname, "..", "support", "server", "server-with-broken-wakes.ts");
const soon = { timeout: 45_000, interval: 50 };

/** Number of repetitions; larger on request, for more confidence. */
const { cycles, boxes, rounds } = {
  cycles: 10,
  boxes: 4,
  rounds: 5,
  ...(JSON.parse(process.env.HOLDFAST_STANDBY_CYCLES ?? "{}") as object),
};
const LONG_MS = 60_000 + cycles * boxes * 5_000 + rounds * 20_000;

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const statusOf = async (id: string) => (await client.sandboxes.get(id)).info.status;
async function saidBy(execId: string): Promise<string> {
  const said: Uint8Array[] = [];
  for await (const { data } of (await client.execs.get(execId)).output({ follow: false })) said.push(data);
  return Buffer.concat(said).toString();
}
const digest = (data: Uint8Array) => createHash("sha256").update(data).digest("hex");

/** Zombies count as ended. */
function isThere(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

/** Calls that wake the sandbox, used in turn: each is the first after a standby, and each must succeed. */
const FIRST_CALLS: ((box: Sandbox, cycle: number, file: string) => Promise<void>)[] = [
  async (box, cycle) => expect((await box.exec(`echo ${cycle}`)).stdout).toBe(`${cycle}\n`),
  async (box, _, file) => expect(digest(await box.files.read("/home/user/data"))).toBe(file),
  async (box, cycle) => {
    await box.files.write("/home/user/put", `${cycle}`);
    expect(await box.files.readText("/home/user/put")).toBe(`${cycle}`);
  },
];

async function cycle(box: Sandbox, times: number, counters: Counters, file: string): Promise<void> {
  for (let i = 0; i < times; i += 1) {
    await box.standby();
    await FIRST_CALLS[i % FIRST_CALLS.length]?.(box, i, file);
    // Reading a file does not wake the sandbox, so it is woken explicitly.
    await box.wake();
    await counters.expectProgress(box);
  }
  expect(digest(await box.files.read("/home/user/data"))).toBe(file);
}

async function sleeper(name: string): Promise<{ box: Sandbox; counters: Counters; file: string }> {
  const box = await client.sandboxes.create({ name });
  const data = randomBytes(1 << 20);
  await box.files.write("/home/user/data", data);
  return { box, counters: await Counters.start(box), file: digest(data) };
}

describe.skipIf(!memoryStandby)("memory standby", () => {
  it(
    "continues without a gap, cycle after cycle, whatever the first call is",
    async () => {
      const { box, counters, file } = await sleeper("cycles");
      await cycle(box, cycles, counters, file);
      await box.delete();
    },
    LONG_MS,
  );

  it(
    "continues in many sandboxes at a time",
    async () => {
      const all = await Promise.all(Array.from({ length: boxes }, (_, i) => sleeper(`many-${i}`)));
      await Promise.all(
        all.map(({ box, counters, file }) => cycle(box, Math.ceil(cycles / 2), counters, file)),
      );
      await Promise.all(all.map(({ box }) => box.delete()));
    },
    LONG_MS,
  );

  it(
    "wakes once for many callers, and runs nothing twice",
    async () => {
      const box = await client.sandboxes.create({ name: "callers" });
      for (let round = 0; round < rounds; round += 1) {
        await box.standby();
        const { generation } = await box.refresh();
        const said = await Promise.all(
          Array.from({ length: 16 }, (_, i) => box.exec(`echo ${round}-${i} >> /home/user/log; echo ${i}`)),
        );
        expect(said.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 16 }, (_, i) => `${i}\n`));
        expect((await box.refresh()).generation).toBe(generation + 1);
      }
      const lines = (await box.files.readText("/home/user/log")).trim().split("\n");
      expect([lines.length, new Set(lines).size]).toEqual([16 * rounds, 16 * rounds]);
      await box.delete();
    },
    LONG_MS,
  );

  it(
    "answers rounds of commands, reads and listings on several sandboxes that come out of it",
    async () => {
      const boxes = await Promise.all([1, 2, 3].map((i) => client.sandboxes.create({ name: `rounds-${i}` })));
      const work = async (box: Sandbox, mark: string) => {
        const path = `/home/user/${mark}`;
        expect((await box.exec(`echo ${mark} > ${path}; cat ${path}`)).stdout).toBe(`${mark}\n`);
        expect(await box.files.readText(path)).toBe(`${mark}\n`);
        expect((await box.files.list("/home/user")).items.map(({ name }) => name)).toContain(mark);
      };
      for (let again = 0; again < rounds; again += 1) {
        await Promise.all(boxes.map((box) => box.standby()));
        for (let round = 0; round < 5; round += 1)
          await Promise.all(boxes.map((box) => work(box, `${again}-${round}`)));
      }
      await Promise.all(boxes.map((box) => box.delete()));
    },
    LONG_MS,
  );

  it("uses no memory while suspended, and reports its disk usage", async () => {
    const box = await client.sandboxes.create({ name: "hog" });
    const hog = "/usr/bin/python3 -c 'x = bytearray(64 << 20); print(len(x), flush=True); input()'";
    const run = await box.execs.start(hog, { openStdin: true, keepAwake: false });
    await vi.waitFor(async () => expect(await saidBy(run.id)).toBe(`${64 << 20}\n`), soon);
    const info = await box.standby();
    expect(info).toMatchObject({ status: "standby", standbyKind: "memory" });
    expect(info.checkpoint?.sizeBytes).toBeGreaterThan(1 << 20);
    expect(isThere(server.keeperPid(box.id))).toBe(false);
    await run.writeStdin("\n", { end: true });
    expect(await run.result()).toMatchObject({ exitCode: 0, stdout: `${64 << 20}\n` });
    await box.delete();
  });

  it("keeps terminals, loopback listeners, open files and running timeouts", async () => {
    const box = await client.sandboxes.create({ name: "rich" });
    const listen =
      "import socket\ns=socket.create_server(('127.0.0.1',8123))\nprint('up',flush=True)\nwhile True:\n c,_=s.accept(); c.sendall(b'hello'); c.close()";
    const listener = await box.execs.start(["/usr/bin/python3", "-c", listen], { keepAwake: false });
    const typing = await box.execs.start("read line; echo got $line; tty", { tty: { cols: 80, rows: 24 } });
    const timed = await box.execs.start("sleep 300", { timeoutMs: 12_000 });
    const ask = "import socket\ns=socket.create_connection(('127.0.0.1',8123))\nprint(s.recv(9).decode())";
    await vi.waitFor(
      async () => expect((await box.exec(["/usr/bin/python3", "-c", ask])).stdout).toBe("hello\n"),
      soon,
    );
    await box.standby();
    expect((await client.execs.get(typing.id)).info).toMatchObject({ status: "running", suspended: true });
    expect((await box.exec(["/usr/bin/python3", "-c", ask])).stdout).toBe("hello\n");
    await typing.writeStdin("there\n");
    expect((await typing.result()).stdout).toMatch(/got there\r\n\/dev\/pts\/\d+/);
    expect((await timed.result()).status).toBe("timed_out");
    await listener.cancel();
    await box.delete();
  });

  it(
    "preserves programs that start other programs all the time, and refuses one that stays inside vfork",
    async () => {
      const box = await client.sandboxes.create({ name: "vforks" });
      const loop = "import subprocess\nwhile True: subprocess.run(['/bin/true'])";
      for (let i = 0; i < 2; i += 1) await box.execs.start(["python3", "-c", loop], { keepAwake: false });
      for (let time = 0; time < 8; time += 1) {
        await box.standby();
        await box.wake();
      }
      const source = "#include <unistd.h>\nint main() { if (vfork() == 0) { sleep(1000); _exit(0); } }";
      await box.files.write("/home/user/stay.c", source);
      expect((await box.exec("gcc -o stay stay.c")).exitCode).toBe(0);
      await box.execs.start("./stay", { keepAwake: false });
      await expect(box.standby()).rejects.toMatchObject({
        code: "standby_failed",
        message: expect.stringContaining("vfork"),
      });
      expect((await box.exec("echo serves")).stdout).toBe("serves\n");
      await box.delete();
    },
    LONG_MS,
  );

  it("can be read without being woken", async () => {
    const box = await client.sandboxes.create({ name: "reads" });
    await box.files.write("/home/user/dir/a.txt", "hello");
    await box.exec("ln -s /etc/hostname /home/user/link; printf x > /dev/shm/y");
    const run = await box.execs.start("echo so far; sleep 300", { keepAwake: false });
    await vi.waitFor(async () => expect(await saidBy(run.id)).toBe("so far\n"), soon);
    await box.standby();
    expect(await box.files.readText("/home/user/dir/a.txt")).toBe("hello");
    const { items } = await box.files.list("/home/user/dir");
    expect(items).toMatchObject([{ name: "a.txt", kind: "file", uid: 1000, sizeBytes: 5 }]);
    expect(await box.files.stat("/home/user/link")).toMatchObject({ kind: "symlink" });
    await expect(box.files.read("/proc/self/stat", { wake: false })).rejects.toMatchObject({
      code: "not_on_disk",
    });
    await expect(box.files.read("/dev/shm/y", { wake: false })).rejects.toMatchObject({
      code: "not_on_disk",
    });
    expect(await saidBy(run.id)).toBe("so far\n");
    expect(await statusOf(box.id)).toBe("standby");
    expect(await box.files.readText("/dev/shm/y")).toBe("x");
    expect(await statusOf(box.id)).toBe("ready");
    await box.delete();
  });

  it("keeps the keeper's own files inaccessible after a wake", async () => {
    const box = await client.sandboxes.create({ name: "reserved" });
    await box.exec("ln -s /.holdfast/control/keeper.sock /home/user/link");
    const tried = () => box.files.read("/home/user/link").catch((error: { code: string }) => error.code);
    expect(await tried()).toBe("forbidden_path");
    for (let i = 0; i < 3; i += 1) {
      await box.standby();
      await box.wake();
      expect(await tried()).toBe("forbidden_path");
    }
    await box.delete();
  });

  it("starts by itself when the sandbox is idle, and not while a command runs", async () => {
    const box = await client.sandboxes.create({ name: "idle", lifecycle: { idleStandbyMs: 1_000 } });
    await box.exec("sleep 3; echo awake");
    expect(await statusOf(box.id)).toBe("ready");
    await vi.waitFor(async () => expect(await statusOf(box.id)).toBe("standby"), soon);
    expect((await box.exec("echo again")).stdout).toBe("again\n");
    await box.delete();
  });

  it("that fails leaves the sandbox serving, and reports the reason", async () => {
    const box = await client.sandboxes.create({ name: "undumpable" });
    // A process that traces another one can't be dumped.
    const trace =
      "import ctypes,os,time\nc=ctypes.CDLL(None)\np=os.fork()\nif p==0:\n c.ptrace(0,0,0,0); os.kill(os.getpid(),19)\nelse:\n os.waitpid(p,2); print('tracing',flush=True); time.sleep(300)";
    const run = await box.execs.start(["/usr/bin/python3", "-c", trace], { keepAwake: false });
    await vi.waitFor(async () => expect(await saidBy(run.id)).toBe("tracing\n"), soon);
    await expect(box.standby()).rejects.toMatchObject({ code: "standby_failed" });
    expect((await box.exec("echo here")).stdout).toBe("here\n");
    expect(await box.refresh()).toMatchObject({ status: "ready", generation: 1 });
    const { items } = await box.events({ types: ["sandbox.standby_failed"] });
    expect(items).toHaveLength(1);
    expect(readdirSync(join(server.dir, "sandboxes", box.id))).not.toContain("checkpoints/");
    await box.delete();
  });

  it("a paused sandbox is frozen in memory, refuses calls, and continues after resume", async () => {
    const { box, counters } = await sleeper("pause");
    await box.pause();
    expect(await statusOf(box.id)).toBe("paused");
    await expect(box.exec("true")).rejects.toMatchObject({ code: "wrong_state" });
    const stat = readFileSync(`/proc/${server.keeperPid(box.id)}/stat`, "utf8");
    expect(stat).toMatch(/\) [DSRt] /);
    await box.resume();
    await counters.expectProgress(box);
    await box.delete();
  });
});

describe("a requested standby while the CLI follows a command", () => {
  it("waits for the end of the command, whose output arrives", async () => {
    const box = await client.sandboxes.create({ name: "followed" });
    const env = { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key };
    const script = "sleep 2; echo done";
    const following = promisify(execFile)(
      process.execPath,
      [CLI, "exec", "followed", "--", "sh", "-c", script],
      {
        env,
      },
    );
    await vi.waitFor(async () => expect((await box.execs.list()).items).toHaveLength(1), soon);
    const standby = box.standby();
    expect((await following).stdout).toBe("done\n");
    expect((await standby).status).toBe("standby");
    await box.delete();
  });
});

describe("standby on a host without a working CRIU", () => {
  it("keeps the files, reports it, and cold-starts the sandbox for the next call, each time", async () => {
    await using without = await TestServer.start({ HOLDFAST_CRIU: "/nonexistent" });
    const own = without.client();
    const box = await own.sandboxes.create({ name: "files" });
    await box.files.write("/home/user/kept", "kept");
    for (let i = 0; i < 3; i += 1) {
      const run = await box.execs.start("sleep 300");
      expect(await box.standby()).toMatchObject({
        status: "standby",
        standbyKind: "files",
        checkpoint: null,
      });
      expect(await run.result()).toMatchObject({ status: "lost", cause: { code: "files_standby" } });
      expect(await box.files.readText("/home/user/kept")).toBe("kept");
      expect((await box.exec("cat kept")).stdout).toBe("kept");
    }
    own.close();
  });
});

describe.skipIf(!memoryStandby)("a sandbox at its limit on processes", () => {
  it("is not suspended, because it could not be woken, and keeps running", async () => {
    const client = server.client();
    const box = await client.sandboxes.create({ resources: { pids: 24 } });
    await box.execs.start("i=0; while [ $i -lt 21 ]; do sleep 1000 & i=$((i+1)); done; wait", {
      keepAwake: false,
    });
    await vi.waitFor(async () => expect((await box.resources()).processes.count).toBeGreaterThanOrEqual(22), {
      timeout: 15_000,
    });
    await expect(box.standby()).rejects.toMatchObject({ code: "standby_failed" });
    expect((await box.refresh()).status).toBe("ready");
    await box.delete();
    client.close();
  });
});

describe.skipIf(!memoryStandby)("a sandbox that is broken after a wake", () => {
  it.each([
    { what: "root", policy: "fail" },
    { what: "keeper", policy: "fail" },
    { what: "root", policy: "cold-start" },
  ] as const)(
    "by its $what ends calls with a cause, never reports ready, and follows its policy: $policy",
    async (one) => {
      // A wake repeats its proof until its deadline, which is shorter here, so that the test need not wait for it.
      const numbers = JSON.stringify({ proofDeadlineMs: 4_000, wakeDeadlineMs: 10_000 });
      await using broken = await TestServer.start({ HOLDFAST_NUMBERS_JSON: numbers });
      const name = `broken-${one.what}`;
      const before = broken.client();
      const asleep = await before.sandboxes.create({ name, lifecycle: { onMemoryLoss: one.policy } });
      await asleep.files.write("/home/user/kept", "kept");
      const run = await asleep.execs.start("sleep 300");
      await asleep.standby();
      before.close();
      await broken.kill("SIGTERM");
      await broken.start({ main: BROKEN, env: { HOLDFAST_BREAK_WAKES: one.what } });
      const after = broken.client();
      const box = await after.sandboxes.get(name);
      const seen = new Set<string>();
      const call = box.exec("echo served").then(
        ({ stdout }) => stdout,
        (error: { code: string }) => error.code,
      );
      let isOver = false;
      void call.finally(() => {
        isOver = true;
      });
      while (!isOver) seen.add((await box.refresh()).status);
      expect(await call).toBe(one.policy === "fail" ? "sandbox_failed" : "served\n");
      if (one.policy === "fail") expect([...seen]).not.toContain("ready");
      expect(await (await after.execs.get(run.id)).result()).toMatchObject({ status: "lost" });
      const { items } = await box.events({ types: ["sandbox.memory_lost"] });
      expect(items).toHaveLength(1);
      if (one.policy === "cold-start") expect(await box.files.readText("/home/user/kept")).toBe("kept");
      else
        expect(readFileSync(join(broken.dir, "sandboxes", box.id, "upper/home/user/kept"), "utf8")).toBe(
          "kept",
        );
      after.close();
    },
  );
});

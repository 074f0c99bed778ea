import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { CreateSandbox, Diagnosis, Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";
import { bring, type Trouble } from "../support/workloads/troubles.ts";

let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  // Healing, which healing.test.ts covers, is delayed until the diagnosis is done.
  server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify({ healAfterMs: 3_600_000 }) });
  client = server.client();
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

interface Scene {
  options?: CreateSandbox;
  /** Starts the activity that is to be diagnosed. */
  set(box: Sandbox): Promise<void>;
  windowMs?: number;
}

/** Returns the diagnosis of a sandbox once it names the problem, or the last diagnosis if it never does. */
async function diagnosed(scene: Scene, kind: string): Promise<Diagnosis> {
  const box = await client.sandboxes.create({ labels: { task_id: "test" }, ...scene.options });
  try {
    await scene.set(box);
    let diagnosis: Diagnosis | undefined;
    await vi
      .waitFor(
        async () => {
          diagnosis = await box.diagnose({ windowMs: scene.windowMs ?? 2_000 });
          expect(diagnosis.findings[0]?.kind).toBe(kind);
        },
        { timeout: 40_000, interval: 100 },
      )
      .catch(() => undefined);
    if (diagnosis === undefined) throw new Error("there is no diagnosis");
    return diagnosis;
  } finally {
    await box.delete();
  }
}

const run = (command: string) => async (box: Sandbox) => {
  await box.execs.start(command);
};
const program = (name: Trouble) => async (box: Sandbox) => {
  await box.execs.start(await bring(box, name));
};

const SCENES: readonly [what: string, kind: string, words: RegExp, scene: Scene][] = [
  ["a busy loop", "busy_loop", /busy loop.*while/, { set: run("while :; do :; done") }],
  ["a futex deadlock", "deadlock", /deadlocked: all 2 threads.*deadlock/, { set: program("deadlock") }],
  [
    "a FIFO that nobody writes to",
    "waiting_on_io",
    /waits on a fifo.*\/tmp\/pipe/,
    { set: run("mkfifo /tmp/pipe; exec 3<>/tmp/pipe; read line <&3") },
  ],
  [
    "a FIFO that nobody opens",
    "waiting_on_io",
    /waits on a fifo/,
    { set: run("mkfifo /tmp/alone; cat /tmp/alone") },
  ],
  [
    "a memory leak",
    "memory_leak",
    /memory leak: \d+ MB in/,
    { set: program("leak"), windowMs: 10_000, options: { resources: { memoryMb: 2_048 } } },
  ],
  [
    "an OOM kill",
    "out_of_memory",
    /out of memory: the kernel killed \d+.*64 MB/,
    {
      options: { resources: { memoryMb: 64 } },
      set: async (box) => {
        const path = await bring(box, "glutton");
        expect((await box.exec(path)).cause?.code).toBe("oom_killed");
      },
    },
  ],
  ["a zombie maker", "zombies", /30 zombie processes/, { set: program("zombies") }],
  [
    "a full disk",
    "disk_full",
    /disk of the sandbox is full/,
    {
      options: { resources: { diskMb: 64 } },
      set: async (box) => {
        await box.exec("cat /dev/zero > /home/user/all");
      },
    },
  ],
  [
    "as many processes as it may have",
    "pid_limit",
    /reached its process limit/,
    {
      options: { resources: { pids: 24 } },
      set: run("i=0; while [ $i -lt 22 ]; do sleep 1000 & i=$((i+1)); done; wait"),
    },
  ],
  [
    "a keeper that was stopped",
    "keeper_silent",
    /keeper does not answer.*stopped by a signal/,
    { set: async (box) => void process.kill(server.keeperPid(box.id), "SIGSTOP") },
  ],
  [
    "a root that was unmounted",
    "mount_gone",
    /mount of the sandbox is gone.*root/,
    {
      set: async (box) => void execFileSync("umount", ["-l", join(server.dir, "sandboxes", box.id, "root")]),
    },
  ],
  [
    "commands that time out",
    "repeated_timeouts",
    /keep timing out: 3/,
    {
      set: async (box) => {
        for (let i = 0; i < 3; i += 1) await box.exec("sleep 10", { timeoutMs: 50 });
      },
    },
  ],
  [
    "a healthy compile job",
    "working",
    /sandbox is working/,
    {
      set: run(
        `cd /home/user; i=0; while [ $i -lt 400 ]; do echo "int f$i(int x){return x*$i;}"; i=$((i+1)); done > a.c; while :; do gcc -O2 -c a.c; done`,
      ),
    },
  ],
  ["a command that sleeps", "idle", /for a timer/, { set: run("sleep 1000") }],
  ["nothing", "idle", /serving and idle/, { set: async () => undefined }],
];

describe("a diagnosis", () => {
  it.each(SCENES)("names %s: %s", async (_what, kind, words, scene) => {
    const diagnosis = await diagnosed(scene, kind);
    expect(diagnosis.findings.map((finding) => finding.kind).slice(0, 1)).toEqual([kind]);
    expect(diagnosis.summary).toMatch(words);
    expect(diagnosis.windowMs).toBeLessThanOrEqual(12_000);
    const [first] = diagnosis.findings;
    expect(first?.evidence.join()).not.toContain(server.dir);
    expect(first?.holdfast).not.toBe("");
    expect(first?.you.length).toBeGreaterThan(0);
  });

  it("never reports a running compile job as stuck", async () => {
    const box = await client.sandboxes.create({ labels: { task_id: "test" } });
    await run(
      `cd /home/user; echo 'int main(void){return 0;}' > a.c; while :; do gcc -O2 a.c -o a && ./a; done`,
    )(box);
    for (let look = 0; look < 5; look += 1) {
      const { findings } = await box.diagnose({ windowMs: 1_000 });
      expect(findings.filter(({ severity }) => severity === "problem")).toEqual([]);
    }
    await box.delete();
  });

  it("reports a sleeping sandbox as such without waking it", async () => {
    const box = await client.sandboxes.create();
    await box.standby();
    expect((await box.diagnose()).findings[0]?.kind).toBe("asleep");
    expect((await box.resources()).processes.count).toBe(0);
    expect((await box.refresh()).status).toBe("standby");
    await box.delete();
  });
});

describe("the usage of a sandbox", () => {
  it("shows what each process uses and waits for", async () => {
    const box = await client.sandboxes.create({ resources: { memoryMb: 256 } });
    await box.execs.start("while :; do :; done", { id: "spinning" });
    await box.execs.start("sleep 1000", { id: "sleeping" });
    const report = await vi.waitFor(
      async () => {
        const found = await box.resources();
        expect(found.cpu.percent).toBeGreaterThan(20);
        return found;
      },
      { timeout: 20_000 },
    );
    expect(report.memory.limitBytes).toBe(256 * 1_048_576);
    expect(report.memory.bytes).toBeGreaterThan(0);
    expect(report.operations).toBeGreaterThanOrEqual(2);
    const of = (execId: string) => report.processes.items.filter((one) => one.execId === execId);
    expect(of("spinning").some(({ waits }) => waits[0]?.on === "cpu")).toBe(true);
    expect(of("sleeping").some(({ waits }) => waits[0]?.on === "sleep")).toBe(true);
    await box.delete();
  });
});

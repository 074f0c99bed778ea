import type { Holdfast } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { TestServer } from "../support/server/test-server.ts";

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

describe("limits", () => {
  it("stop a fork bomb, and the neighbour keeps working", async () => {
    const [bad, good] = await Promise.all([
      client.sandboxes.create({ resources: { pids: 64 } }),
      client.sandboxes.create(),
    ]);
    const bomb = await bad.execs.start("bomb() { bomb | bomb & }; bomb; sleep 2; wait", { timeoutMs: 4_000 });
    for (let i = 0; i < 5; i += 1) expect((await good.exec("echo well")).stdout).toBe("well\n");
    expect(["timed_out", "exited"]).toContain((await bomb.result()).status);
    expect((await good.refresh()).status).toBe("ready");
    await vi.waitFor(async () => expect((await bad.exec("echo again")).stdout).toBe("again\n"), {
      timeout: 20_000,
      interval: 200,
    });
    await Promise.all([bad.delete(), good.delete()]);
  });

  it("stop a memory hog: the kill is an event and the exec's cause; the sandbox and its neighbour keep running", async () => {
    const [bad, good] = await Promise.all([
      client.sandboxes.create({ resources: { memoryMb: 64 } }),
      client.sandboxes.create(),
    ]);
    const hog = ["/usr/bin/python3", "-c", "x = bytearray(512 << 20); print(len(x))"];
    const result = await bad.exec(hog);
    expect(result).toMatchObject({ status: "exited", signal: "SIGKILL", cause: { code: "oom_killed" } });
    expect(result.stdout).toBe("");
    const { items } = await bad.events({ types: ["sandbox.oom"] });
    expect(items[0]?.message).toMatch(/64 MB/);
    expect((await bad.exec("echo alive")).stdout).toBe("alive\n");
    expect((await good.exec(hog)).exitCode).toBe(0);
    await Promise.all([bad.delete(), good.delete()]);
  });

  it("release shared memory when its last user exits", async () => {
    const box = await client.sandboxes.create({ resources: { memoryMb: 64 } });
    const fill =
      "import ctypes\nlibc=ctypes.CDLL(None,use_errno=True)\nlibc.shmat.restype=ctypes.c_void_p\nsize=40<<20\nat=libc.shmat(libc.shmget(0,size,0o1600),None,0)\nctypes.memset(at,1,size)\nprint('filled')";
    for (let i = 0; i < 5; i += 1)
      expect(await box.exec(["/usr/bin/python3", "-c", fill])).toMatchObject({
        exitCode: 0,
        stdout: "filled\n",
      });
    expect((await box.exec("tail -n +2 /proc/sysvipc/shm | wc -l")).stdout?.trim()).toBe("0");
    expect((await box.refresh()).status).toBe("ready");
    await box.delete();
  });

  it("hold a busy loop to its share of the CPU", async () => {
    const box = await client.sandboxes.create({ resources: { cpus: 0.2 } });
    const burn =
      "import time,resource\nend=time.monotonic()+2\nwhile time.monotonic()<end: pass\nu=resource.getrusage(resource.RUSAGE_SELF)\nprint(u.ru_utime+u.ru_stime)";
    const { stdout } = await box.exec(["/usr/bin/python3", "-c", burn]);
    expect(Number(stdout)).toBeLessThan(1);
    await box.delete();
  });

  it("a timeout ends the whole process tree, including processes that left the session, and nothing else", async () => {
    const box = await client.sandboxes.create();
    const bystander = await box.execs.start("sleep 60");
    const result = await box.exec(
      "setsid sleep 61 & (sleep 62 &) ; nohup setsid sh -c 'sleep 63 & sleep 64' & sleep 65",
      { timeoutMs: 700 },
    );
    expect(result.status).toBe("timed_out");
    const { stdout } = await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
    for (const n of [61, 62, 63, 64, 65]) expect(stdout).not.toContain(`sleep ${n}`);
    expect(stdout).toContain("sleep 60");
    expect((await bystander.cancel()).status).toBe("cancelled");
    await box.delete();
  });

  it("a background child does not delay the end of its exec", async () => {
    const box = await client.sandboxes.create();
    const started = Date.now();
    expect(await box.exec("sleep 30 & echo done")).toMatchObject({ exitCode: 0, stdout: "done\n" });
    expect(Date.now() - started).toBeLessThan(15_000);
    await box.delete();
  });
});

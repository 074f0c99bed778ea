import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Holdfast, Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { reboot } from "../support/chaos/reboot.ts";
import { TestServer } from "../support/server/test-server.ts";

const KINDS = {
  plain: {},
  disk: { resources: { diskMb: 64 } },
  cold: { lifecycle: { onMemoryLoss: "cold-start" } },
  "cold-disk": { lifecycle: { onMemoryLoss: "cold-start" }, resources: { diskMb: 64 } },
} as const;
type Kind = keyof typeof KINDS;
const MOUNTS = [
  { drive: "plain", path: "/plain" },
  { drive: "sized", path: "/sized", subpath: "in/it" },
];
const ALL = Object.keys(KINDS) as Kind[];
const COLD: Kind[] = ["cold", "cold-disk"];
const FAILED: Kind[] = ["plain", "disk"];

let server: TestServer;
let client: Holdfast;
/** One ended and one running exec of each sandbox. */
const execs = new Map<Kind, { ended: string; ran: string }>();

/** Sandboxes are created and used, and then the host restarts. */
beforeAll(async () => {
  server = await TestServer.start();
  const before = server.client();
  await before.drives.create({ name: "plain" });
  await before.drives.create({ name: "sized", sizeMb: 64 });
  for (const kind of ALL) {
    const box = await before.sandboxes.create({ name: kind, ...KINDS[kind], mounts: MOUNTS });
    await box.exec(`echo ${kind} > /plain/${kind}; echo ${kind} > /sized/${kind}; sync`);
    await box.files.write("/home/user/mine", `of ${kind}`);
    const ended = await box.exec(`echo said by ${kind}; sync`);
    const { id: ran } = await box.execs.start("echo begun; sync; sleep 1000");
    execs.set(kind, { ended: ended.id, ran });
  }
  before.close();
  await server.kill("SIGKILL");
  await reboot(server);
  expect(server.leftovers().filter((thing) => !/^directory (sandboxes|drives)\//.test(thing))).toEqual([]);
  await server.start();
  client = server.client();
}, 180_000);
afterAll(async () => {
  client?.close();
  await server[Symbol.asyncDispose]();
});

const of = (kind: Kind): Promise<Sandbox> => client.sandboxes.get(kind);
const outputOf = async (id: string) => (await (await client.execs.get(id)).result()).stdout;

describe("after a restart of the host", () => {
  it.for(COLD)("a sandbox with a restart policy is started again, on the same files (%s)", async (kind) => {
    const box = await of(kind);
    await vi.waitFor(async () => expect((await box.refresh()).status).toBe("ready"), {
      timeout: 30_000,
      interval: 100,
    });
    expect(box.info).toMatchObject({ generation: 2, cause: null });
    expect(await box.files.readText("/home/user/mine")).toBe(`of ${kind}`);
    expect(await box.exec("cat ~/mine; echo more >> ~/mine")).toMatchObject({
      stdout: `of ${kind}`,
      exitCode: 0,
    });
    const { items } = await box.events({ types: ["sandbox.restarting"] });
    expect(items).toMatchObject([{ data: { cause: { code: "host_rebooted" }, memoryLost: true } }]);
  });

  it.for(COLD)("a restarted sandbox has its drives, with all files in them (%s)", async (kind) => {
    const box = await of(kind);
    await vi.waitFor(
      async () => expect((await box.mounts()).map(({ state }) => state)).toEqual(["proven", "proven"]),
      { timeout: 30_000, interval: 100 },
    );
    const { stdout } = await box.exec("cat /plain/* /sized/*");
    expect(stdout.split("\n").filter(Boolean).sort()).toEqual([...ALL, ...ALL].sort());
  });

  it.for(FAILED)(
    "any other sandbox has failed, with the reason and the time until which it is kept (%s)",
    async (kind) => {
      const box = await of(kind);
      expect(box.info).toMatchObject({ status: "failed", generation: 1, cause: { code: "host_rebooted" } });
      expect(Date.parse(box.info.keptUntil ?? "")).toBeGreaterThan(Date.now());
      await expect(box.exec("true")).rejects.toMatchObject({ code: "sandbox_failed" });
      await vi.waitFor(async () => expect((await box.refresh()).lease.state).toBe("none"), {
        timeout: 15_000,
      });
    },
  );

  it("roots and disks of running sandboxes are mounted again, each disk on its own loop device", async () => {
    const mounted = readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .map((line) => line.split(" ")[4] ?? "");
    for (const kind of COLD)
      expect(mounted).toContain(join(server.dir, "sandboxes", (await of(kind)).id, "root"));
    const { id } = await of("cold-disk");
    expect(mounted).toContain(join(server.dir, "sandboxes", id, "disk"));
    expect(loopsBelow(join(server.dir, "sandboxes", id))).toHaveLength(1);
  });

  it.for(ALL)("ended execs can be read, and running ones are lost with the reason (%s)", async (kind) => {
    const { ended = "", ran = "" } = execs.get(kind) ?? {};
    expect(await outputOf(ended)).toBe(`said by ${kind}\n`);
    const lost = await (await client.execs.get(ran)).result();
    expect(lost).toMatchObject({
      status: "lost",
      exitCode: null,
      cause: { code: "host_rebooted" },
      stdout: "begun\n",
    });
  });

  it("the audit finds nothing, and deleted sandboxes leave nothing behind", async () => {
    expect(await client.audit()).toMatchObject({ complete: true, findings: [] });
    for (const kind of ALL) {
      const box = await of(kind);
      expect((await box.delete()).status).toBe("terminated");
      expect(server.leftovers().filter((thing) => thing.includes(box.id))).toEqual([]);
    }
    for (const name of ["plain", "sized"]) await client.drives.delete(name);
    expect(loopsBelow(server.dir)).toEqual([]);
    expect(await outputOf(execs.get("disk")?.ended ?? "")).toBe("said by disk\n");
    const { totals } = await client.stats();
    expect(totals).toMatchObject({ created: 4, terminated: 4, failed: 2, execsStarted: totals.execsEnded });
  });
});

/** Returns the image files below a directory that are attached to loop devices. */
const loopsBelow = (dir: string): string[] =>
  readdirSync("/sys/block").flatMap((name) => {
    try {
      const file = readFileSync(`/sys/block/${name}/loop/backing_file`, "utf8").trim();
      return file.startsWith(`${dir}/`) ? [file] : [];
    } catch {
      return [];
    }
  });

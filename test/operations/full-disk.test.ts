/** One sandbox fills the disk that all share. The state directory is on a small separate disk. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import { type Holdfast, HoldfastError, type Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { LoopDisk } from "../support/chaos/loop-disk.ts";
import { TestServer } from "../support/server/test-server.ts";

const MB = 1_048_576;
const NUMBERS = {
  diskReserveBytes: 500 * MB,
  diskFreezeBytes: 400 * MB,
  diskGuardEveryMs: 200,
  observeEveryMs: 1_000,
};
/** Fills the disk at some hundred MB per second at most, so that the disk is low for a while before it is full. */
const FILLING = "i=0; while :; do head -c 16M /dev/zero > ~/fill-$i; i=$((i+1)); sleep 0.05; done";
const SOON = { timeout: 30_000, interval: 100 };

let disk: LoopDisk;
let server: TestServer;
let client: Holdfast;
beforeAll(async () => {
  disk = new LoopDisk(1_000);
  const env = { HOLDFAST_NUMBERS_JSON: JSON.stringify(NUMBERS) };
  server = await TestServer.start(env, { dir: join(disk.dir, "state") });
  client = server.client();
});
afterAll(async () => {
  client.close();
  disk.empty();
  await server[Symbol.asyncDispose]();
  await disk[Symbol.asyncDispose]();
});

const eventsSince = async (cursor: string) => (await client.events.list({ limit: 1000, cursor })).items;
async function lastEvent(): Promise<string> {
  let cursor = "0";
  for (;;) {
    const { items, nextCursor } = await client.events.list({ limit: 1000, cursor });
    cursor = String(items.at(-1)?.seq ?? cursor);
    if (nextCursor === null) return cursor;
  }
}

async function works(box: Sandbox): Promise<void> {
  expect(await box.exec("echo here > ~/mine && cat ~/mine")).toMatchObject({ exitCode: 0, stdout: "here\n" });
  await box.files.write("/home/user/file", "text");
  expect(await box.files.readText("/home/user/file")).toBe("text");
  expect((await box.refresh()).status).toBe("ready");
}

async function gone(box: Sandbox): Promise<void> {
  expect((await box.delete()).status).toBe("terminated");
  expect(server.leftovers().filter((thing) => thing.includes(box.id))).toEqual([]);
}

async function restarted(): Promise<void> {
  await server.start();
  client.close();
  client = server.client();
}

describe("a sandbox that fills the disk", () => {
  let before: string;
  beforeEach(async () => {
    before = await lastEvent();
  });

  it("is frozen and named if it has no disk of its own; it and its neighbours, which keep running, can be deleted", async () => {
    const [filler, neighbour, other] = await Promise.all([
      client.sandboxes.create({ name: "filler" }),
      client.sandboxes.create(),
      client.sandboxes.create(),
    ]);
    const run = await filler.execs.start(FILLING);
    await vi.waitFor(async () => {
      const frozen = (await eventsSince(before)).filter(({ type }) => type === "sandbox.frozen");
      expect(frozen.map(({ sandboxId }) => sandboxId)).toEqual([filler.id]);
      expect(frozen[0]?.message).toMatch(/MB a second/);
    }, SOON);
    expect(await filler.refresh()).toMatchObject({ status: "degraded", cause: { code: "disk_filler" } });
    expect((await eventsSince(before)).map(({ type }) => type)).toContain("disk.low");
    const left = disk.freeBytes;
    expect(left).toBeGreaterThan(0);
    await works(neighbour);
    await works(other);
    const refused = await client.sandboxes.create().catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(HoldfastError);
    expect(refused).toMatchObject({ code: "disk_full" });
    await gone(other);
    await works(neighbour);
    expect(disk.freeBytes).toBeGreaterThan(left - 50 * MB);
    await gone(filler);
    expect((await run.result()).status).toBe("cancelled");
    await vi.waitFor(async () => {
      expect((await eventsSince(before)).map(({ type }) => type)).toContain("disk.recovered");
    }, SOON);
    await gone(await client.sandboxes.create());
    await gone(neighbour);
  });

  it("fills only its own disk if it has one, without effect on other sandboxes", async () => {
    const [filler, neighbour] = await Promise.all([
      client.sandboxes.create({ resources: { diskMb: 64 } }),
      client.sandboxes.create({ resources: { diskMb: 64 } }),
    ]);
    const filled = await filler.exec("cat /dev/zero > ~/fill");
    expect(filled).toMatchObject({ status: "exited", exitCode: 1 });
    expect(filled.stderr).toMatch(/No space left on device/);
    const refused = await filler.files
      .write("/home/user/more", "x".repeat(MB))
      .catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: "disk_full" });
    expect(disk.freeBytes).toBeGreaterThan(NUMBERS.diskReserveBytes);
    await works(neighbour);
    expect(await filler.exec("rm ~/fill")).toMatchObject({ exitCode: 0 });
    await works(filler);
    const types = (await eventsSince(before)).map(({ type }) => type);
    for (const type of ["disk.low", "sandbox.frozen", "sandbox.degraded"]) expect(types).not.toContain(type);
    await filler.exec("cat /dev/zero > ~/fill");
    await Promise.all([gone(filler), gone(neighbour)]);
  });

  it("does not prevent a delete, even if the last block is used and the server is killed", async () => {
    const boxes = await Promise.all(
      [{}, {}, {}, { diskMb: 48 }].map((resources) => client.sandboxes.create({ resources })),
    );
    const [first, second, third, fourth] = boxes as [Sandbox, Sandbox, Sandbox, Sandbox];
    await second.execs.start("sleep 1000");
    disk.fill();
    expect(disk.freeBytes).toBe(0);
    await gone(first);
    disk.fill();
    await server.kill("SIGKILL");
    await restarted();
    disk.fill();
    for (const box of [second, third, fourth]) {
      await gone(await client.sandboxes.get(box.id));
      disk.fill();
    }
    const { sandboxes, totals } = await client.stats();
    expect(sandboxes).toMatchObject({ ready: 0, failed: 0, stopping: 0 });
    expect(totals.created - totals.terminated).toBe(0);
    disk.empty();
    await vi.waitFor(async () => gone(await client.sandboxes.create()), SOON);
  });

  it("does not prevent a server from starting, and can then be deleted", async () => {
    const { id } = await client.sandboxes.create();
    const filler = () => client.sandboxes.get(id);
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      const command = "while :; do cat /dev/zero >> ~/fill; sleep 0.01; done";
      const run = await (await filler()).execs.start(command);
      await server.kill("SIGKILL");
      // The space that the last server reserved for its commits is removed.
      rmSync(join(server.dir, "holdfast.db.ballast"), { force: true });
      await vi.waitFor(() => expect(disk.freeBytes).toBe(0), SOON);
      await restarted();
      await (await client.execs.get(run.id)).cancel();
      disk.fill();
      await server.kill(signal);
      disk.fill();
      await restarted();
      expect((await filler()).info.status).toBe("ready");
      disk.empty();
      await (await filler()).exec("rm -f ~/fill");
    }
    await gone(await filler());
  }, 180_000);
});

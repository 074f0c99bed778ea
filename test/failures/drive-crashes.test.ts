import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Holdfast } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { sample } from "../setup/long.ts";
import {
  type DrivePoint,
  dieAt,
  MAKING,
  MOUNTING,
  REMOVING,
  UNMOUNTING,
} from "../support/crash/drive-crash-points.ts";
import { TestServer } from "../support/server/test-server.ts";

const DYING = join(import.meta.dirname, "..", "support", "crash", "server-crashing-in-drives.ts");
const PATIENCE_MS = 90_000;
const soon = { timeout: 30_000, interval: 50 };

let server: TestServer;
let id = "";
beforeAll(async () => {
  server = await TestServer.start();
  const client = server.client();
  id = (await client.sandboxes.create({ name: "holder" })).id;
  client.close();
});
afterAll(() => server[Symbol.asyncDispose]());

/** Makes a server die at this point of a request; the next server runs normally. */
async function through(point: DrivePoint, order: (client: Holdfast) => Promise<unknown>): Promise<Holdfast> {
  await server.kill("SIGTERM");
  await server.start({ main: DYING, env: dieAt(point) });
  const dying = server.client({ timeoutMs: 2_000 });
  const asked = order(dying);
  asked.catch(() => undefined);
  expect(await server.died()).toBe("SIGKILL");
  dying.close();
  await server.start();
  return server.client();
}

async function arranged<Result>(work: (client: Holdfast) => Promise<Result>): Promise<Result> {
  const client = server.client();
  return work(client).finally(() => client.close());
}

const directories = () => readdirSync(join(server.dir, "drives"));
const mountsInside = async (client: Holdfast) =>
  Number((await (await client.sandboxes.get(id)).exec("grep -c ' /w ' /proc/self/mountinfo")).stdout);

describe("a server that is killed", () => {
  it.each(sample(MAKING, 2).map((point) => ({ point })))(
    "$point leaves a complete drive, or none",
    async ({ point }) => {
      const client = await through(point, (dying) => dying.drives.create({ name: "made", sizeMb: 32 }));
      await vi.waitFor(async () => {
        const { items } = await client.drives.list();
        expect(items.map(({ status }) => status)).toEqual(
          point === "before the drive is stored" ? [] : ["ready"],
        );
        expect(directories()).toEqual(items.map((drive) => drive.id));
      }, soon);
      const drive = await client.drives.getOrCreate({ name: "made", sizeMb: 32 });
      await drive.files.write("/f", "it");
      expect(await drive.files.readText("/f")).toBe("it");
      await drive.delete();
      client.close();
    },
    PATIENCE_MS,
  );

  it.each(sample(MOUNTING, 2).map((point) => ({ point })))(
    "$point leaves a sandbox with a proven mount, or none",
    async ({ point }) => {
      await arranged((client) => client.drives.create({ name: "mounted" }));
      const client = await through(point, async (dying) =>
        (await dying.sandboxes.get(id)).mount("mounted", "/w"),
      );
      const box = await client.sandboxes.get(id);
      const wanted = point === "before the mount is stored" ? [] : ["proven"];
      await vi.waitFor(async () => {
        expect((await box.mounts()).map(({ state }) => state)).toEqual(wanted);
        expect((await box.refresh()).status).toBe("ready");
      }, soon);
      expect(await mountsInside(client)).toBe(wanted.length);
      await box.mount("mounted", "/w");
      expect((await box.exec("echo x > /w/f; cat /w/f")).stdout).toBe("x\n");
      await box.unmount("/w");
      await client.drives.delete("mounted");
      client.close();
    },
    PATIENCE_MS,
  );

  it.each(sample(UNMOUNTING, 2).map((point) => ({ point })))(
    "$point leaves a sandbox without the drive, or with it, and never in between",
    async ({ point }) => {
      await arranged(async (client) => {
        await client.drives.create({ name: "mounted" });
        await (await client.sandboxes.get(id)).mount("mounted", "/w");
      });
      const client = await through(point, async (dying) => (await dying.sandboxes.get(id)).unmount("/w"));
      const box = await client.sandboxes.get(id);
      const left = point === "before the unmount is stored" ? ["proven"] : [];
      await vi.waitFor(
        async () => expect((await box.mounts()).map(({ state }) => state)).toEqual(left),
        soon,
      );
      expect(await mountsInside(client)).toBe(left.length);
      if (left.length > 0) await box.unmount("/w");
      expect((await box.exec("echo own > /w/own && cat /w/own; rm /w/own")).stdout).toBe("own\n");
      await client.drives.delete("mounted");
      client.close();
    },
    PATIENCE_MS,
  );

  it.each(sample(REMOVING, 2).map((point) => ({ point })))(
    "$point leaves a drive with all its files, or nothing",
    async ({ point }) => {
      await arranged(async (client) => {
        const drive = await client.drives.create({ name: "removed", sizeMb: 32 });
        await drive.files.write("/f", "it");
      });
      const client = await through(point, (dying) => dying.drives.delete("removed"));
      if (point === "before the removal is stored") {
        const drive = await client.drives.get("removed");
        expect(await drive.files.readText("/f")).toBe("it");
        await drive.delete();
      }
      await vi.waitFor(async () => expect((await client.drives.list()).items).toEqual([]), soon);
      expect(directories()).toEqual([]);
      expect(existsSync(join(server.dir, "drives"))).toBe(true);
      client.close();
    },
    PATIENCE_MS,
  );
});

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { type Holdfast, HoldfastError, type Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { sample } from "../setup/long.ts";
import { dieAt, INTO_CHECKPOINT, INTO_FORK, type SleepPoint } from "../support/crash/standby-crash-points.ts";
import { memoryStandby } from "../support/server/memory-standby.ts";
import { TestServer } from "../support/server/test-server.ts";
import { Counters } from "../support/workloads/counters.ts";

const DYING = join(import.meta.dirname, "..", "support", "crash", "server-crashing-in-standby.ts");
const PATIENCE_MS = 150_000;
const soon = { timeout: 45_000, interval: 50 };

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

const saved = (id: string) => {
  const dir = join(server.dir, "sandboxes", id, "saved");
  return existsSync(dir) ? readdirSync(dir) : [];
};
const codeOf = (promise: Promise<unknown>) =>
  promise.then(
    () => "none",
    (error: unknown) => (error instanceof HoldfastError ? error.code : String(error)),
  );

/** Returns the only exec that a fork has at its start. */
async function inherited(box: Sandbox) {
  const names = Object.entries((await box.refresh()).forkedFrom?.execs ?? {});
  expect(names).toHaveLength(1);
  const [[id = "", from = ""] = []] = names;
  return { run: await client.execs.get(id), from };
}

describe.skipIf(!memoryStandby)("a fork", () => {
  it("has the files and memory of its checkpoint, its own names, and runs independently", async () => {
    const box = await client.sandboxes.create({ name: "source", labels: { a: "b" } });
    const counters = await Counters.start(box);
    await box.files.write("/home/user/file", "then");
    const { id, kind, sizeBytes, memoryBytes, execs } = await box.checkpoints.create({ name: "one" });
    expect({ kind, execs: [...execs].sort() }).toEqual({ kind: "memory", execs: [...counters.execs].sort() });
    expect(sizeBytes).toBeGreaterThan(memoryBytes);
    expect(memoryBytes).toBeGreaterThan(1_000_000);
    await counters.expectProgress(box);
    await box.files.write("/home/user/file", "now");

    const forks = await Promise.all(
      ["first", "second"].map((name) => client.sandboxes.create({ name, fromCheckpoint: id })),
    );
    for (const fork of forks) {
      expect(fork.info).toMatchObject({
        status: "ready",
        labels: { a: "b" },
        forkedFrom: { sandboxId: box.id, checkpointId: id },
      });
      expect(await fork.files.readText("/home/user/file")).toBe("then");
      await counters.expectProgress(fork);
      const { stdout } = await fork.exec("hostname; cat /etc/hostname; getent hosts $(hostname)");
      expect(stdout.split("\n").slice(0, 2)).toEqual([fork.info.name, fork.info.name]);
      expect(stdout.split("\n")[2]).toContain("127.0.1.1");
      const names = fork.info.forkedFrom?.execs ?? {};
      expect(Object.values(names).sort()).toEqual([...counters.execs].sort());
      for (const name of Object.keys(names)) {
        expect(counters.execs).not.toContain(name);
        expect((await client.execs.get(name)).info).toMatchObject({ sandboxId: fork.id, status: "running" });
      }
      const listed = (await fork.execs.list()).items.map((exec) => exec.id);
      expect(listed.filter((exec) => counters.execs.includes(exec))).toEqual([]);
    }
    expect(await box.files.readText("/home/user/file")).toBe("now");
    await counters.expectProgress(box);

    // The end of one sandbox does not affect the others.
    await box.delete();
    for (const fork of forks) await counters.expectProgress(fork);
    expect(await codeOf(client.sandboxes.create({ fromCheckpoint: id }))).toBe("checkpoint_not_found");
    for (const fork of forks) await fork.delete();
  });

  it("has the output of its execs from their beginning, and ends them with their own exit codes", async () => {
    const box = await client.sandboxes.create({ name: "talks" });
    const talk = "i=0; while [ ! -e ~/stop ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit $(cat ~/stop)";
    const original = await box.execs.start(talk, { tty: { cols: 80, rows: 24 } });
    const lines = async (run: typeof original) => {
      const parts: Uint8Array[] = [];
      for await (const { data } of run.output({ follow: false })) parts.push(data);
      // Output in the terminal's buffer passes through the terminal again after the restore, which may add a carriage return.
      return Buffer.concat(parts).toString().split(/\r+\n/).slice(0, -1);
    };
    await vi.waitFor(async () => expect((await lines(original)).length).toBeGreaterThan(10), soon);
    const fork = await client.sandboxes.create({ fromCheckpoint: (await box.checkpoints.create()).id });
    const { run, from } = await inherited(fork);
    expect(from).toBe(original.id);
    await box.files.write("/home/user/stop", "3");
    await fork.files.write("/home/user/stop", "4");
    expect([(await original.result()).exitCode, (await run.result()).exitCode]).toEqual([3, 4]);
    for (const each of [original, run]) {
      const said = await lines(each);
      expect(said).toEqual(said.map((_, index) => String(index)));
      expect(said.length).toBeGreaterThan(10);
    }
    await fork.standby();
    await fork.delete();
    await box.delete();
    expect((await lines(await client.execs.get(run.id))).length).toBeGreaterThan(10);
  });

  it("sleeps, wakes, and is forked again", async () => {
    const box = await client.sandboxes.create({ name: "parent" });
    const counters = await Counters.start(box, ["python"]);
    const child = await client.sandboxes.create({
      name: "child",
      fromCheckpoint: (await box.checkpoints.create()).id,
    });
    await child.standby();
    await child.wake();
    await counters.expectProgress(child);
    const { id } = await child.checkpoints.create({ name: "again" });
    await child.standby();
    const grandchild = await client.sandboxes.create({ name: "grandchild", fromCheckpoint: id });
    await grandchild.standby();
    await grandchild.wake();
    await counters.expectProgress(grandchild);
    const { run, from } = await inherited(grandchild);
    expect(from).toBe((await inherited(child)).run.id);
    await run.cancel();
    expect((await run.result()).status).toBe("cancelled");
    expect((await inherited(child)).run.info.status).toBe("running");
    for (const each of [box, child, grandchild]) await each.delete();
  });

  it("notifies programs with a wake hook", async () => {
    const box = await client.sandboxes.create({ name: "asks" });
    const trap = "trap 'echo woken' HUP; echo up; while :; do sleep 0.05; done";
    const original = await box.execs.start(trap, { onWake: { signal: "SIGHUP" } });
    for await (const { text } of original.output()) if (text.includes("up")) break;
    const fork = await client.sandboxes.create({ fromCheckpoint: (await box.checkpoints.create()).id });
    const { run } = await inherited(fork);
    for await (const { text } of run.output()) if (text.includes("woken")) break;
    for (const each of [box, fork]) await each.delete();
  });
});

describe("checkpoints", () => {
  it("have names, are listed and removed, and are refused where unsupported", async () => {
    const box = await client.sandboxes.create({ name: "named" });
    const one = await box.checkpoints.create({ name: "one" });
    expect(await codeOf(box.checkpoints.create({ name: "one" }))).toBe("checkpoint_exists");
    const two = await box.checkpoints.create({ name: "two" });
    expect((await box.checkpoints.list()).map(({ name }) => name)).toEqual(["one", "two"]);
    expect(saved(box.id).sort()).toEqual([one.id, two.id].sort());
    await box.checkpoints.delete("one");
    expect(await codeOf(box.checkpoints.delete(one.id))).toBe("checkpoint_not_found");
    expect(saved(box.id)).toEqual([two.id]);
    const refused = { fromCheckpoint: two.id, image: "host" };
    expect(await codeOf(client.sandboxes.create(refused))).toBe("invalid_request");
    await box.pause();
    expect(await codeOf(box.checkpoints.create())).toBe("wrong_state");
    await box.resume();
    await box.delete();
    expect(saved(box.id)).toEqual([]);
  });

  it("hold calls while in progress, and then answer them", async () => {
    const box = await client.sandboxes.create({ name: "busy" });
    const making = box.checkpoints.create();
    const said = await Promise.all(Array.from({ length: 8 }, (_, i) => box.exec(`echo ${i}`)));
    expect(said.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 8 }, (_, i) => `${i}\n`));
    await making;
    await box.delete();
  });

  it("contain only files where memory cannot be saved, and a fork starts from the files", async () => {
    await using without = await TestServer.start({ HOLDFAST_CRIU: "/nonexistent" });
    const other = without.client();
    const box = await other.sandboxes.create({ name: "files", resources: { diskMb: 64 } });
    await box.exec("echo kept > ~/file; rm -rf /etc/issue; mkdir ~/d; ln ~/file ~/d/link");
    const { id, kind, execs } = await box.checkpoints.create();
    expect({ kind, execs }).toEqual({ kind: "files", execs: [] });
    const fork = await other.sandboxes.create({ name: "on-files", fromCheckpoint: id });
    expect(fork.info).toMatchObject({ status: "ready", resources: { diskMb: 64 } });
    const { stdout } = await fork.exec("cat ~/d/link; hostname; cat /etc/hostname");
    expect(stdout).toBe("kept\non-files\non-files\n");
    for (const each of [fork, box]) await each.delete();
    other.close();
  });
});

/** Makes a server die at this point of a request; the next server runs normally. */
async function through(point: SleepPoint, order: (dying: Holdfast) => Promise<unknown>): Promise<void> {
  client.close();
  await server.kill("SIGTERM");
  await server.start({ main: DYING, env: dieAt(point) });
  const dying = server.client();
  order(dying).catch(() => undefined);
  expect(await server.died()).toBe("SIGKILL");
  dying.close();
  await server.start();
  client = server.client();
}

describe.skipIf(!memoryStandby)("a server that is killed", () => {
  let box: Sandbox;
  let counters: Counters;
  beforeAll(async () => {
    box = await client.sandboxes.create({ name: "survivor" });
    counters = await Counters.start(box, ["python"]);
  });
  afterAll(async () => (await client.sandboxes.get(box.id)).delete());

  it.each(sample(INTO_CHECKPOINT, 3).map((point) => ({ point })))(
    "on the way to a checkpoint, $point, leaves the sandbox serving, and all of the checkpoint or nothing",
    async ({ point }) => {
      await through(point, async (dying) =>
        (await dying.sandboxes.get(box.id)).checkpoints.create({ name: "crash" }),
      );
      box = await client.sandboxes.get(box.id);
      await counters.expectProgress(box);
      await vi.waitFor(async () => {
        expect((await box.refresh()).status).toBe("ready");
        expect(saved(box.id)).toEqual((await box.checkpoints.list()).map(({ id }) => id));
      }, soon);
      for (const { id } of await box.checkpoints.list()) {
        const fork = await client.sandboxes.create({ fromCheckpoint: id });
        await counters.expectProgress(fork);
        await fork.delete();
        await box.checkpoints.delete(id);
      }
    },
    PATIENCE_MS,
  );

  it.each(sample(INTO_FORK, 3).map((point) => ({ point })))(
    "on the way to a fork, $point, leaves one that serves, or none",
    async ({ point }) => {
      box = await client.sandboxes.get(box.id);
      const { id } = await box.checkpoints.create({ name: "base" });
      const wanted = { name: "crashed", fromCheckpoint: id };
      await through(point, (dying) => dying.sandboxes.create(wanted));
      const fork = await client.sandboxes.getOrCreate(wanted);
      expect(fork.info.status).toBe("ready");
      await counters.expectProgress(fork);
      const { run } = await inherited(fork);
      expect(run.info.status).toBe("running");
      await fork.delete();
      box = await client.sandboxes.get(box.id);
      await counters.expectProgress(box);
      await box.checkpoints.delete("base");
    },
    PATIENCE_MS,
  );
});

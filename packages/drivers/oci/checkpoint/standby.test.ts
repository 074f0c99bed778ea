/** Memory standby with the real CRIU of this host: dump, restore, failures and aborts. */
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  type ExecId,
  newCheckpointId,
  newExecId,
  newSandboxId,
  type Resources,
  type SandboxId,
} from "@holdfast/contract";
import type { Checkpoint, ExecOrder, Instance, Link, RestoreOrder } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { layoutOf } from "../machine/layout.ts";
import { readReferences } from "../machine/sandbox-notes.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
import { HELPER_MARK } from "../proc/marked-processes.ts";
import { allPids, readEnvironment, readExecutable, readLiving } from "../proc/proc-files.ts";
import { type TestMachine, testMachine } from "../testing/test-machine.ts";
import { findCriu } from "./find-criu.ts";

const found = await findCriu();
const soon = () => AbortSignal.timeout(40_000);
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
let machine: TestMachine;
const ids: SandboxId[] = [];
const links: Link[] = [];

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  for (const link of links.splice(0)) link.close();
  for (const id of ids.splice(0)) {
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    await machine.driver.destroy(id, soon());
  }
});
afterAll(() => machine?.dispose());

const connect = async (instance: Instance, driver = machine.driver): Promise<Link> => {
  const link = await driver.connect(instance, soon());
  links.push(link);
  return link;
};

async function launch(resources: Partial<Resources> = {}): Promise<Instance> {
  const sandboxId = newSandboxId();
  ids.push(sandboxId);
  const order = orderFor(sandboxId, { resources: { ...DEFAULT_RESOURCES, ...resources } });
  const instance = await machine.driver.launch(order, soon());
  await connect(instance);
  return instance;
}

async function dump({ sandboxId, generation }: Instance, signal = soon()): Promise<Checkpoint> {
  for (const link of links.splice(0)) link.close();
  await machine.driver.freeze(sandboxId, soon());
  return machine.driver.checkpoint({ sandboxId, generation, id: newCheckpointId() }, signal);
}

const restoreOrder = (
  { sandboxId, generation }: Instance,
  checkpoint: Checkpoint,
  changes: Partial<RestoreOrder> = {},
): RestoreOrder => ({
  sandboxId,
  name: orderFor(sandboxId).name,
  generation: generation + 1,
  checkpoint,
  image: orderFor(sandboxId).image,
  resources: DEFAULT_RESOURCES,
  ...changes,
});

/** Suspends an instance and wakes it, in the same steps as the engine. */
async function cycle(instance: Instance, resources: Partial<Resources> = {}): Promise<[Instance, Link]> {
  const checkpoint = await dump(instance);
  const { sandboxId } = instance;
  expect(await machine.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
  const order = restoreOrder(instance, checkpoint, { resources: { ...DEFAULT_RESOURCES, ...resources } });
  const next = await machine.driver.restore(order, soon());
  await machine.driver.thaw(sandboxId, soon());
  return [next, await connect(next)];
}

const start = async (
  link: Link,
  changes: Partial<ExecOrder> & { argv: readonly string[] },
): Promise<ExecId> => {
  const id = newExecId();
  const order: ExecOrder = {
    id,
    env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
    cwd: "",
    user: "",
    timeoutMs: 0,
    stdin: false,
    tty: null,
    journalCapBytes: 16 * 1_048_576,
    digest: "0".repeat(64),
    ...changes,
  };
  await link.startExec(order, soon());
  return id;
};

const python = (link: Link, code: string, user = "") => start(link, { argv: ["python3", "-uc", code], user });

/** The output of an exec so far. */
async function outputOf(link: Link, id: ExecId): Promise<string> {
  let output = "";
  for (let cursor = 0; ; ) {
    const slice = await link.readExec(id, { cursor, maxBytes: 262_144, waitMs: 0 }, soon());
    for (const { data } of slice.records) output += Buffer.from(data).toString();
    if (slice.next === cursor) return output;
    cursor = slice.next;
  }
}

const says = (link: Link, id: ExecId) => expect.poll(() => outputOf(link, id), { timeout: 20_000 });
const linesOf = async (link: Link, id: ExecId) => (await outputOf(link, id)).split("\n").slice(0, -1);
const countTo = async (link: Link, id: ExecId, count: number) =>
  expect.poll(async () => (await linesOf(link, id)).length, { timeout: 20_000 }).toBeGreaterThan(count);
const placeOf = (id: SandboxId, ...path: string[]) => join(machine.stateDir, "sandboxes", id, ...path);
const observe = async (id: SandboxId) => (await machine.driver.observe([id], soon())).get(id);
const criuPath = "path" in found ? found.path : "none";
/** Running CRIU processes of this test's installation: other test files may run CRIU at the same time. */
const criusRunning = () =>
  allPids().filter((pid) => {
    if (readExecutable(pid) !== criuPath || readLiving(pid) === null) return false;
    return readEnvironment(pid)?.get(HELPER_MARK)?.startsWith(machine.installation) === true;
  });

const COUNTER = "import time\nn = 0\nwhile True:\n  n += 1\n  print(n)\n  time.sleep(0.005)";
const NODE_COUNTER = "let n = 0; setInterval(() => require('fs').writeSync(1, ++n + '\\n'), 5)";

describe.skipIf(!("path" in found))("memory standby", () => {
  test("the driver reports support for memory standby", () => {
    expect(machine.driver.support).toEqual({ kind: "memory", why: null });
  });

  test("a restored instance does not run before it is thawed", async () => {
    const first = await launch();
    const counter = await python(await connect(first), COUNTER);
    await countTo(await connect(first), counter, 20);
    const checkpoint = await dump(first);
    const { sandboxId } = first;
    expect(await observe(sandboxId)).toMatchObject({
      seen: "present",
      state: "frozen",
      identity: first.identity,
    });
    const journal = placeOf(sandboxId, "control", "journals", counter);
    const before = readFileSync(journal);
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    expect(await machine.driver.list(soon())).toMatchObject([
      { sandboxId, alive: false, things: expect.arrayContaining([`checkpoint ${checkpoint.id}`]) },
    ]);
    const second = await machine.driver.restore(restoreOrder(first, checkpoint), soon());
    expect(second).toMatchObject({ sandboxId, generation: 2, keeperVersion: first.keeperVersion });
    expect(await observe(sandboxId)).toMatchObject({
      seen: "present",
      state: "frozen",
      identity: second.identity,
    });
    await pause(100);
    expect(readFileSync(journal)).toEqual(before);
    await machine.driver.thaw(sandboxId, soon());
    const link = await connect(second);
    await countTo(link, counter, before.toString("latin1").split("HFJ1").length + 5);
    expect(await observe(sandboxId)).toMatchObject({ seen: "present", state: "running", problems: [] });
    expect(await machine.driver.recover(second, soon())).toEqual(second);
  });

  test("counters in memory continue without a gap, and all their output is journaled, over 20 cycles", async () => {
    let instance = await launch();
    let link = await connect(instance);
    const counters = [
      await python(link, COUNTER),
      await python(link, COUNTER, "root"),
      await start(link, { argv: ["node", "-e", NODE_COUNTER] }),
    ];
    for (let round = 1; round <= 20; round++) {
      [instance, link] = await cycle(instance);
      for (const counter of counters) {
        await countTo(link, counter, (await linesOf(link, counter)).length + 2);
        const lines = await linesOf(link, counter);
        expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
      }
      await machine.driver.discard(instance.sandboxId, null, soon());
      expect(readdirSync(placeOf(instance.sandboxId, "checkpoints"))).toEqual([]);
    }
    expect(await run(link, "echo fine")).toEqual({ exitCode: 0, output: "fine\n" });
    expect((await link.listExecs(soon())).filter(({ state }) => state === "running")).toHaveLength(3);
    expect(criusRunning()).toEqual([]);
  }, 180_000);

  test("a terminal, a listener, open files, a watch and the contents of /dev/shm are restored", async () => {
    const first = await launch();
    let link = await connect(first);
    await run(link, "echo kept > /dev/shm/note; mkdir /home/user/dir; echo one > /home/user/dir/file");
    const shell = await start(link, { argv: ["bash", "-i"], tty: { cols: 90, rows: 30 }, stdin: true });
    await says(link, shell).toContain("$ ");
    const server = await python(
      link,
      "import http.server as h, os\nos.chdir('/home/user/dir')\nh.test(h.SimpleHTTPRequestHandler, port=8123, bind='127.0.0.1')",
    );
    await says(link, server).toContain("8123");
    const writer = await start(link, {
      argv: [
        "python3",
        "-uc",
        "import sys, os\nf = open('open', 'a')\nprint('ready')\nfor line in sys.stdin:\n  f.write(line); f.flush(); print(os.getcwd(), f.tell())",
      ],
      cwd: "/home/user/dir",
      stdin: true,
    });
    await says(link, writer).toBe("ready\n");
    const watcher = await start(link, {
      argv: [
        "node",
        "-e",
        "require('fs').watch('/home/user/dir', (_, name) => require('fs').writeSync(1, name + '\\n')); require('fs').writeSync(1, 'watching\\n')",
      ],
    });
    await says(link, watcher).toBe("watching\n");
    const gone = await python(
      link,
      "import os, time\nf = open('gone', 'w+')\nf.write('x' * 70000)\nf.flush()\nos.unlink('gone')\nprint('ready')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nf.seek(0)\nprint(len(f.read()))",
    );
    await says(link, gone).toBe("ready\n");

    [, link] = await cycle(first);

    let typed = 0;
    const type = async (text: string) => {
      await link.writeStdin(shell, { offset: typed, data: Buffer.from(text), end: false }, soon());
      typed += text.length;
    };
    await type("stty size; echo $((6*7))\n");
    await says(link, shell).toMatch(/30 90\r\n42\r\n/);
    await type("exec 3<>/dev/tty; stat -c 'tty %u' $(tty) >&3; exec 3>&-; sleep 7777\n");
    await expect
      .poll(async () => (await link.processes(soon())).some(({ name }) => name === "sleep"), {
        timeout: 20_000,
      })
      .toBe(true);
    await type("\x03");
    await type("echo code $?\n");
    await says(link, shell).toMatch(/tty 1000\r\n(.|\s)*code 130\r\n/);
    const fetch =
      "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/file').read().decode())";
    expect((await run(link, `python3 -c "${fetch}"`)).output).toBe("one\n\n");
    await link.writeStdin(writer, { offset: 0, data: Buffer.from("more\n"), end: false }, soon());
    await says(link, writer).toBe("ready\n/home/user/dir 5\n");
    await run(link, "touch /home/user/dir/seen /tmp/go");
    await says(link, watcher).toContain("seen\n");
    await says(link, gone).toBe("ready\n70000\n");
    expect((await run(link, "cat /dev/shm/note /home/user/dir/open")).output).toBe("kept\nmore\n");
    expect((await run(link, "cat /home/user/dir/gone; ls -A /home/user/dir")).output).not.toContain("gone\n");
  }, 60_000);

  test("limits and filters are in force after a restore, and earlier OOM kills are not counted", async () => {
    const resources = { memoryMb: 64, pids: 32 };
    const first = await launch(resources);
    const hog = "head -c 300000000 /dev/zero | tail -c 200000000 | wc -c";
    await run(await connect(first), hog);
    expect(await observe(first.sandboxId)).toMatchObject({ oomKills: expect.any(Number) });
    const [second, link] = await cycle(first, resources);
    expect(await observe(first.sandboxId)).toMatchObject({ oomKills: 0 });
    await run(link, hog);
    const seen = await observe(second.sandboxId);
    expect(seen?.seen === "present" && seen.oomKills > 0).toBe(true);
    await run(link, "for i in $(seq 1 200); do sleep 1000 >/dev/null 2>&1 & done; exit 0");
    expect((await link.processes(soon())).length).toBeLessThanOrEqual(32);
    await run(link, "kill -9 -1");
    const status = await run(link, "grep -E '^(NoNewPrivs|Seccomp|Seccomp_filters):' /proc/1/status");
    expect(status.output).toMatch(/NoNewPrivs:\s1\nSeccomp:\s2\nSeccomp_filters:\s2/);
    expect((await run(link, "mount -t tmpfs x /mnt", "root")).exitCode).not.toBe(0);
    const orphan = await start(link, { argv: ["sh", "-c", "setsid sleep 77777 & exec sleep 77777"] });
    await link.cancelExec(orphan, soon());
    await expect
      .poll(async () => (await link.processes(soon())).filter(({ name }) => name === "sleep").length, {
        timeout: 20_000,
      })
      .toBe(0);
  }, 60_000);

  test("a process tree from before a restore is ended with its exec", async () => {
    const first = await launch();
    const id = await start(await connect(first), {
      argv: ["sh", "-c", "setsid sleep 77777 & env -i setsid sleep 77777 & exec sleep 77777"],
    });
    const sleepers = async (link: Link) =>
      (await link.processes(soon())).filter(({ name }) => name === "sleep").length;
    const before = await connect(first);
    await expect.poll(() => sleepers(before), { timeout: 20_000 }).toBe(3);
    const [, link] = await cycle(first);
    expect(await sleepers(link)).toBe(3);
    await link.cancelExec(id, soon());
    await expect.poll(() => sleepers(link), { timeout: 20_000 }).toBe(0);
  });

  test("memoryBytes predicts the size of a checkpoint, and counts the memory again after a restore", async () => {
    const instance = await launch();
    const hoarder = await python(
      await connect(instance),
      "import os, time\na = os.urandom(50_000_000)\nopen('/dev/shm/a', 'wb').write(os.urandom(30_000_000))\nprint(1)\ntime.sleep(1000)",
    );
    await says(await connect(instance), hoarder).toBe("1\n");
    const bytes = await machine.driver.memoryBytes(instance.sandboxId, soon());
    const checkpoint = await dump(instance);
    expect(bytes).toBeGreaterThan(80_000_000);
    expect(checkpoint.sizeBytes).toBeGreaterThan(80_000_000);
    expect(Math.abs(bytes - checkpoint.sizeBytes)).toBeLessThan(20_000_000);
    await machine.driver.stop(instance.sandboxId, { graceMs: 0 }, soon());
    await machine.driver.restore(restoreOrder(instance, checkpoint), soon());
    const after = await machine.driver.memoryBytes(instance.sandboxId, soon());
    expect(after).toBeGreaterThan(bytes - 10_000_000);
  });

  test("a restore does not create cgroups of other programs that existed at the dump", async () => {
    const others = readHierarchies().map(({ dir }) => join(dir, `holdfast-other-${machine.installation}`));
    const instance = await launch();
    for (const dir of others) mkdirSync(dir);
    const checkpoint = await dump(instance).finally(() => {
      for (const dir of others) rmdirSync(dir);
    });
    await machine.driver.stop(instance.sandboxId, { graceMs: 0 }, soon());
    await machine.reboot();
    await machine.driver.restore(restoreOrder(instance, checkpoint), soon());
    const made = others.filter((dir) => existsSync(dir));
    for (const dir of made) rmdirSync(dir);
    expect(made).toEqual([]);
  });

  test("after a reboot of the host the root is mounted again, with and without a disk of the sandbox's own", async () => {
    for (const resources of [{}, { diskMb: 64 }]) {
      const first = await launch(resources);
      let link = await connect(first);
      await run(link, "echo mine > /home/user/mine");
      const counter = await python(link, COUNTER);
      await countTo(link, counter, 5);
      const checkpoint = await dump(first);
      await machine.driver.stop(first.sandboxId, { graceMs: 0 }, soon());
      await machine.reboot();
      const order = restoreOrder(first, checkpoint, { resources: { ...DEFAULT_RESOURCES, ...resources } });
      const second = await machine.driver.restore(order, soon());
      await machine.driver.thaw(first.sandboxId, soon());
      link = await connect(second);
      await countTo(link, counter, (await linesOf(link, counter)).length + 2);
      expect((await run(link, "cat /home/user/mine")).output).toBe("mine\n");
      const { root } = await link.probe(soon());
      expect(await observe(first.sandboxId)).toMatchObject({ root, problems: [] });
    }
  }, 60_000);
});

describe.skipIf(!("path" in found))("an unusable checkpoint is refused before anything is started", () => {
  const imagesOf = (checkpoint: Checkpoint, id: SandboxId) =>
    placeOf(id, "checkpoints", checkpoint.id, "images");
  const pages = (images: string) =>
    readdirSync(images).find((name) => name.startsWith("pages-")) ?? "no pages image";

  async function suspended(): Promise<[Instance, Checkpoint]> {
    const instance = await launch();
    const checkpoint = await dump(instance);
    await machine.driver.stop(instance.sandboxId, { graceMs: 0 }, soon());
    return [instance, checkpoint];
  }

  const flip = (path: string) => {
    const bytes = readFileSync(path);
    bytes.writeUInt8(bytes.readUInt8(1_000) ^ 1, 1_000);
    writeFileSync(path, bytes);
  };

  const manifestChange = (path: string, changes: object) =>
    writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), ...changes }));

  const DAMAGES: [string, string, (images: string, manifest: string) => void][] = [
    ["a truncated image", "damaged", (images) => truncateSync(join(images, pages(images)), 4_096)],
    ["one flipped byte", "damaged", (images) => flip(join(images, pages(images)))],
    ["a missing image", "damaged", (images) => rmSync(join(images, "pstree.img"))],
    ["an additional image", "damaged", (images) => writeFileSync(join(images, "core-99.img"), "x")],
    ["a manifest that is cut off", "damaged", (_, manifest) => truncateSync(manifest, 100)],
    ["no manifest", "damaged", (_, manifest) => rmSync(manifest)],
    ["a manifest of another version", "damaged", (_, manifest) => manifestChange(manifest, { version: 2 })],
    ["nothing left", "missing", (images) => rmSync(join(images, ".."), { recursive: true })],
    [
      "another sandbox's manifest",
      "foreign",
      (_, manifest) => manifestChange(manifest, { sandboxId: newSandboxId() }),
    ],
    [
      "another installation's manifest",
      "foreign",
      (_, manifest) => manifestChange(manifest, { installation: "elsewhere" }),
    ],
    ["another generation", "foreign", (_, manifest) => manifestChange(manifest, { generation: 7 })],
    [
      "another launch's configuration",
      "foreign",
      (_, manifest) => manifestChange(manifest, { config: "00" }),
    ],
    [
      "a keeper that no longer exists",
      "foreign",
      (_, manifest) => manifestChange(manifest, { keeperVersion: "0" }),
    ],
    [
      "programs that have changed",
      "foreign",
      (_, manifest) =>
        manifestChange(manifest, {
          mapped: [{ path: "/usr/bin/env", ino: "1", size: "1", modifiedNs: "1" }],
        }),
    ],
  ];

  test.for(DAMAGES)("%s", async ([, code, damage]) => {
    const [instance, checkpoint] = await suspended();
    const images = imagesOf(checkpoint, instance.sandboxId);
    damage(images, join(images, "..", "manifest.json"));
    const steps: string[] = [];
    const order = restoreOrder(instance, checkpoint, { onStep: (step) => steps.push(step) });
    await expect(machine.driver.restore(order, soon())).rejects.toMatchObject({
      name: "CheckpointUnusable",
      code: `checkpoint_${code}`,
      message: expect.not.stringContaining("/"),
    });
    expect(steps).toEqual(["checkpoint"]);
    expect(await observe(instance.sandboxId)).toMatchObject({ seen: "absent" });
  });

  test("a restore is refused while the instance lives, and the instance keeps running", async () => {
    const instance = await launch();
    const checkpoint = await dump(instance);
    await expect(machine.driver.restore(restoreOrder(instance, checkpoint), soon())).rejects.toMatchObject({
      code: "restore_root",
    });
    await machine.driver.thaw(instance.sandboxId, soon());
    expect(await run(await connect(instance), "echo here")).toEqual({ exitCode: 0, output: "here\n" });
  });

  test("a root that is not mounted is mounted before the restore", async () => {
    const [instance, checkpoint] = await suspended();
    execFileSync("umount", [placeOf(instance.sandboxId, "root")]);
    const next = await machine.driver.restore(restoreOrder(instance, checkpoint), soon());
    await machine.driver.thaw(instance.sandboxId, soon());
    expect(await run(await connect(next), "echo here")).toEqual({ exitCode: 0, output: "here\n" });
  });

  test("a restore is refused if the files of the root are missing", async () => {
    const [instance, checkpoint] = await suspended();
    execFileSync("umount", [placeOf(instance.sandboxId, "root")]);
    renameSync(placeOf(instance.sandboxId, "upper"), placeOf(instance.sandboxId, "elsewhere"));
    await expect(machine.driver.restore(restoreOrder(instance, checkpoint), soon())).rejects.toMatchObject({
      code: "restore_root",
      message: expect.stringMatching(/files are missing/),
    });
  });
});

describe.skipIf(!("path" in found))("an aborted or failed standby", () => {
  const partsOf = (id: SandboxId) =>
    existsSync(placeOf(id, "checkpoints")) ? readdirSync(placeOf(id, "checkpoints")) : [];

  test("a failed dump leaves everything running, and the error explains the cause", async () => {
    const instance = await launch();
    let link = await connect(instance);
    const shell = await start(link, { argv: ["sh", "-i"], tty: { cols: 80, rows: 24 }, stdin: true });
    await says(link, shell).toContain("$ ");
    const counter = await python(link, COUNTER);
    await countTo(link, counter, 5);
    await expect(dump(instance)).rejects.toMatchObject({
      code: "checkpoint_dump",
      message: expect.stringMatching(/terminal/),
      detail: expect.stringMatching(/ctty/),
    });
    expect(await observe(instance.sandboxId)).toMatchObject({ state: "frozen", identity: instance.identity });
    expect(partsOf(instance.sandboxId)).toEqual([]);
    await machine.driver.thaw(instance.sandboxId, soon());
    link = await connect(instance);
    await countTo(link, counter, (await linesOf(link, counter)).length + 5);
    await link.cancelExec(shell, soon());
    await expect
      .poll(async () => (await link.listExecs(soon())).find(({ id }) => id === shell)?.state, {
        timeout: 20_000,
      })
      .toBe("cancelled");
    [, link] = await cycle(instance);
    await countTo(link, counter, (await linesOf(link, counter)).length + 2);
    const lines = await linesOf(link, counter);
    expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
  }, 60_000);

  test("an instance that is not frozen, or has another generation, is not dumped", async () => {
    const instance = await launch();
    const order = { sandboxId: instance.sandboxId, generation: 1, id: newCheckpointId() };
    await expect(machine.driver.checkpoint(order, soon())).rejects.toMatchObject({
      message: expect.stringMatching(/not frozen/),
    });
    await machine.driver.freeze(instance.sandboxId, soon());
    await expect(machine.driver.checkpoint({ ...order, generation: 2 }, soon())).rejects.toMatchObject({
      message: expect.stringMatching(/another/),
    });
    expect(partsOf(instance.sandboxId)).toEqual([]);
  });

  test.for([1, 20, 60, 120, 200])("a dump aborted after %i ms leaves the instance as it was", async (ms) => {
    const instance = await launch();
    let link = await connect(instance);
    const counter = await python(link, COUNTER);
    await countTo(link, counter, 5);
    const abort = new AbortController();
    const aborted = dump(instance, abort.signal).catch((error: unknown) => error);
    await pause(ms);
    abort.abort(new Error("no longer wanted"));
    const outcome = await aborted;
    expect(await observe(instance.sandboxId)).toMatchObject({ state: "frozen", identity: instance.identity });
    if (outcome instanceof Error) {
      expect(outcome.message).toBe("no longer wanted");
      expect(partsOf(instance.sandboxId)).toEqual([]);
    }
    await machine.driver.thaw(instance.sandboxId, soon());
    link = await connect(instance);
    await countTo(link, counter, (await linesOf(link, counter)).length + 5);
    await machine.driver.discard(instance.sandboxId, null, soon());
    [, link] = await cycle(instance);
    await countTo(link, counter, (await linesOf(link, counter)).length + 2);
    const lines = await linesOf(link, counter);
    expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
  });

  test.for([1, 20, 60, 100, 150])("a restore aborted after %i ms can be repeated", async (ms) => {
    const instance = await launch();
    const counter = await python(await connect(instance), COUNTER);
    await countTo(await connect(instance), counter, 5);
    const checkpoint = await dump(instance);
    const { sandboxId } = instance;
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    const abort = new AbortController();
    const aborted = machine.driver
      .restore(restoreOrder(instance, checkpoint), abort.signal)
      .catch((error: unknown) => error);
    await pause(ms);
    abort.abort(new Error("no longer wanted"));
    await aborted;
    expect(await machine.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    const next = await machine.driver.restore(restoreOrder(instance, checkpoint, { generation: 3 }), soon());
    await machine.driver.thaw(sandboxId, soon());
    const link = await connect(next);
    await countTo(link, counter, (await linesOf(link, counter)).length + 2);
    const lines = await linesOf(link, counter);
    expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
    expect(criusRunning()).toEqual([]);
  });

  test.for([1, 30, 80])("a stop supersedes a dump and a restore, %i ms into them", async (ms) => {
    const instance = await launch();
    const { sandboxId } = instance;
    const dumped = dump(instance).catch((error: unknown) => error);
    await pause(ms);
    expect(await machine.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await dumped;
    await machine.driver.destroy(sandboxId, soon());
    const other = await launch();
    const checkpoint = await dump(other);
    await machine.driver.stop(other.sandboxId, { graceMs: 0 }, soon());
    const restored = machine.driver
      .restore(restoreOrder(other, checkpoint), soon())
      .catch((error: unknown) => error);
    await pause(ms);
    expect(await machine.driver.stop(other.sandboxId, { graceMs: 0 }, soon())).toMatchObject({
      seen: "absent",
    });
    await restored;
    expect(criusRunning()).toEqual([]);
  });

  test("a link that is closed right before the freeze does not fail the checkpoint", async () => {
    let instance = await launch();
    for (let round = 0; round < 5; round++) {
      await connect(instance);
      await connect(instance);
      [instance] = await cycle(instance);
    }
  }, 60_000);

  test("the next server takes over an instance whose server died during a dump", async () => {
    const instance = await launch();
    let link = await connect(instance);
    const counter = await python(link, COUNTER);
    await countTo(link, counter, 5);
    const next = await machine.again();
    const dumped = dump(instance).catch((error: unknown) => error);
    await expect.poll(criusRunning, { timeout: 20_000, interval: 1 }).not.toEqual([]);
    expect(await next.driver.recover(instance, soon())).toEqual(instance);
    expect(criusRunning()).toEqual([]);
    await dumped;
    await machine.driver.thaw(instance.sandboxId, soon());
    link = await connect(instance);
    await countTo(link, counter, (await linesOf(link, counter)).length + 5);
  });
});

describe.skipIf(!("path" in found))("files of a sandbox in standby", () => {
  const readAll = async (body: AsyncIterable<Uint8Array>) => {
    const chunks: Uint8Array[] = [];
    for await (const chunk of body) chunks.push(Buffer.from(chunk));
    return Buffer.concat(chunks).toString();
  };

  test.for([{}, { diskMb: 64 }])(
    "are read from its disk, with the rights of the sandbox's root: %o",
    async (resources) => {
      const instance = await launch(resources);
      const { sandboxId } = instance;
      await run(
        await connect(instance),
        "echo hi > /home/user/a; chmod 600 /home/user/a; ln -s /home/user/a /home/user/link; ln -s /dev/shm /home/user/shm; ln -s ../../../../etc/shadow /home/user/out",
      );
      await dump(instance);
      await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
      for (const round of ["mounted", "after a reboot of the host"]) {
        if (round !== "mounted") await machine.reboot();
        const { files, close } = await machine.driver.files(sandboxId, soon());
        try {
          const { stat, body } = await files.read("/home/user/link", { offset: 0, length: null }, soon());
          expect(await readAll(body)).toBe("hi\n");
          expect(stat).toMatchObject({ kind: "file", mode: 0o600, uid: 1000, gid: 1000, sizeBytes: 3 });
          const { entries } = await files.list("/home/user", { limit: 100 }, soon());
          expect(entries.map(({ name }) => name).sort()).toEqual(["a", "link", "out", "shm"]);
          expect((await files.list("/", { limit: 100 }, soon())).entries.map(({ name }) => name)).toContain(
            "proc",
          );
          for (const path of [
            ...[
              "/proc/1/status",
              "/proc",
              "/dev/null",
              "/dev/shm/x",
              "/sys",
              "/.holdfast/control/keeper.sock",
            ],
            ...["/usr/bin/env", "/bin/sh", "/home/user/shm", "/home/user/shm/x"],
          ]) {
            await expect(files.stat(path, { follow: true }, soon())).rejects.toMatchObject({
              reason: "not_on_disk",
            });
          }
          await expect(files.list("/proc", { limit: 10 }, soon())).rejects.toMatchObject({
            reason: "not_on_disk",
          });
          await expect(files.stat("/home/user/none", { follow: true }, soon())).rejects.toMatchObject({
            errno: "ENOENT",
          });
          await expect(files.stat("/home/user/out", { follow: true }, soon())).rejects.toMatchObject({
            errno: "ENOENT",
          });
          await expect(files.mkdir("/home/user/new", {}, soon())).rejects.toMatchObject({ errno: "EROFS" });
        } finally {
          await close();
        }
      }
    },
  );

  test("a checkpoint protects its keeper and image from removal until it is discarded", async () => {
    const instance = await launch();
    await dump(instance);
    await machine.driver.stop(instance.sandboxId, { graceMs: 0 }, soon());
    const layout = layoutOf(machine.stateDir, machine.installation);
    const order = placeOf(instance.sandboxId, "order.json");
    const before = JSON.parse(readFileSync(order, "utf8"));
    writeFileSync(order, JSON.stringify({ ...before, keeperVersion: "newer", imageVersion: "newer" }));
    const { keepers, images } = readReferences(layout);
    expect(keepers).toContain(before.keeperVersion);
    expect(images).toContain(`${before.image}/${before.imageVersion}`);
    mkdirSync(placeOf(instance.sandboxId, "checkpoints", "ckp_half.part"));
    await machine.driver.discard(instance.sandboxId, null, soon());
    expect(readdirSync(placeOf(instance.sandboxId, "checkpoints"))).toEqual([]);
    expect(readReferences(layout).keepers).not.toContain(before.keeperVersion);
  });
});

describe.skipIf(!("path" in found))("processes of an aborted restore", () => {
  const ROUNDS = Number(process.env.HOLDFAST_ABORTED_RESTORES ?? 12);

  test("never run: the sandbox's files stay as at the checkpoint, whenever the restore is aborted", async () => {
    const instance = await launch();
    const { sandboxId } = instance;
    const counter = await python(await connect(instance), COUNTER);
    await countTo(await connect(instance), counter, 5);
    const checkpoint = await dump(instance);
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    const journal = () => statSync(placeOf(sandboxId, "control", "journals", counter)).size;
    const size = journal();
    let generation = instance.generation + 1;
    // Measures how long a complete restore takes on this host.
    const began = performance.now();
    await machine.driver.restore(restoreOrder(instance, checkpoint, { generation }), soon());
    const wholeMs = performance.now() - began;
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    for (let round = 0; round < ROUNDS; round += 1) {
      const abort = new AbortController();
      generation += 1;
      const aborted = machine.driver
        .restore(restoreOrder(instance, checkpoint, { generation }), abort.signal)
        .catch((error: unknown) => error);
      await pause(wholeMs * (0.5 + round / ROUNDS / 2));
      abort.abort(new Error("no longer wanted"));
      await aborted;
      await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
      expect({ round, size: journal() }).toEqual({ round, size });
    }
  }, 300_000);
});

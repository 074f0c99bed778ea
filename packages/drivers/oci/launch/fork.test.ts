/** Named checkpoints and their forks, with the real CRIU of this host. */
import { existsSync, readdirSync, readFileSync, rmSync, truncateSync } from "node:fs";
import { join } from "node:path";
import {
  type CheckpointId,
  DEFAULT_RESOURCES,
  type ExecId,
  newCheckpointId,
  newExecId,
  newSandboxId,
  type Resources,
  type SandboxId,
  type StandbyKind,
} from "@holdfast/contract";
import type { ExecOrder, Instance, Link } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { findCriu } from "../checkpoint/find-criu.ts";
import { layoutOf } from "../machine/layout.ts";
import { readReferences } from "../machine/sandbox-notes.ts";
import { readCgroups } from "../proc/proc-files.ts";
import { processOf, type TestMachine, testMachine } from "../testing/test-machine.ts";

const found = await findCriu();
const soon = () => AbortSignal.timeout(40_000);
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

async function connect(instance: Instance): Promise<Link> {
  const link = await machine.driver.connect(instance, soon());
  links.push(link);
  return link;
}

async function launch(resources: Partial<Resources> = {}): Promise<[Instance, Link]> {
  const sandboxId = newSandboxId();
  ids.push(sandboxId);
  const order = orderFor(sandboxId, { resources: { ...DEFAULT_RESOURCES, ...resources } });
  const instance = await machine.driver.launch(order, soon());
  return [instance, await connect(instance)];
}

interface Kept {
  sandboxId: SandboxId;
  id: CheckpointId;
  generation: number;
  kind: StandbyKind;
}

const MB = 1_048_576;

/** Saves a checkpoint in the same steps as the engine: closes the links, freezes, saves and thaws. */
async function save(
  { sandboxId, generation }: Instance,
  {
    kind = "memory",
    journals = [],
    maxBytes = 1_024 * MB,
  }: { kind?: StandbyKind; journals?: readonly ExecId[]; maxBytes?: number } = {},
): Promise<Kept & { sizeBytes: number; memoryBytes: number }> {
  for (const link of links.splice(0)) link.close();
  const id = newCheckpointId();
  await machine.driver.freeze(sandboxId, soon());
  try {
    const order = { sandboxId, generation, id, kind, journals, maxBytes };
    return { ...(await machine.driver.save(order, soon())), sandboxId, id, generation, kind };
  } finally {
    await machine.driver.thaw(sandboxId, soon());
  }
}

async function fork(
  kept: Kept,
  resources: Partial<Resources> = {},
  name = "fork",
): Promise<[Instance, Link]> {
  const sandboxId = newSandboxId();
  ids.push(sandboxId);
  const generation = kept.generation + 1;
  const order = orderFor(sandboxId, { generation, resources: { ...DEFAULT_RESOURCES, ...resources } });
  const instance = await machine.driver.launch({ ...order, name, fork: kept }, soon());
  return [instance, await connect(instance)];
}

async function start(link: Link, argv: readonly string[], user = ""): Promise<ExecId> {
  const id = newExecId();
  const order: ExecOrder = {
    ...{
      id,
      argv,
      user,
      env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
      cwd: "",
      timeoutMs: 0,
      stdin: false,
    },
    ...{ tty: null, journalCapBytes: 16 * MB, digest: "0".repeat(64) },
  };
  await link.startExec(order, soon());
  return id;
}

async function linesOf(link: Link, id: ExecId): Promise<string[]> {
  let output = "";
  for (let cursor = 0; ; ) {
    const slice = await link.readExec(id, { cursor, maxBytes: 262_144, waitMs: 0 }, soon());
    for (const { data } of slice.records) output += Buffer.from(data).toString();
    if (slice.next === cursor) return output.split("\n").slice(0, -1);
    cursor = slice.next;
  }
}

const countTo = (link: Link, id: ExecId, count: number) =>
  expect.poll(async () => (await linesOf(link, id)).length, { timeout: 20_000 }).toBeGreaterThan(count);
const isGapless = (lines: readonly string[]) => lines.every((line, index) => line === String(index));
const placeOf = (id: SandboxId, ...path: string[]) => join(machine.stateDir, "sandboxes", id, ...path);
const COUNTER = "i = 0\nimport time\nwhile True:\n  print(i, flush=True); i += 1; time.sleep(0.01)";

describe.runIf("path" in found)("a named checkpoint", () => {
  test("leaves the sandbox unchanged, and can be forked more than once", async () => {
    const [instance, link] = await launch();
    const counter = await start(link, ["python3", "-uc", COUNTER]);
    await run(link, "echo before > ~/file");
    await countTo(link, counter, 5);
    const kept = await save(instance, { journals: [counter] });
    const again = await connect(instance);
    const at = (await linesOf(again, counter)).length;
    await run(again, "echo after > ~/file");

    for (const name of ["first", "second"]) {
      const [forked, forkLink] = await fork(kept, {}, name);
      expect((await run(forkLink, "cat /home/user/file")).output).toBe("before\n");
      expect((await run(forkLink, "hostname")).output).toBe(`${name}\n`);
      await countTo(forkLink, counter, at + 20);
      expect(isGapless(await linesOf(forkLink, counter))).toBe(true);
      expect(readCgroups(processOf(forked).pid)).not.toContain(instance.sandboxId);
      const environment = readFileSync(`/proc/${processOf(forked).pid}/environ`, "utf8");
      expect(environment).toContain(`HOLDFAST_SANDBOX=${forked.sandboxId}`);
      expect(environment).not.toContain(instance.sandboxId);
    }
    await countTo(again, counter, at + 20);
    expect(isGapless(await linesOf(again, counter))).toBe(true);
    expect((await run(again, "cat /home/user/file")).output).toBe("after\n");
    const listed = await machine.driver.list(soon());
    expect(listed.map(({ sandboxId, alive }) => [sandboxId, alive]).sort()).toEqual(
      ids.map((id) => [id, true]).sort(),
    );
  });

  test("can be forked after its sandbox has been stopped", async () => {
    const [instance, link] = await launch();
    await run(link, "echo kept > /home/user/file");
    const kept = await save(instance);
    await machine.driver.stop(instance.sandboxId, { graceMs: 0 }, soon());
    const [, forkLink] = await fork(kept);
    expect((await run(forkLink, "cat /home/user/file")).output).toBe("kept\n");
  });

  test("of a fork has the fork's files and memory, and can be forked again", async () => {
    const [instance, link] = await launch();
    const counter = await start(link, ["python3", "-uc", COUNTER]);
    await countTo(link, counter, 3);
    const [child, childLink] = await fork(await save(instance, { journals: [counter] }), {}, "child");
    await run(childLink, "echo child > ~/file");
    const [grandchild, last] = await fork(await save(child, { journals: [counter] }), {}, "grandchild");
    expect((await run(last, "cat /home/user/file")).output).toBe("child\n");
    expect((await run(last, "hostname")).output).toBe("grandchild\n");
    await countTo(last, counter, (await linesOf(last, counter)).length + 5);
    expect(isGapless(await linesOf(last, counter))).toBe(true);
    expect(grandchild.generation).toBe(3);
  });

  test("restores open and deleted files, watches, locks and listeners in the fork", async () => {
    const [instance, link] = await launch();
    const code = [
      "import ctypes,fcntl,os,socket,time",
      "f=open('/home/user/open','w+'); f.write('x'); f.flush()",
      "g=open('/home/user/ghost','w+'); g.write('ghost'); g.flush(); os.unlink('/home/user/ghost')",
      "c=ctypes.CDLL(None); n=c.inotify_init(); c.inotify_add_watch(n,b'/home/user',0x100)",
      "fcntl.flock(f,fcntl.LOCK_EX)",
      "s=socket.socket(); s.bind(('127.0.0.1',4000)); s.listen()",
      "u=socket.socket(socket.AF_UNIX); u.bind('/home/user/sock'); u.listen()",
      "print('up',flush=True)",
      "while not os.path.exists('/home/user/go'): time.sleep(0.01)",
      "g.seek(0); c=socket.create_connection(('127.0.0.1',4000)); f.seek(0)",
      "seen=b'go' in os.read(n,4096)",
      "print(f.read()+g.read(),seen,flush=True)",
    ].join("\n");
    const program = await start(link, ["python3", "-uc", code]);
    await expect.poll(() => linesOf(link, program), { timeout: 20_000 }).toEqual(["up"]);
    const kept = await save(instance, { journals: [program] });
    const [, forkLink] = await fork(kept);
    await run(forkLink, "touch /home/user/go");
    await expect.poll(() => linesOf(forkLink, program), { timeout: 20_000 }).toEqual(["up", "xghost True"]);
    const again = await connect(instance);
    expect(await linesOf(again, program)).toEqual(["up"]);
  });

  test("restores a file watch for the fork's own file, not for the source's", async () => {
    const [instance, link] = await launch();
    const code = [
      "import ctypes,os,select",
      "open('/home/user/watched','w').write('x')",
      "c=ctypes.CDLL(None); n=c.inotify_init(); c.inotify_add_watch(n,b'/home/user/watched',2)",
      "print('up',flush=True)",
      "while select.select([n],[],[]): os.read(n,4096); print(open('/home/user/watched').read().strip(),flush=True)",
    ].join("\n");
    const program = await start(link, ["python3", "-uc", code]);
    await expect.poll(() => linesOf(link, program), { timeout: 20_000 }).toEqual(["up"]);
    const [, forkLink] = await fork(await save(instance, { journals: [program] }));
    const again = await connect(instance);
    await run(again, "echo source >> /home/user/watched");
    await expect.poll(() => linesOf(again, program), { timeout: 20_000 }).toEqual(["up", "xsource"]);
    await run(forkLink, "echo fork >> /home/user/watched");
    await expect.poll(() => linesOf(forkLink, program), { timeout: 20_000 }).toEqual(["up", "xfork"]);
    expect(await linesOf(again, program)).toEqual(["up", "xsource"]);
  });

  test("of a sandbox with its own disk is forked onto a new disk", async () => {
    const disk = { diskMb: 64 };
    const [instance, link] = await launch(disk);
    await run(link, "echo disk > ~/file");
    const kept = await save(instance);
    const [, forkLink] = await fork(kept, disk);
    expect((await run(forkLink, "cat /home/user/file")).output).toBe("disk\n");
    const full = await run(forkLink, "head -c 100M /dev/zero > ~/big; ls -l ~/file");
    expect(full.output).toContain("file");
  });

  test("has forks that can be suspended and woken", async () => {
    const [instance, link] = await launch();
    const counter = await start(link, ["python3", "-uc", COUNTER]);
    await countTo(link, counter, 3);
    const [forked] = await fork(await save(instance, { journals: [counter] }));
    const { sandboxId, generation } = forked;
    for (const each of links.splice(0)) each.close();
    await machine.driver.freeze(sandboxId, soon());
    const checkpoint = await machine.driver.checkpoint(
      { sandboxId, generation, id: newCheckpointId() },
      soon(),
    );
    await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
    const { image, resources } = orderFor(sandboxId);
    const order = { sandboxId, name: "fork", generation: generation + 1, checkpoint, image, resources };
    const woken = await machine.driver.restore(order, soon());
    await machine.driver.thaw(sandboxId, soon());
    const wokenLink = await connect(woken);
    await countTo(wokenLink, counter, (await linesOf(wokenLink, counter)).length + 5);
    expect(isGapless(await linesOf(wokenLink, counter))).toBe(true);
  });

  test("contains only the requested journals, and protects its keeper from removal", async () => {
    const [instance, link] = await launch();
    const [kept, other] = [await start(link, ["sleep", "100"]), await start(link, ["true"])];
    const { id, sandboxId } = await save(instance, { journals: [kept, newExecId()] });
    expect(readdirSync(placeOf(sandboxId, "saved", id, "files", "journals"))).toEqual([kept]);
    expect(existsSync(placeOf(sandboxId, "control", "journals", other))).toBe(true);
    const references = readReferences(layoutOf(machine.stateDir, machine.installation));
    expect(references.keepers).toContain(machine.driver.keeperVersion);
  });
});

describe.runIf("path" in found)("a checkpoint that fails or is removed", () => {
  test("leaves no files if the disk has too little room, and the sandbox keeps running", async () => {
    const [instance, link] = await launch();
    await run(link, "head -c 8M /dev/urandom > ~/big");
    await expect(save(instance, { maxBytes: 4 * MB })).rejects.toThrow("too little room");
    expect(readdirSync(placeOf(instance.sandboxId, "saved"))).toEqual([]);
    expect((await run(await connect(instance), "echo on")).output).toBe("on\n");
  });

  test("fails a fork before anything runs if it is truncated or deleted", async () => {
    const [instance] = await launch();
    const kept = await save(instance);
    const images = placeOf(instance.sandboxId, "saved", kept.id, "images");
    const [pages = ""] = readdirSync(images).filter((name) => name.startsWith("pages-"));
    truncateSync(join(images, pages), 4096);
    await expect(fork(kept)).rejects.toMatchObject({ code: "checkpoint_damaged" });
    rmSync(placeOf(instance.sandboxId, "saved", kept.id), { recursive: true });
    await expect(fork(kept)).rejects.toMatchObject({ code: "checkpoint_missing" });
    for (const id of ids.slice(1)) expect(existsSync(placeOf(id))).toBe(false);
  });

  test.each([1, 30, 80, 150, 250])("aborted after %i ms leaves the sandbox unchanged", async (ms) => {
    const [instance, link] = await launch();
    const counter = await start(link, ["python3", "-uc", COUNTER]);
    await run(link, "head -c 8M /dev/urandom > /home/user/big");
    for (const each of links.splice(0)) each.close();
    const { sandboxId, generation } = instance;
    await machine.driver.freeze(sandboxId, soon());
    const order = { sandboxId, generation, id: newCheckpointId(), kind: "memory", journals: [] } as const;
    const saving = machine.driver.save({ ...order, maxBytes: 1_024 * MB }, AbortSignal.timeout(ms));
    const isKept = await saving.then(
      () => true,
      () => false,
    );
    await machine.driver.thaw(sandboxId, soon());
    const names = existsSync(placeOf(sandboxId, "saved")) ? readdirSync(placeOf(sandboxId, "saved")) : [];
    expect(names).toEqual(isKept ? [order.id] : []);
    const again = await connect(instance);
    await countTo(again, counter, (await linesOf(again, counter)).length + 3);
    expect(isGapless(await linesOf(again, counter))).toBe(true);
  });

  test.each([1, 40, 80, 120, 160, 220])(
    "leaves nothing of a fork whose launch is aborted after %i ms",
    async (ms) => {
      const [instance] = await launch();
      const kept = await save(instance);
      const sandboxId = newSandboxId();
      const order = { ...orderFor(sandboxId, { generation: 2 }), fork: kept };
      await machine.driver.launch(order, AbortSignal.timeout(ms)).catch(() => undefined);
      expect(await machine.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      await machine.driver.destroy(sandboxId, soon());
      expect((await machine.driver.list(soon())).map((each) => each.sandboxId)).toEqual([instance.sandboxId]);
      const [, link] = await fork(kept);
      expect((await run(link, "echo here")).output).toBe("here\n");
    },
  );

  test.each(["by itself", "with its sandbox"])(
    "removed %s during a copy never yields a fork with half of its files",
    async (how) => {
      for (const ms of [0, 5, 10, 20, 30]) {
        const [instance, link] = await launch();
        const { sandboxId } = instance;
        await run(
          link,
          "cd /home/user; for i in $(seq 300); do echo $i > $i; done; head -c 64M /dev/zero > big",
        );
        const kept = await save(instance, { kind: "files" });
        await machine.driver.stop(sandboxId, { graceMs: 0 }, soon());
        const copying = fork(kept).then(
          async ([, forkLink]) => (await run(forkLink, "ls /home/user | wc -l")).output.trim(),
          (error: { code?: string }) => error.code,
        );
        await new Promise((resolve) => setTimeout(resolve, ms));
        await (how === "by itself"
          ? machine.driver.unsave(sandboxId, [], soon())
          : machine.driver.destroy(sandboxId, soon()));
        expect(["301", "checkpoint_missing"]).toContain(await copying);
        await expect(fork(kept)).rejects.toMatchObject({ code: "checkpoint_missing" });
      }
    },
  );

  test("is removed if it is not in the list of checkpoints to keep", async () => {
    const [instance] = await launch();
    const [one, two] = [await save(instance), await save(instance)];
    await machine.driver.unsave(instance.sandboxId, [two.id], soon());
    expect(readdirSync(placeOf(instance.sandboxId, "saved"))).toEqual([two.id]);
    await expect(fork(one)).rejects.toThrow();
    await fork(two);
  });
});

test("a checkpoint of kind files holds only files, and its fork starts without the source's execs", async () => {
  const [instance, link] = await launch();
  await run(link, "echo files > ~/file");
  const kept = await save(instance, { kind: "files" });
  expect(kept.memoryBytes).toBe(0);
  const [, forkLink] = await fork(kept);
  expect((await run(forkLink, "cat /home/user/file")).output).toBe("files\n");
  expect(await forkLink.listExecs(soon())).toHaveLength(1);
});

/** Memory standby with several runtimes, images and host set-ups, and with servers that are killed. */
import { execFileSync } from "node:child_process";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  DEFAULT_RESOURCES,
  newCheckpointId,
  newExecId,
  newInstallationId,
  newSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import { type Checkpoint, type Instance, type LaunchOrder, type Link, systemClock } from "@holdfast/engine";
import { pack } from "tar-stream";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import type { OciDriver } from "../driver.ts";
import { findBinary } from "../machine/runtime.ts";
import { createOciDriver, type OciMachine, type OciOptions } from "../open-driver.ts";
import { killedServer } from "../testing/killed-server.ts";
import { silent, type TestMachine, testMachine } from "../testing/test-machine.ts";
import { findCriu } from "./find-criu.ts";

const found = await findCriu();
const soon = () => AbortSignal.timeout(40_000);

/** A shell script that prints the number of each line that it reads. */
const COUNTER = "n=0; while read x; do n=$((n+1)); echo $n; done";

/** Starts the counter; returns a function that sends it line `line` and returns its output. */
async function startCounter(link: Link): Promise<(link: Link, line: number) => Promise<string>> {
  const id = newExecId();
  const order = {
    id,
    argv: ["/bin/sh", "-c", COUNTER],
    env: { PATH: "/usr/bin:/bin" },
    cwd: "/",
    user: "",
    timeoutMs: 0,
    stdin: true,
    tty: null,
    journalCapBytes: 1_048_576,
    digest: "0".repeat(64),
  };
  await link.startExec(order, soon());
  let cursor = 0;
  return async (current, line) => {
    await current.writeStdin(id, { offset: (line - 1) * 2, data: Buffer.from("x\n"), end: false }, soon());
    const slice = await current.readExec(id, { cursor, maxBytes: 65_536, waitMs: 20_000 }, soon());
    cursor = slice.next;
    return Buffer.concat(slice.records.map(({ data }) => data)).toString();
  };
}

interface Suspended {
  order: ReturnType<typeof orderFor>;
  checkpoint: Checkpoint;
}

async function suspend(driver: OciDriver, { sandboxId, generation }: Instance): Promise<Checkpoint> {
  await driver.freeze(sandboxId, soon());
  const checkpoint = await driver.checkpoint({ sandboxId, generation, id: newCheckpointId() }, soon());
  expect(await driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
  return checkpoint;
}

async function wake(driver: OciDriver, { order, checkpoint }: Suspended): Promise<[Instance, Link]> {
  const generation = checkpoint.generation + 1;
  const instance = await driver.restore({ ...order, generation, checkpoint }, soon());
  await driver.thaw(order.sandboxId, soon());
  return [instance, await driver.connect(instance, soon())];
}

/** Suspends and wakes a sandbox twice: a restored instance can be dumped again. */
async function twoCycles(driver: OciDriver, changes: Parameters<typeof orderFor>[1] = {}): Promise<void> {
  const order = orderFor(newSandboxId(), changes);
  const { sandboxId } = order;
  try {
    let instance = await driver.launch(order, soon());
    let link = await driver.connect(instance, soon());
    const count = await startCounter(link);
    expect(await count(link, 1)).toBe("1\n");
    for (const line of [2, 3]) {
      link.close();
      [instance, link] = await wake(driver, { order, checkpoint: await suspend(driver, instance) });
      expect(await count(link, line)).toBe(`${line}\n`);
      expect((await run(link, "echo $((6*7))")).output).toBe("42\n");
    }
    link.close();
  } finally {
    await driver.stop(sandboxId, { graceMs: 0 }, soon());
    await driver.destroy(sandboxId, soon());
  }
}

describe.skipIf(!("path" in found))("memory standby", () => {
  for (const runtime of ["crun", "runc"].filter((name) => findBinary(name) !== null)) {
    test(`an instance launched by ${runtime} is restored`, async () => {
      const machine = await testMachine(runtime);
      expect(machine.driver.support).toEqual({ kind: "memory", why: null });
      await twoCycles(machine.driver).finally(() => machine.dispose());
    }, 60_000);
  }

  test("works in a state directory that only root can access", async () => {
    const closed = mkdtempSync(join(tmpdir(), "holdfast-closed-"));
    chmodSync(closed, 0o700);
    const options = { stateDir: join(closed, "state"), installation: newInstallationId() };
    const { driver } = await createOciDriver({ ...options, log: silent, clock: systemClock });
    expect(driver.support).toEqual({ kind: "memory", why: null });
    await twoCycles(driver);
    await twoCycles(driver, { resources: { ...DEFAULT_RESOURCES, diskMb: 64 } });
    await driver.close();
    rmSync(closed, { recursive: true });
  }, 60_000);

  test("an instance of an imported image is restored, with programs from its own root", async () => {
    const machine = await testMachine();
    try {
      await machine.driver.images.import("small", { tar: shellImage() }, soon());
      await twoCycles(machine.driver, { image: "small" });
    } finally {
      await machine.dispose();
    }
  }, 60_000);
});

async function* shellImage(): AsyncGenerator<Uint8Array> {
  const libraries = execFileSync("ldd", ["/bin/sh"], { encoding: "utf8" }).match(/\/\S+/g) ?? [];
  const archive = pack();
  for (const path of new Set(["/bin/sh", ...libraries])) {
    archive.entry({ name: path.slice(1), mode: 0o755 }, readFileSync(path));
  }
  archive.finalize();
  for await (const chunk of archive as unknown as AsyncIterable<Buffer>) yield chunk;
}

describe("without a working CRIU", () => {
  const installation = newInstallationId();
  const driverWith = async (criu: string, act: (machine: OciMachine, stateDir: string) => Promise<void>) => {
    const stateDir = mkdtempSync(join(tmpdir(), "holdfast-without-"));
    const options: OciOptions = { stateDir, installation, criu, log: silent, clock: systemClock };
    const machine = await createOciDriver(options);
    try {
      await act(machine, stateDir);
      expect(await machine.driver.list(soon())).toEqual([]);
    } finally {
      await machine.driver.close();
      rmSync(stateDir, { recursive: true });
    }
  };

  test("standby keeps only files, and the driver reports why", async () => {
    await driverWith("/nonexistent/criu", async ({ driver }) => {
      expect(driver.support).toMatchObject({
        kind: "files",
        why: expect.stringContaining("/nonexistent/criu"),
      });
      const order = orderFor(newSandboxId());
      const { sandboxId } = order;
      const instance = await driver.launch(order, soon());
      await driver.freeze(sandboxId, soon());
      const checkpointOrder = { sandboxId, generation: instance.generation, id: newCheckpointId() };
      await expect(driver.checkpoint(checkpointOrder, soon())).rejects.toMatchObject({
        code: "checkpoint_dump",
      });
      await driver.stop(sandboxId, { graceMs: 0 }, soon());
      await driver.destroy(sandboxId, soon());
    });
  });

  test.skipIf(!("path" in found))(
    "a CRIU that passes its checks but can't dump is tried once and then not used",
    async () => {
      const directory = mkdtempSync("/var/tmp/holdfast-fake-criu-");
      const fakeCriu = join(directory, "criu");
      const real = "path" in found ? found.path : "";
      const tried = join(directory, "tried");
      const script = `case "$1" in dump) echo tried >> ${tried}; exit 1;; *) exec ${real} "$@";; esac`;
      writeFileSync(fakeCriu, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
      try {
        await driverWith(fakeCriu, async ({ driver }, stateDir) => {
          expect(driver.support).toMatchObject({
            kind: "files",
            why: expect.stringContaining("failed to dump and restore memory"),
          });
          expect(readFileSync(tried, "utf8")).toBe("tried\n");
          const again = { stateDir, installation, criu: fakeCriu, log: silent, clock: systemClock };
          expect((await createOciDriver(again)).driver.support).toEqual(driver.support);
          expect(readFileSync(tried, "utf8")).toBe("tried\n");
        });
      } finally {
        rmSync(directory, { recursive: true });
      }
    },
  );
});

describe.skipIf(!("path" in found))("a server that is killed", () => {
  let machine: TestMachine;
  beforeAll(async () => {
    machine = await testMachine();
  });
  afterAll(() => machine?.dispose());

  /** Launches an instance with a counter that has printed 1, and closes the link. */
  const counting = async (order: LaunchOrder) => {
    const instance = await machine.driver.launch(order, soon());
    const link = await machine.driver.connect(instance, soon());
    const count = await startCounter(link);
    expect(await count(link, 1)).toBe("1\n");
    link.close();
    return { instance, count };
  };

  const removed = async (id: SandboxId) => {
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    await machine.driver.destroy(id, soon());
  };

  test.for([0, 30, 80, 150, 250])("%i ms into a dump leaves an instance that keeps running", async (ms) => {
    const { driver, stateDir } = machine;
    const order = orderFor(newSandboxId());
    const { sandboxId } = order;
    try {
      const { instance, count } = await counting(order);
      await driver.freeze(sandboxId, soon());
      const dump = { sandboxId, generation: 1, id: newCheckpointId() };
      await killedServer(machine, "checkpoint", dump, { afterMs: ms });
      expect(await driver.recover(instance, soon())).toEqual(instance);
      await driver.thaw(sandboxId, soon());
      const after = await driver.connect(instance, soon());
      expect(await count(after, 2)).toBe("2\n");
      after.close();
      const [next, woken] = await wake(driver, { order, checkpoint: await suspend(driver, instance) });
      expect(await count(woken, 3)).toBe("3\n");
      woken.close();
      const names = readdirSync(join(stateDir, "sandboxes", sandboxId, "checkpoints"));
      expect(names.filter((name) => name.endsWith(".part"))).toEqual([]);
      expect(next.generation).toBe(2);
    } finally {
      await removed(sandboxId);
    }
  });

  test.for([0, 30, 80, 150, 250])("%i ms into a restore leaves a usable checkpoint", async (ms) => {
    const { driver } = machine;
    const order = orderFor(newSandboxId());
    const { sandboxId } = order;
    try {
      const { instance, count } = await counting(order);
      const checkpoint = await suspend(driver, instance);
      await killedServer(machine, "restore", { ...order, generation: 2, checkpoint }, { afterMs: ms });
      expect(await driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      const [, woken] = await wake(driver, { order: { ...order }, checkpoint });
      expect(await count(woken, 2)).toBe("2\n");
      woken.close();
    } finally {
      await removed(sandboxId);
    }
  });
});

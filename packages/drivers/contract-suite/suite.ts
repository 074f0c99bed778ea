import {
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  type ExecId,
  newCheckpointId,
  newExecId,
  newSandboxId,
  type Resources,
  type SandboxId,
} from "@holdfast/contract";
import type {
  CapabilityName,
  Driver,
  DriverCapabilities,
  ExecOrder,
  Instance,
  LaunchOrder,
  Link,
  Observation,
  ProcessSeen,
  ProcessSnapshot,
  Usage,
} from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, type TestContext, test } from "vitest";
import { describePorts } from "./port-suite.ts";

/** A driver with its own state, and operations on its host that the driver itself does not offer. */
interface DriverUnderTest {
  driver: Driver;
  /** Creates another driver object for the same state, as a restarted server does. */
  again(): Promise<Driver>;
  /** Kills the instance's PID 1, as an operator or the kernel might. */
  kill(instance: Instance): void;
  /**
   * Returns copies of the instance that no process matches: one with another start time of PID 1, and one from another
   * boot of the host.
   */
  strangers(instance: Instance): Instance[];
  /** Stops the instance's PID 1 with SIGSTOP, as a debugger might. */
  halt(instance: Instance): void;
  /** Unmounts the instance's root on the host, without using the driver. */
  takeRootOff(instance: Instance): void;
  /**
   * Simulates a reboot of the host for this driver's instances: their processes end, their files survive, and the
   * driver finds that the instances belong to an earlier boot.
   */
  reboot(): Promise<void>;
  /** Paths of the host that must not exist inside a sandbox. */
  hidden: readonly string[];
  /** Removes everything. Fails if the driver left something behind. */
  dispose(): Promise<void>;
}

const CALL_MS = 20_000;
const soon = (): AbortSignal => AbortSignal.timeout(CALL_MS);
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Returns a launch order with the fields of a first launch; `changes` replace some of the fields. */
export const orderFor = (sandboxId: SandboxId, changes: Partial<LaunchOrder> = {}): LaunchOrder => ({
  sandboxId,
  name: `n${sandboxId.slice(4)}`,
  generation: 1,
  image: DEFAULT_IMAGE,
  resources: DEFAULT_RESOURCES,
  restart: false,
  ...changes,
});

interface Ran {
  exitCode: number;
  output: string;
}

/** An exec order for a shell command, with a timeout. */
const commandOf = (command: string, changes: Partial<ExecOrder> = {}): ExecOrder => ({
  id: newExecId(),
  argv: ["/bin/sh", "-c", command],
  env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
  cwd: "/",
  user: "",
  timeoutMs: CALL_MS,
  stdin: false,
  tty: null,
  journalCapBytes: 4 * 1_048_576,
  digest: "0".repeat(64),
  ...changes,
});

/** Starts a shell command without waiting for its end. */
export async function start(link: Link, command: string, changes: Partial<ExecOrder> = {}): Promise<ExecId> {
  const order = commandOf(command, changes);
  await link.startExec(order, soon());
  return order.id;
}

/** Runs a shell command to its end and returns its output and exit code. */
export async function run(
  link: Link,
  command: string,
  user = "",
  tty: ExecOrder["tty"] = null,
): Promise<Ran> {
  const id = await start(link, command, { user, tty });
  let output = "";
  for (let cursor = 0, more = true; more; ) {
    const slice = await link.readExec(
      id,
      { cursor, maxBytes: 262_144, waitMs: 5_000 },
      AbortSignal.timeout(CALL_MS * 2),
    );
    for (const record of slice.records) output += Buffer.from(record.data).toString();
    cursor = slice.next;
    more = slice.more;
  }
  const exec = (await link.listExecs(soon())).find((known) => known.id === id);
  return { exitCode: exec?.exitCode ?? Number.NaN, output };
}

/** A program in which two threads wait for each other's lock, and the main thread waits for both. */
const DEADLOCK = `
import threading, time
locks = [threading.Lock(), threading.Lock()]
def take(first, second):
    with locks[first]:
        time.sleep(0.2)
        locks[second].acquire()
threads = [threading.Thread(target=take, args=order) for order in ((0, 1), (1, 0))]
for thread in threads: thread.start()
for thread in threads: thread.join()
`;

const ZOMBIES = `
import os, time
for _ in range(20):
    if os.fork() == 0: os._exit(0)
time.sleep(1000)
`;

/** Members that a driver must provide for each capability that it declares. */
const METHODS: { [Name in CapabilityName]: readonly (keyof NonNullable<DriverCapabilities[Name]>)[] } = {
  freezer: ["freeze", "thaw"],
  standby: ["support", "memoryBytes", "checkpoint", "restore", "discard"],
  checkpoints: ["save", "unsave"],
  drives: ["directories", "mount", "unmount"],
  ports: ["dial"],
  journals: ["read", "end", "archive", "remove", "archived", "drop"],
  outsideView: ["measure", "inspect", "remount", "written"],
  offlineFiles: ["files", "missing"],
  images: ["list", "get", "import", "remove"],
};

/**
 * Defines the tests that every driver must pass. Tests of capabilities that the driver does not declare are skipped.
 */
export function describeDriver(name: string, make: () => Promise<DriverUnderTest>): void {
  describe(`the ${name} driver`, () => {
    let world: DriverUnderTest;
    const ids: SandboxId[] = [];
    const links: Link[] = [];

    let current: TestContext;
    /** Returns the capability, or skips the test if the driver does not declare it. */
    const use = <Name extends CapabilityName>(name: Name): NonNullable<DriverCapabilities[Name]> =>
      world.driver.capabilities[name] ?? current.skip(`the driver does not declare ${name}`);

    beforeAll(async () => {
      world = await make();
    });
    beforeEach((context) => {
      current = context;
    });
    afterEach(async () => {
      for (const link of links.splice(0)) link.close();
      for (const id of ids.splice(0)) {
        await world.driver.stop(id, { graceMs: 0 }, soon());
        await world.driver.destroy(id, soon());
      }
    });
    afterAll(() => world?.dispose());

    const launch = (resources: Partial<Resources> = {}, signal = soon()): Promise<Instance> => {
      const sandboxId = newSandboxId();
      ids.push(sandboxId);
      const order = orderFor(sandboxId, { resources: { ...DEFAULT_RESOURCES, ...resources } });
      return world.driver.launch(order, signal);
    };
    const restart = ({ sandboxId, generation }: Instance, signal = soon()): Promise<Instance> =>
      world.driver.launch(orderFor(sandboxId, { generation: generation + 1, restart: true }), signal);
    const connect = async (instance: Instance, driver = world.driver): Promise<Link> => {
      const link = await driver.connect(instance, soon());
      links.push(link);
      return link;
    };
    const observe = async (id: SandboxId): Promise<Observation> => {
      const seen = (await world.driver.observe([id], soon())).get(id);
      if (seen === undefined) throw new Error("observe omitted an id");
      return seen;
    };
    const untilAbsent = async (id: SandboxId): Promise<Observation> => {
      const end = Date.now() + CALL_MS;
      for (;;) {
        const seen = await observe(id);
        if (seen.seen === "absent" || Date.now() > end) return seen;
        await pause(5);
      }
    };
    const thingsOf = async (id: SandboxId): Promise<string[]> =>
      (await world.driver.list(soon())).find(({ sandboxId }) => sandboxId === id)?.things ?? [];

    test("each declared capability has its methods", () => {
      for (const [name, methods] of Object.entries(METHODS)) {
        const capability: unknown = world.driver.capabilities[name as CapabilityName];
        if (capability === null) continue;
        for (const method of methods)
          expect(capability, `${name}.${method}`).toHaveProperty(method, expect.anything());
      }
    });

    test("a driver with memory standby or checkpoints has a freezer", () => {
      const { standby, checkpoints, freezer } = world.driver.capabilities;
      if (standby !== null || checkpoints !== null) expect(freezer).not.toBeNull();
    });

    test("a launched instance answers, runs commands and is seen", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await link.ping(soon());
      expect(await run(link, "echo hi; exit 3")).toEqual({ exitCode: 3, output: "hi\n" });
      const seen = await observe(instance.sandboxId);
      expect(seen).toMatchObject({
        seen: "present",
        identity: instance.identity,
        state: "running",
        oomKills: 0,
        problems: [],
      });
      expect(await thingsOf(instance.sandboxId)).not.toEqual([]);
      const { driver } = world;
      expect(instance).toMatchObject({ keeperVersion: driver.keeperVersion, generation: 1 });
      expect(driver.isOfThisBoot(instance.identity)).toBe(true);
    });

    test("a launch reports each step that it begins", async () => {
      const steps: string[] = [];
      const sandboxId = newSandboxId();
      ids.push(sandboxId);
      await world.driver.launch(orderFor(sandboxId, { onStep: (step) => steps.push(step) }), soon());
      expect(steps.slice(0, 4)).toEqual(["files", "root", "runtime", "keeper"]);
    });

    test("a listed sandbox is alive as long as it has processes", async () => {
      const { sandboxId } = await launch();
      const isAlive = async () =>
        (await world.driver.list(soon())).find((found) => found.sandboxId === sandboxId)?.alive;
      expect(await isAlive()).toBe(true);
      await world.driver.stop(sandboxId, { graceMs: 0 }, soon());
      expect(await isAlive()).toBe(false);
    });

    test("the root seen from outside is the root seen from inside", async () => {
      const instance = await launch();
      const { root } = await (await connect(instance)).probe(soon());
      expect(await observe(instance.sandboxId)).toMatchObject({ root });
    });

    test.for(["", "root"])("a sandbox has its own terminals, as user '%s'", async (user) => {
      const link = await connect(await launch());
      const script = 'tty; stty size; stat -c "%U %a %G" "$(tty)"; echo typed > /dev/tty; [ -t 2 ] && exit 5';
      const { exitCode, output } = await run(link, script, user, { cols: 100, rows: 30 });
      const owner = user === "root" ? "root" : expect.stringMatching(/^(?!root$)/);
      const [name, size, stat, typed] = output.trim().split("\r\n");
      expect([name, size, stat?.split(" ")[0], typed]).toEqual(["/dev/pts/0", "30 100", owner, "typed"]);
      expect(exitCode).toBe(5);
    });

    test("a stop ends every process and returns absent", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await run(link, "setsid sleep 1000 >/dev/null 2>&1 &");
      expect(await world.driver.stop(instance.sandboxId, { graceMs: 0 }, soon())).toMatchObject({
        seen: "absent",
      });
      expect((await thingsOf(instance.sandboxId)).filter((thing) => thing.includes("process"))).toEqual([]);
    });

    test("a stop with a grace period ends an instance too", async () => {
      const instance = await launch();
      await connect(instance);
      expect(await world.driver.stop(instance.sandboxId, { graceMs: 50 }, soon())).toMatchObject({
        seen: "absent",
      });
    });

    test("stop and destroy can be repeated, and nothing is left", async () => {
      const { sandboxId } = await launch();
      for (let i = 0; i < 2; i++) {
        expect(await world.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
        await world.driver.destroy(sandboxId, soon());
      }
      expect(await observe(sandboxId)).toMatchObject({ seen: "absent", leftovers: [] });
      expect(await thingsOf(sandboxId)).toEqual([]);
    });

    test("destroy is refused while processes run", async () => {
      const { sandboxId } = await launch();
      await expect(world.driver.destroy(sandboxId, soon())).rejects.toThrow();
      expect(await observe(sandboxId)).toMatchObject({ seen: "present", problems: [] });
    });

    test("a sandbox that was never launched is absent, and can be stopped and destroyed", async () => {
      const id = newSandboxId();
      expect(await observe(id)).toMatchObject({ seen: "absent", leftovers: [] });
      expect(await world.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      await world.driver.destroy(id, soon());
    });

    test("an instance whose PID 1 was killed is absent with leftovers, and can be destroyed", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await run(link, "setsid sleep 1000 >/dev/null 2>&1 &");
      world.kill(instance);
      const seen = await untilAbsent(instance.sandboxId);
      expect(seen.seen === "absent" && seen.leftovers.length > 0).toBe(true);
      expect(await world.driver.recover(instance, soon())).toBeNull();
      await world.driver.destroy(instance.sandboxId, soon());
      expect(await thingsOf(instance.sandboxId)).toEqual([]);
    });

    test("a frozen instance is seen as frozen, and serves again once thawed", async () => {
      const instance = await launch();
      const link = await connect(instance);
      await use("freezer").freeze(instance.sandboxId, soon());
      expect(await observe(instance.sandboxId)).toMatchObject({ seen: "present", state: "frozen" });
      await expect(link.ping(AbortSignal.timeout(100))).rejects.toThrow();
      await use("freezer").thaw(instance.sandboxId, soon());
      await link.ping(soon());
      expect(await observe(instance.sandboxId)).toMatchObject({ state: "running", problems: [] });
    });

    test("an instance that was frozen and stopped by a signal serves again once thawed", async () => {
      const instance = await launch();
      const { sandboxId } = instance;
      const link = await connect(instance);
      world.halt(instance);
      await expect.poll(() => observe(sandboxId), { timeout: 5_000 }).toMatchObject({ state: "stopped" });
      await use("freezer").freeze(sandboxId, soon());
      expect(await observe(sandboxId)).toMatchObject({ state: "frozen" });
      await use("freezer").thaw(sandboxId, soon());
      expect(await observe(sandboxId)).toMatchObject({ state: "running", problems: [] });
      expect(await run(link, "echo on")).toEqual({ exitCode: 0, output: "on\n" });
      await use("freezer").thaw(sandboxId, soon());
    });

    test("an instance that is stopped by a signal while it is frozen serves again once thawed", async () => {
      const instance = await launch();
      const { sandboxId } = instance;
      const link = await connect(instance);
      await use("freezer").freeze(sandboxId, soon());
      world.halt(instance);
      await use("freezer").thaw(sandboxId, soon());
      expect(await run(link, "echo on")).toEqual({ exitCode: 0, output: "on\n" });
      expect(await observe(sandboxId)).toMatchObject({ state: "running", problems: [] });
    });

    test("a root that was unmounted on the host is mounted again, and removed with the sandbox", async () => {
      const instance = await launch();
      const { sandboxId } = instance;
      const link = await connect(instance);
      const { root } = await link.probe(soon());
      await run(link, "echo before > /root/a", "root");
      world.takeRootOff(instance);
      expect(await observe(sandboxId)).toMatchObject({ root: null, problems: [{ code: "root_unmounted" }] });
      for (let i = 0; i < 2; i++) {
        await use("outsideView").remount(sandboxId, soon());
        expect(await observe(sandboxId)).toMatchObject({ seen: "present", root, problems: [] });
      }
      expect(await run(link, "echo after >> /root/a; cat /root/a", "root")).toMatchObject({
        output: "before\nafter\n",
      });
      expect(await link.probe(soon())).toMatchObject({ root });
      await world.driver.stop(sandboxId, { graceMs: 0 }, soon());
      const { files, close } = await use("offlineFiles").files(sandboxId, soon());
      expect(await files.stat("/root/a", { follow: false }, soon())).toMatchObject({ sizeBytes: 13 });
      await close();
      await world.driver.destroy(sandboxId, soon());
      expect(await thingsOf(sandboxId)).toEqual([]);
    });

    test("a remount without a running instance is refused", async () => {
      const { sandboxId } = await launch();
      await world.driver.stop(sandboxId, { graceMs: 0 }, soon());
      await expect(use("outsideView").remount(sandboxId, soon())).rejects.toThrow(/instance/);
      await expect(use("outsideView").remount(newSandboxId(), soon())).rejects.toThrow(/instance/);
    });

    test("a frozen instance can be stopped", async () => {
      const instance = await launch();
      await run(await connect(instance), "setsid sleep 1000 >/dev/null 2>&1 &");
      await use("freezer").freeze(instance.sandboxId, soon());
      expect(await world.driver.stop(instance.sandboxId, { graceMs: 0 }, soon())).toMatchObject({
        seen: "absent",
      });
    });

    test("memory is written to disk and restored frozen, if the driver supports it", async ({ skip }) => {
      const { driver } = world;
      const { kind, why } = use("standby").support;
      if (kind !== "memory") return skip(why ?? "");
      const first = await launch();
      const { sandboxId } = first;
      await run(await connect(first), "echo kept > /dev/shm/note");
      for (const link of links.splice(0)) link.close();
      await use("freezer").freeze(sandboxId, soon());
      const checkpoint = await use("standby").checkpoint(
        { sandboxId, generation: 1, id: newCheckpointId() },
        soon(),
      );
      expect(await observe(sandboxId)).toMatchObject({
        seen: "present",
        state: "frozen",
        identity: first.identity,
      });
      await driver.stop(sandboxId, { graceMs: 0 }, soon());
      const { name, image, resources } = orderFor(sandboxId);
      const order = { sandboxId, name, image, resources, checkpoint };
      const second = await use("standby").restore({ ...order, generation: 2 }, soon());
      expect(await observe(sandboxId)).toMatchObject({
        seen: "present",
        state: "frozen",
        identity: second.identity,
      });
      await use("freezer").thaw(sandboxId, soon());
      expect((await run(await connect(second), "cat /dev/shm/note")).output).toBe("kept\n");
      await use("standby").discard(sandboxId, null, soon());
      await driver.stop(sandboxId, { graceMs: 0 }, soon());
      await expect(use("standby").restore({ ...order, generation: 3 }, soon())).rejects.toMatchObject({
        code: "checkpoint_missing",
      });
    });

    test("a supervised command is restarted, also after a restore if the driver supports it", async () => {
      const { driver } = world;
      const instance = await launch();
      const { sandboxId } = instance;
      const row = newExecId();
      const script = "until rm /tmp/end 2>/dev/null; do sleep 0.05; done; echo ended; exit 1";
      const order = commandOf(script, { id: `${row}-1` as ExecId, timeoutMs: 0 });
      /** Ends run number `number` of the process, and waits until the keeper has noticed the end. */
      const endRun = async (link: Link, number: number) => {
        await expect
          .poll(() => link.listSupervised(soon()), { timeout: CALL_MS })
          .toMatchObject([{ execId: `${row}-${number}`, state: "running", restarts: number - 1 }]);
        await run(link, "touch /tmp/end");
        await expect
          .poll(() => link.listSupervised(soon()), { timeout: CALL_MS })
          .toMatchObject([{ state: "waiting" }]);
      };
      const link = await connect(instance);
      await link.superviseExec(order, { on: "failure", max: 3, backoffMs: 1_500 }, soon());
      await endRun(link, 1);
      await endRun(link, 2);
      if (driver.capabilities.standby?.support.kind !== "memory") return;
      for (const open of links.splice(0)) open.close();
      await use("freezer").freeze(sandboxId, soon());
      const checkpoint = await use("standby").checkpoint(
        { sandboxId, generation: 1, id: newCheckpointId() },
        soon(),
      );
      await driver.stop(sandboxId, { graceMs: 0 }, soon());
      const { name, image, resources } = orderFor(sandboxId);
      const sleeping = { sandboxId, name, image, resources, checkpoint, generation: 2 };
      const second = await use("standby").restore(sleeping, soon());
      await use("freezer").thaw(sandboxId, soon());
      const later = await connect(second);
      await endRun(later, 3);
      const runs = (await later.listExecs(soon())).filter(({ id }) => id.startsWith(row));
      expect(runs.map(({ state, exitCode }) => [state, exitCode])).toEqual(Array(3).fill(["exited", 1]));
    });

    test("files of a sandbox without an instance can be read, except those that only an instance has", async () => {
      const { sandboxId } = await launch();
      const { driver } = world;
      await driver.stop(sandboxId, { graceMs: 0 }, soon());
      const { files, close } = await use("offlineFiles").files(sandboxId, soon());
      const { entries } = await files.list("/home", { limit: 10 }, soon());
      expect(entries).toMatchObject([{ name: "user", stat: { kind: "directory", uid: 1000 } }]);
      await expect(files.stat("/proc/1/status", { follow: true }, soon())).rejects.toMatchObject({
        reason: "not_on_disk",
      });
      await close();
    });

    test("the next server's driver takes an instance over", async () => {
      const instance = await launch();
      const next = await world.again();
      expect(await next.recover(instance, soon())).toEqual(instance);
      const link = await connect(instance, next);
      expect(await run(link, "echo still here")).toEqual({ exitCode: 0, output: "still here\n" });
      for (const stranger of world.strangers(instance))
        expect(await next.recover(stranger, soon())).toBeNull();
      expect(await next.stop(instance.sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      await next.destroy(instance.sandboxId, soon());
    });

    test("a first launch is refused if files of an earlier instance exist", async () => {
      const { sandboxId } = await launch();
      await expect(world.driver.launch(orderFor(sandboxId), soon())).rejects.toMatchObject({
        code: "launch_failed",
        cause: { code: "launch_files" },
      });
      expect(await observe(sandboxId)).toMatchObject({ seen: "present", problems: [] });
    });

    for (const resources of [{}, { diskMb: 64 }] as const) {
      const kind = "diskMb" in resources ? "with its own disk" : "without its own disk";

      test.for(["a stop", "a kill", "a reboot of the host"])(
        `an instance is launched again on the files of the last one, ${kind}, after %s`,
        async (end) => {
          const first = await launch(resources);
          const command = "rm /etc/services; echo mine > /root/a; ln /root/a /root/b; chmod 4711 /root/a";
          expect(await run(await connect(first), command, "root")).toMatchObject({ exitCode: 0 });
          if (end === "a reboot of the host") await world.reboot();
          else if (end === "a kill") world.kill(first);
          else await world.driver.stop(first.sandboxId, { graceMs: 0 }, soon());
          expect(await untilAbsent(first.sandboxId)).toMatchObject({ seen: "absent" });
          const second = await restart(first);
          expect(second).toMatchObject({ sandboxId: first.sandboxId, generation: 2 });
          expect(await observe(first.sandboxId)).toMatchObject({
            seen: "present",
            identity: second.identity,
            oomKills: 0,
          });
          const link = await connect(second);
          const look = "ls /etc/services; cat /root/b; stat -c '%a %h' /root/a; hostname";
          const name = orderFor(first.sandboxId).name;
          expect((await run(link, look, "root")).output.split("\n").slice(1)).toEqual([
            "mine",
            "4711 2",
            name,
            "",
          ]);
          const { root } = await link.probe(soon());
          expect(await observe(first.sandboxId)).toMatchObject({ root, problems: [] });
        },
      );

      test(`the remains of an instance can be removed after a reboot of the host, ${kind}`, async () => {
        const first = await launch(resources);
        await world.reboot();
        expect(await world.driver.recover(first, soon())).toBeNull();
        const seen = await observe(first.sandboxId);
        expect(seen.seen === "absent" && seen.leftovers.length > 0).toBe(true);
        await world.driver.destroy(first.sandboxId, soon());
        expect(await thingsOf(first.sandboxId)).toEqual([]);
      });

      test.for([1, 10, 30])(`a restart aborted after %i ms can be tried again, ${kind}`, async (ms) => {
        const first = await launch(resources);
        await run(await connect(first), "echo mine > /root/a", "root");
        await world.driver.stop(first.sandboxId, { graceMs: 0 }, soon());
        const abort = new AbortController();
        const broken = restart(first, abort.signal).catch((error: unknown) => error);
        await pause(ms);
        abort.abort(new Error("no longer wanted"));
        await broken;
        const { sandboxId } = first;
        expect(await world.driver.stop(sandboxId, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
        const third = await restart({ ...first, generation: 2 });
        expect(await run(await connect(third), "cat /root/a", "root")).toMatchObject({ output: "mine\n" });
      });
    }

    test("OOM kills of the last instance are not counted for the next one", async () => {
      const first = await launch({ memoryMb: 64 });
      await run(await connect(first), "head -c 300000000 /dev/zero | tail -c 200000000 | wc -c");
      const seen = await observe(first.sandboxId);
      expect(seen.seen === "present" && seen.oomKills > 0).toBe(true);
      await world.driver.stop(first.sandboxId, { graceMs: 0 }, soon());
      await restart(first);
      expect(await observe(first.sandboxId)).toMatchObject({ seen: "present", oomKills: 0 });
    });

    test("a restart without the files of an earlier instance is refused, and creates none", async () => {
      const sandboxId = newSandboxId();
      const order = orderFor(sandboxId, { generation: 2, restart: true });
      await expect(world.driver.launch(order, soon())).rejects.toMatchObject({
        code: "launch_failed",
        cause: { code: "launch_files" },
      });
      expect(await thingsOf(sandboxId)).toEqual([]);
    });

    test("a restart beside a living instance is refused, and leaves the instance unchanged", async () => {
      const first = await launch();
      await expect(restart(first)).rejects.toMatchObject({ cause: { code: "launch_files" } });
      expect(await observe(first.sandboxId)).toMatchObject({
        seen: "present",
        identity: first.identity,
        problems: [],
      });
      expect(await run(await connect(first), "echo here")).toEqual({ exitCode: 0, output: "here\n" });
    });

    test("a sandbox's full disk blocks its writes, and nothing else", async () => {
      const [full, neighbour] = await Promise.all([
        launch({ diskMb: 48, memoryMb: 64 }),
        launch({ diskMb: 48 }),
      ]);
      const [link, other] = await Promise.all([connect(full), connect(neighbour)]);
      const dd = "dd if=/dev/zero bs=4k conv=fsync";
      const fill = `for i in 1 2 3; do ${dd} of=/root/fill$i 2>/dev/null; done; ${dd} count=1 of=/root/more 2>&1`;
      expect((await run(link, fill, "root")).output).toMatch(/No space left/);
      expect(await run(link, "echo said", "root")).toEqual({ exitCode: 0, output: "said\n" });
      expect(await run(other, "echo fine > /tmp/a && cat /tmp/a")).toEqual({ exitCode: 0, output: "fine\n" });
      expect(await run(link, "rm /root/fill* && echo x > /root/more", "root")).toMatchObject({ exitCode: 0 });
      expect(await observe(full.sandboxId)).toMatchObject({ problems: [] });
    });

    test("bytes that a sandbox wrote are counted, including those of processes that have ended", async () => {
      const instance = await launch();
      const id = instance.sandboxId;
      const written = async () => (await use("outsideView").written([id], soon())).get(id) ?? Number.NaN;
      const link = await connect(instance);
      const write =
        "i=0; while [ $i -lt 500 ]; do printf %010000d 0; i=$((i+1)); done > /root/a; exec sleep 1000";
      for (const round of [1, 2]) {
        await run(link, `(${write}) >/dev/null 2>&1 & echo $! > /root/pid`, "root");
        await expect.poll(written, { timeout: 15_000 }).toBeGreaterThanOrEqual(round * 5_000_000);
        const before = await written();
        await run(link, "kill -9 $(cat /root/pid); rm /root/a", "root");
        expect(await written()).toBeGreaterThanOrEqual(before);
      }
      const unknown = newSandboxId();
      expect(await use("outsideView").written([unknown], soon())).toEqual(new Map([[unknown, 0]]));
    });

    const usageOf = async (id: SandboxId): Promise<Usage> => {
      const usage = (await use("outsideView").measure([id], soon())).get(id);
      if (usage === undefined) throw new Error("measure omitted an id");
      return usage;
    };

    test("the resource usage of a sandbox is measured", async () => {
      const [busy, idle] = await Promise.all([launch({ cpus: 0.5 }), launch()]);
      const id = busy.sandboxId;
      const before = await usageOf(id);
      const link = await connect(busy);
      await start(link, "while :; do :; done");
      await start(
        link,
        "head -c 20000000 /dev/zero > /dev/shm/held; head -c 5000000 /dev/zero > /root/a; sleep 1000",
        {
          user: "root",
        },
      );
      const grown = async () => {
        const { cpuMs, throttledMs, memoryBytes, writtenBytes, processes } = await usageOf(id);
        return (
          cpuMs > before.cpuMs + 300 &&
          throttledMs > 0 &&
          memoryBytes > 20_000_000 &&
          writtenBytes >= 5_000_000 &&
          processes === 4
        );
      };
      await expect.poll(grown, { timeout: 15_000 }).toBe(true);
      const both = await use("outsideView").measure([id, idle.sandboxId, newSandboxId()], soon());
      expect([...both.keys()]).toEqual([id, idle.sandboxId]);
      expect(both.get(idle.sandboxId)).toMatchObject({ processes: 1, pidsRefused: 0, disk: null });
      expect(both.get(idle.sandboxId)?.cpuMs).toBeLessThan(both.get(id)?.cpuMs ?? 0);
      await use("freezer").freeze(id, soon());
      expect((await usageOf(id)).processes).toBe(4);
    });

    test("forks that the limit on processes refused are counted", async () => {
      const { sandboxId, ...instance } = await launch({ pids: 16 });
      const link = await connect({ sandboxId, ...instance });
      await run(link, "for i in $(seq 1 40); do sleep 1000 >/dev/null 2>&1 & done; exit 0");
      expect(await usageOf(sandboxId)).toMatchObject({ processes: expect.any(Number) });
      expect((await usageOf(sandboxId)).pidsRefused).toBeGreaterThan(0);
    });

    test("a sandbox's own disk is measured, and counts as full when commands can't write to it", async () => {
      const instance = await launch({ diskMb: 48 });
      const shareOf = async () => {
        const { disk } = await usageOf(instance.sandboxId);
        return disk === null ? Number.NaN : disk.usedBytes / disk.limitBytes;
      };
      expect(await shareOf()).toBeLessThan(0.3);
      const link = await connect(instance);
      await run(link, "dd if=/dev/zero of=/root/fill bs=64k conv=fsync 2>/dev/null", "root");
      expect(await shareOf()).toBeGreaterThan(0.97);
      await run(link, "rm /root/fill", "root");
      await expect.poll(shareOf, { timeout: 15_000 }).toBeLessThan(0.3);
    });

    const inspect = (id: SandboxId): Promise<ProcessSnapshot> => use("outsideView").inspect(id, soon());
    const python = (link: Link, code: string): Promise<ExecId> =>
      start(link, "", { argv: ["/usr/bin/python3", "-c", code] });
    /** Returns an assertion about the exec's most recently started process. The assertion polls until it holds. */
    const seenIn = (id: SandboxId, execId: ExecId) => {
      const find = async (): Promise<ProcessSeen | undefined> =>
        (await inspect(id)).processes.findLast((process) => process.execId === execId);
      return expect.poll(find, { timeout: 15_000 });
    };

    const WAITING = [
      ["a busy loop", "while :; do :; done", { on: "cpu", bounded: true }],
      ["a sleep", "exec sleep 1000", { on: "sleep", bounded: true }],
      [
        "a read of a FIFO",
        "mkfifo /tmp/a; exec cat <> /tmp/a",
        { on: "fifo", bounded: false, what: "/tmp/a" },
      ],
      [
        "opening a FIFO without a writer",
        "mkfifo /tmp/b; exec cat /tmp/b",
        { on: "fifo", bounded: false, what: null },
      ],
      ["a pipe", "sleep 1000 | exec cat", { on: "pipe", bounded: false }],
      [
        "a lock",
        "exec 9> /tmp/l; flock 9; exec flock /tmp/l true",
        { on: "lock", bounded: false, what: "/tmp/l" },
      ],
      ["a stopped process", "kill -STOP $$", { on: "stopped", bounded: false }],
    ] as const;
    test.for(WAITING)("the wait of %s is recognised from outside", async ([, command, wait]) => {
      const instance = await launch();
      const exec = await start(await connect(instance), command);
      await seenIn(instance.sandboxId, exec).toMatchObject({ waits: [{ threads: 1, ...wait }] });
    });

    const PROGRAMS = [
      ["a deadlock", DEADLOCK, [{ on: "futex", bounded: false, threads: 3 }]],
      [
        "a lock with a time limit",
        "import threading as t; l = t.Lock(); l.acquire(); l.acquire(timeout=1000)",
        [{ on: "futex", bounded: true }],
      ],
      ["a program that polls", "import select; select.poll().poll()", [{ on: "events", bounded: false }]],
      [
        "a program that polls for a while",
        "import select; select.epoll().poll(1000)",
        [{ on: "events", bounded: true }],
      ],
      [
        "a server",
        "import socket as s; a = s.socket(); a.bind(('127.0.0.1', 0)); a.listen(); a.accept()",
        [{ on: "socket", bounded: false }],
      ],
    ] as const;
    test.for(PROGRAMS)(
      "the waits of all threads of %s are recognised from outside",
      async ([, code, waits]) => {
        const instance = await launch();
        const exec = await python(await connect(instance), code);
        await seenIn(instance.sandboxId, exec).toMatchObject({ waits });
      },
    );

    test("zombie processes are listed with their parent", async () => {
      const instance = await launch();
      const exec = await python(await connect(instance), ZOMBIES);
      const zombies = async () =>
        (await inspect(instance.sandboxId)).processes.filter(({ state }) => state === "Z");
      await expect.poll(zombies, { timeout: 15_000 }).toHaveLength(20);
      const { processes, truncated } = await inspect(instance.sandboxId);
      const parent = processes.find(({ execId, state }) => execId === exec && state !== "Z");
      expect(truncated).toBe(false);
      for (const zombie of await zombies())
        expect(zombie).toMatchObject({
          parent: parent?.pid,
          execId: exec,
          rssBytes: 0,
          waits: [{ on: "zombie", threads: 1 }],
        });
    });

    test("a process is listed with its pid inside, its command line and its exec", async () => {
      const instance = await launch();
      const link = await connect(instance);
      const exec = await start(link, "env -i sleep 4321; :");
      await seenIn(instance.sandboxId, exec).toMatchObject({ name: "sleep", commandLine: "sleep 4321" });
      const { processes } = await inspect(instance.sandboxId);
      expect(processes.map(({ pid, parent }) => [pid, parent])).toEqual(
        (await link.processes(soon())).map(({ pid, parent }) => [pid, parent]),
      );
      const [keeper, shell, sleeper] = processes;
      expect(keeper).toMatchObject({
        pid: 1,
        parent: 0,
        execId: "",
        startTime: expect.stringMatching(/^\d+$/),
      });
      expect(shell).toMatchObject({ execId: exec, threads: 1, waits: [{ on: "child" }] });
      expect(sleeper).toMatchObject({ parent: shell?.pid, execId: exec, state: "S" });
      expect(sleeper?.rssBytes).toBeGreaterThan(0);
      expect(sleeper?.faults).toBeGreaterThan(0);
    });

    test("processor time and system calls of a process grow between inspections", async () => {
      const instance = await launch();
      const exec = await start(await connect(instance), "while read line; do :; done < /dev/zero");
      const one = async () => {
        const { processes } = await inspect(instance.sandboxId);
        return processes.find(({ execId }) => execId === exec);
      };
      await expect.poll(async () => (await one())?.cpuMs ?? 0, { timeout: 15_000 }).toBeGreaterThan(100);
      const before = (await one())?.calls ?? 0;
      await expect.poll(async () => (await one())?.calls ?? 0, { timeout: 15_000 }).toBeGreaterThan(before);
    });

    test("processes of a frozen instance, and of one with a stopped keeper, are listed", async () => {
      const instance = await launch();
      const { sandboxId } = instance;
      const exec = await start(await connect(instance), "exec sleep 1000");
      await seenIn(sandboxId, exec).toMatchObject({ waits: [{ on: "sleep" }] });
      world.halt(instance);
      await expect
        .poll(() => inspect(sandboxId), { timeout: 5_000 })
        .toMatchObject({
          processes: [
            { pid: 1, state: "T", waits: [{ on: "stopped" }] },
            { execId: exec, waits: [{ on: "sleep" }] },
          ],
        });
      await use("freezer").freeze(sandboxId, soon());
      const { processes } = await inspect(sandboxId);
      expect(processes).toMatchObject([
        { pid: 1, waits: [{ on: "frozen", bounded: false, threads: 1 }] },
        { execId: exec, commandLine: "sleep 1000", waits: [{ on: "frozen" }] },
      ]);
    });

    test("a long process list is cut and marked as truncated", async () => {
      const instance = await launch({ pids: 800 });
      const link = await connect(instance);
      await run(link, "for i in $(seq 1 600); do sleep 1000 >/dev/null 2>&1 & done; exit 0");
      const { processes, truncated } = await inspect(instance.sandboxId);
      expect(truncated).toBe(true);
      expect(processes.length).toBe(512);
    });

    test("the process list of an instance that ended or never existed is empty", async () => {
      const { sandboxId } = await launch();
      await world.driver.stop(sandboxId, { graceMs: 0 }, soon());
      for (const id of [sandboxId, newSandboxId()])
        expect(await inspect(id)).toMatchObject({ processes: [], truncated: false });
    });

    test.for([1, 8, 15, 25, 40])("a launch aborted after %i ms leaves nothing", async (ms) => {
      const abort = new AbortController();
      const launched = launch(ms % 2 === 0 ? { diskMb: 32 } : {}, abort.signal).catch(
        (error: unknown) => error,
      );
      const id = ids.at(-1) as SandboxId;
      await pause(ms);
      abort.abort(new Error("no longer wanted"));
      await launched;
      expect(await world.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      await world.driver.destroy(id, soon());
      expect(await thingsOf(id)).toEqual([]);
    });

    test("a stop supersedes a launch in progress", async () => {
      const launched = launch().catch((error: unknown) => error);
      const id = ids.at(-1) as SandboxId;
      await pause(10);
      expect(await world.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
      await world.driver.destroy(id, soon());
      expect(await launched).toBeInstanceOf(Error);
      expect(await thingsOf(id)).toEqual([]);
    });

    test("a launch from a missing image fails with image_not_found", async () => {
      const order = orderFor(newSandboxId(), { image: "nope" });
      await expect(world.driver.launch(order, soon())).rejects.toMatchObject({ code: "image_not_found" });
    });

    test("a command that exceeds the memory limit is killed; keeper and other sandboxes keep running", async () => {
      const [hog, neighbour] = await Promise.all([launch({ memoryMb: 64 }), launch({ memoryMb: 64 })]);
      const [link, other] = await Promise.all([connect(hog), connect(neighbour)]);
      const { exitCode } = await run(link, "head -c 300000000 /dev/zero | tail -c 200000000 | wc -c; exit 9");
      expect(exitCode).toBe(9);
      const seen = await observe(hog.sandboxId);
      expect(seen.seen === "present" && seen.oomKills > 0).toBe(true);
      await link.ping(soon());
      expect(await run(other, "echo fine")).toEqual({ exitCode: 0, output: "fine\n" });
      expect(await observe(neighbour.sandboxId)).toMatchObject({ oomKills: 0 });
    });

    test("a fork bomb stays within the limit on processes and can be ended", async () => {
      const instance = await launch({ pids: 32 });
      const link = await connect(instance);
      await run(link, "for i in $(seq 1 200); do sleep 1000 >/dev/null 2>&1 & done; exit 0");
      const { length } = await link.processes(soon());
      expect(length).toBeGreaterThan(16);
      expect(length).toBeLessThanOrEqual(32);
      expect(await world.driver.stop(instance.sandboxId, { graceMs: 0 }, soon())).toMatchObject({
        seen: "absent",
      });
    });

    test("a busy loop gets no more processor time than its limit", async () => {
      const link = await connect(await launch({ cpus: 0.2 }));
      const script = "timeout 1 sh -c 'while :; do :; done'; cut -d' ' -f16,17 /proc/$$/stat";
      const ticks = (await run(link, script)).output.trim().split(" ").map(Number);
      expect(ticks.reduce((sum, each) => sum + each, 0)).toBeLessThan(60);
    });

    test.for(["", "root"])("nothing of the host is visible inside, as user '%s'", async (user) => {
      const link = await connect(await launch());
      const paths = ["/etc/shadow", ...world.hidden];
      for (const path of paths) expect(await run(link, `ls -d ${path}`, user)).toMatchObject({ exitCode: 2 });
      const seen = await run(link, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", user);
      expect(seen.output).not.toContain("node");
      expect((await link.processes(soon())).length).toBeLessThan(8);
    });

    test("root inside can't mount, create namespaces, write kernel parameters or change devices", async () => {
      const link = await connect(await launch());
      expect((await run(link, "mount -t tmpfs x /mnt", "root")).exitCode).not.toBe(0);
      expect((await run(link, "unshare -r true", "root")).exitCode).not.toBe(0);
      expect(
        (await run(link, "v=$(cat /proc/sys/kernel/panic) && echo $v > /proc/sys/kernel/panic", "root"))
          .exitCode,
      ).not.toBe(0);
      expect((await run(link, "chmod 600 /dev/null", "root")).exitCode).not.toBe(0);
      expect(await run(link, "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status", "root")).toMatchObject({
        output: expect.stringMatching(/NoNewPrivs:\s1\nSeccomp:\s2/),
      });
    });

    test("the control directory is mounted noexec, nosuid and nodev", async () => {
      const link = await connect(await launch());
      const { output } = await run(link, "grep ' /.holdfast/control ' /proc/self/mountinfo", "root");
      expect(output.split(" ")[5]?.split(",")).toEqual(
        expect.arrayContaining(["rw", "nosuid", "nodev", "noexec"]),
      );
    });

    test("resources with a limit for the whole host are limited for each sandbox", async () => {
      const link = await connect(await launch());
      const { output } = await run(link, "cat /proc/self/mountinfo /proc/sys/kernel/shm_rmid_forced");
      expect(output).toMatch(/ devpts .*max=256/);
      expect(output.trimEnd().endsWith("\n1")).toBe(true);
    });

    test("the network has only a loopback interface, which is up", async () => {
      const link = await connect(await launch());
      const { output } = await run(link, "tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/fib_trie");
      expect(output.trim().split("\n")[0]?.trim()).toBe("lo");
      expect(output).toContain("127.0.0.1");
      expect((await run(link, "tail -n +3 /proc/net/dev | wc -l")).output.trim()).toBe("1");
    });

    test("two sandboxes see nothing of each other", async () => {
      const [one, two] = await Promise.all([launch(), launch()]);
      const [first, second] = await Promise.all([connect(one), connect(two)]);
      await run(
        first,
        "echo secret > /tmp/mine; echo secret > /dev/shm/mine; setsid sleep 98765 >/dev/null 2>&1 &",
      );
      expect(await run(second, "ls /tmp /dev/shm; cat /proc/[0-9]*/cmdline")).not.toMatchObject({
        output: expect.stringMatching(/mine|98765/),
      });
      expect((await run(first, "cat /proc/sys/kernel/hostname")).output).not.toBe(
        (await run(second, "cat /proc/sys/kernel/hostname")).output,
      );
    });

    describePorts({ driver: () => world.driver, use, launch, connect });

    test("capacity is plausible", async () => {
      const found = await world.driver.capacity(soon());
      expect(found.cpus).toBeGreaterThan(0);
      expect(found.memoryFreeBytes).toBeGreaterThan(0);
      expect(found.memoryFreeBytes).toBeLessThanOrEqual(found.memoryTotalBytes);
      expect(found.diskFreeBytes).toBeGreaterThan(0);
      expect(found.diskFreeBytes).toBeLessThanOrEqual(found.diskTotalBytes);
    });
  });
}

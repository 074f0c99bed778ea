import { execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { newSandboxId, type SandboxId } from "@holdfast/contract";
import { type Instance, KeeperRefusal, type Link } from "@holdfast/engine";
import { pack } from "tar-stream";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { processOf, type TestMachine, testMachine } from "../testing/test-machine.ts";

const soon = () => AbortSignal.timeout(20_000);
let machine: TestMachine;
let id: SandboxId;

beforeAll(async () => {
  machine = await testMachine();
});
afterEach(async () => {
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await machine.driver.destroy(id, soon());
});
afterAll(() => machine.dispose());

const place = (...names: string[]) => join(machine.stateDir, "sandboxes", id, ...names);
const noted = (name: string) => JSON.parse(readFileSync(place(name), "utf8"));
const restart = (generation = 2): Promise<Instance> =>
  machine.driver.launch(orderFor(id, { generation, restart: true }), soon());

async function linked(instance: Instance): Promise<Link> {
  const link = await machine.driver.connect(instance, soon());
  onTestFinished(() => link.close());
  return link;
}

/** Launches an instance, runs the command inside, and stops the instance. */
async function launched(command: string, image = "host"): Promise<void> {
  id = newSandboxId();
  const link = await linked(await machine.driver.launch(orderFor(id, { image }), soon()));
  await run(link, command, "root");
  await machine.driver.stop(id, { graceMs: 0 }, soon());
}

test("the next instance has the journals of the last, and runs no exec a second time", async () => {
  id = newSandboxId();
  const link = await linked(await machine.driver.launch(orderFor(id), soon()));
  await run(link, "echo once; exit 3");
  const [exec] = await link.listExecs(soon());
  if (exec === undefined) throw new Error("the exec is unknown");
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  const next = await linked(await restart());
  expect(await next.listExecs(soon())).toEqual([]);
  expect(await machine.driver.journals.end(id, exec.id, soon())).toMatchObject({ exec: { exitCode: 3 } });
  const order = {
    ...{ id: exec.id, argv: ["true"], env: {}, cwd: "/", user: "", timeoutMs: 0, stdin: false, tty: null },
    ...{ journalCapBytes: 65_536, digest: "0".repeat(64) },
  };
  await expect(next.startExec(order, soon())).rejects.toBeInstanceOf(KeeperRefusal);
  expect(await run(next, "echo new")).toEqual({ exitCode: 0, output: "new\n" });
});

test("the notes of an instance name its own generation", async () => {
  await launched("true");
  const instance = await restart(7);
  expect(noted("instance.json")).toMatchObject({ generation: 7, pid: processOf(instance).pid });
  expect(noted("order.json")).toMatchObject({ generation: 7, image: "host" });
});

test.for(["upper", "work", "control", "root", "order.json"])(
  "a restart without %s is refused, and does not create it",
  async (name) => {
    await launched("true");
    await machine.reboot();
    rmSync(place(name), { recursive: true });
    await expect(restart()).rejects.toMatchObject({ code: "launch_failed", cause: { code: "launch_files" } });
    expect(existsSync(place(name))).toBe(false);
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
  },
);

test("a directory in place of the keeper's socket does not prevent a start", async () => {
  await launched("true");
  rmSync(place("control", "keeper.sock"), { force: true });
  mkdirSync(place("control", "keeper.sock", "deep"), { recursive: true });
  expect(await run(await linked(await restart()), "echo up")).toEqual({ exitCode: 0, output: "up\n" });
});

test("something mounted over the root is removed before the next instance starts", async () => {
  await launched("echo mine > /root/a");
  execFileSync("mount", ["-t", "tmpfs", "cover", place("root")]);
  expect(await run(await linked(await restart()), "cat /root/a", "root")).toMatchObject({ output: "mine\n" });
});

test("a restart waits while another mount namespace still has the root mounted", async () => {
  await launched("echo mine > /root/a");
  const script = `: > ${place("held")}; exec sleep 1000`;
  const holder = spawn("unshare", ["-m", "/bin/sh", "-c", script], { stdio: "ignore" });
  onTestFinished(() => void holder.kill("SIGKILL"));
  await expect.poll(() => existsSync(place("held")), { timeout: 15_000 }).toBe(true);
  execFileSync("umount", [place("root")]);
  let up = false;
  const second = restart().finally(() => {
    up = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(up).toBe(false);
  holder.kill("SIGKILL");
  expect(await run(await linked(await second), "cat /root/a", "root")).toMatchObject({ output: "mine\n" });
});

/** An image archive with a shell, `cat`, and a file `version` with the given text. */
function tarOf(text: string) {
  const archive = pack();
  archive.entry({ name: "version" }, text);
  for (const name of ["bin/sh", "bin/cat"]) {
    archive.entry({ name, mode: 0o755 }, readFileSync(`/${name}`));
  }
  const libraries = execFileSync("ldd", ["/bin/cat"], { encoding: "utf8" }).match(/\/\S+/g) ?? [];
  for (const name of libraries) archive.entry({ name: name.slice(1), mode: 0o755 }, readFileSync(name));
  archive.finalize();
  return archive as unknown as AsyncIterable<Uint8Array>;
}

test("a sandbox keeps the version of the image that it was created from", async () => {
  await machine.driver.images.import("versions", { tar: tarOf("one") }, soon());
  await launched("true", "versions");
  await machine.driver.images.import("versions", { tar: tarOf("two") }, soon());
  await machine.reboot();
  const link = await linked(await restart());
  expect(await run(link, "cat /version")).toEqual({ exitCode: 0, output: "one" });
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  await machine.driver.destroy(id, soon());
  await machine.driver.images.remove("versions", soon());
});

/** Rewrites the records with only those fields that the first version had. */
function asFirstVersion(instance: Instance): void {
  const { sandboxId, generation, keeperVersion } = instance;
  const { pid, startTime, hostBootId } = processOf(instance);
  const { image, imageVersion } = noted("order.json");
  const order = { sandboxId, generation, image, imageVersion, keeperVersion };
  writeFileSync(place("order.json"), JSON.stringify(order));
  const note = { sandboxId, generation, pid, startTime, hostBootId, keeperVersion };
  writeFileSync(place("instance.json"), JSON.stringify(note));
}

test("an instance whose records an earlier version wrote is found, served, restarted and removed", async () => {
  id = newSandboxId();
  const instance = await machine.driver.launch(orderFor(id), soon());
  asFirstVersion(instance);
  const names = ["bundle", "control", "instance.json", "order.json", "root", "upper", "work"];
  expect(readdirSync(place()).sort()).toEqual(names);
  const { driver } = await machine.again();
  expect(await driver.recover(instance, soon())).toEqual(instance);
  expect((await driver.observe([id], soon())).get(id)).toMatchObject({
    identity: instance.identity,
    problems: [],
  });
  expect(await run(await linked(instance), "echo old > /root/a", "root")).toMatchObject({ exitCode: 0 });
  expect(await driver.list(soon())).toMatchObject([{ sandboxId: id, alive: true }]);
  await driver.stop(id, { graceMs: 0 }, soon());
  asFirstVersion(instance);
  expect(await run(await linked(await restart()), "cat /root/a", "root")).toMatchObject({ output: "old\n" });
});

test.for(["", "{}", "null", '{"sandboxId":7,"pid":"x"}', "[]"])(
  "an instance with unreadable records (%s) is found, stopped and removed",
  async (text) => {
    id = newSandboxId();
    const { identity } = await machine.driver.launch(orderFor(id), soon());
    for (const name of ["order.json", "instance.json"]) writeFileSync(place(name), text);
    const { driver } = await machine.again();
    expect((await driver.observe([id], soon())).get(id)).toMatchObject({ seen: "present", identity });
    expect(await driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await expect(restart()).rejects.toMatchObject({ cause: { code: "launch_files" } });
    await driver.destroy(id, soon());
    expect(await driver.list(soon())).toEqual([]);
  },
);

test.for(["its state", "the bundle"])(
  "a mount that a killed runtime left in %s is found, and blocks neither restart nor removal",
  async (where) => {
    await launched("true");
    const leaveMount = () => {
      const dir = where === "its state" ? join(machine.stateDir, "runtime", id) : place("bundle");
      const file = join(dir, "left");
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, "");
      execFileSync("mount", ["--bind", "/bin/true", file]);
    };
    leaveMount();
    expect((await machine.driver.list(soon()))[0]?.things).toContain("mount");
    const link = await linked(await restart());
    expect(await run(link, "echo back")).toMatchObject({ output: "back\n" });
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    leaveMount();
    await machine.driver.destroy(id, soon());
    expect(await machine.driver.list(soon())).toEqual([]);
  },
);

test("the runtime puts its temporary files into the sandbox's bundle", async () => {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-runtime-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const real = execFileSync("sh", ["-c", "command -v crun"], { encoding: "utf8" }).trim();
  const reported = join(dir, "reported");
  writeFileSync(
    join(dir, "crun"),
    `#!/bin/sh\necho "$_LIBCONTAINER_STATEDIR" >> ${reported}\nexec ${real} "$@"\n`,
  );
  chmodSync(join(dir, "crun"), 0o755);
  const { driver } = await machine.again({ runtime: join(dir, "crun") });
  rmSync(reported);
  id = newSandboxId();
  await driver.launch(orderFor(id), soon());
  expect(readFileSync(reported, "utf8")).toBe(`${place("bundle")}\n`);
});

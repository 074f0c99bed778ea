/** Tests on a full disk: the state directory is on a small tmpfs of its own. */
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmdirSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DEFAULT_RESOURCES, newInstallationId, newSandboxId, type SandboxId } from "@holdfast/contract";
import { type Link, systemClock } from "@holdfast/engine";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { orderFor, run } from "../../contract-suite/suite.ts";
import { createOciDriver, type OciMachine } from "../open-driver.ts";
import { freezeAll } from "../stop/freeze-all.ts";
import { silent } from "../testing/test-machine.ts";

const soon = () => AbortSignal.timeout(20_000);
const SIZE_MB = 64;
let stateDir: string;
let machine: OciMachine;
const ids: SandboxId[] = [];
const links: Link[] = [];

beforeAll(async () => {
  stateDir = mkdtempSync(join(tmpdir(), "holdfast-full-"));
  execFileSync("mount", ["-t", "tmpfs", "-o", `size=${SIZE_MB}m,mode=755`, "holdfast-full", stateDir]);
  const installation = newInstallationId();
  machine = await createOciDriver({ stateDir, installation, log: silent, clock: systemClock });
});
afterEach(async () => {
  for (const link of links.splice(0)) link.close();
  rmSync(join(stateDir, "ballast"), { force: true });
  for (const id of ids.splice(0)) {
    await machine.driver.stop(id, { graceMs: 0 }, soon());
    await machine.driver.destroy(id, soon());
  }
});
afterAll(async () => {
  await machine?.driver.close();
  // The porter that starts helpers runs from the state directory, and ends a moment after the driver was closed.
  for (const end = Date.now() + 10_000; ; await new Promise((resolve) => setTimeout(resolve, 20))) {
    const { status, stderr } = spawnSync("umount", [stateDir], { encoding: "utf8" });
    if (status === 0) break;
    if (Date.now() > end) throw new Error(stderr);
  }
  rmdirSync(stateDir);
});

const newId = (): SandboxId => {
  const id = newSandboxId();
  ids.push(id);
  return id;
};
const fill = () => {
  const { bavail, bsize } = statfsSync(stateDir);
  writeFileSync(join(stateDir, "ballast"), Buffer.alloc(bavail * bsize));
  expect(statfsSync(stateDir).bavail).toBe(0);
};
const launch = (id: SandboxId, diskMb?: number) => {
  const resources = { ...DEFAULT_RESOURCES, ...(diskMb === undefined ? {} : { diskMb }) };
  return machine.driver.launch(orderFor(id, { resources }), soon());
};

test.for([undefined, 32])(
  "a launch on a full disk fails with disk_full and can be removed (diskMb %s)",
  async (diskMb) => {
    fill();
    const id = newId();
    await expect(launch(id, diskMb)).rejects.toMatchObject({
      code: "disk_full",
      cause: { code: "launch_files", message: expect.stringMatching(/disk is full/) },
    });
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await machine.driver.destroy(id, soon());
    expect(await machine.driver.list(soon())).toEqual([]);
  },
);

test.for([undefined, 32])(
  "a running sandbox can be stopped and removed on a full disk (diskMb %s)",
  async (diskMb) => {
    const id = newId();
    const link = await machine.driver.connect(await launch(id, diskMb), soon());
    links.push(link);
    await run(link, "mkdir -p /root/a/b/c; echo x > /root/a/b/c/d; sleep 1000 >/dev/null 2>&1 &", "root");
    await machine.driver.freeze(id, soon());
    fill();
    expect(await machine.driver.stop(id, { graceMs: 0 }, soon())).toMatchObject({ seen: "absent" });
    await machine.driver.journals.archive(id, soon()).catch(() => {});
    await machine.driver.destroy(id, soon());
    expect(await machine.driver.list(soon())).toEqual([]);
    await machine.driver.journals.drop(id, soon());
  },
);

test("a restart needs no additional disk space", async () => {
  const id = newId();
  const link = await machine.driver.connect(await launch(id), soon());
  links.push(link);
  await run(link, "echo mine > /root/a", "root");
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  fill();
  const again = await machine.driver.launch(orderFor(id, { generation: 2, restart: true }), soon());
  rmSync(join(stateDir, "ballast"));
  const next = await machine.driver.connect(again, soon());
  links.push(next);
  expect(await run(next, "cat /root/a", "root")).toMatchObject({ output: "mine\n" });
});

test("capacity measures the disk that contains the sandboxes", async () => {
  expect(await machine.driver.capacity(soon())).toMatchObject({ diskTotalBytes: SIZE_MB * 1_048_576 });
  fill();
  expect(await machine.driver.capacity(soon())).toMatchObject({ diskFreeBytes: 0 });
});

test("a sandbox's disk that the host has no space for is reported, and works again once there is space", async () => {
  const id = newId();
  const link = await machine.driver.connect(await launch(id, 32), soon());
  links.push(link);
  await run(link, "echo mine > /root/a", "root");
  execFileSync("sync", ["-f", join(stateDir, "sandboxes", id, "disk")]);
  fill();
  const write = async () => {
    const command =
      "dd if=/dev/zero of=/root/b bs=1M count=20 conv=fsync; mkdir -p /root/c/$$; sync -f /root";
    await run(link, command, "root").catch(() => {});
    return (await machine.driver.observe([id], soon())).get(id);
  };
  const problems = [{ code: "disk_failed" }];
  await expect.poll(write, { timeout: 15_000, interval: 100 }).toMatchObject({ seen: "present", problems });
  await machine.driver.stop(id, { graceMs: 0 }, soon());
  rmSync(join(stateDir, "ballast"));
  const again = await machine.driver.launch(orderFor(id, { generation: 2, restart: true }), soon());
  const next = await machine.driver.connect(again, soon());
  links.push(next);
  expect(await run(next, "echo more >> /root/a; cat /root/a", "root")).toMatchObject({
    output: "mine\nmore\n",
  });
});

test("all sandboxes of a state directory are frozen, and only those that were running before are thawed", async () => {
  const [one, other] = [newId(), newId()];
  for (const id of [one, other]) await launch(id);
  await machine.driver.freeze(other, soon());
  const states = async () => {
    const seen = await machine.driver.observe([one, other], soon());
    return [one, other].map((id) => {
      const observation = seen.get(id);
      return observation?.seen === "present" ? observation.state : observation?.seen;
    });
  };
  expect(await states()).toEqual(["running", "frozen"]);
  const resume = await freezeAll(stateDir, systemClock);
  expect(await states()).toEqual(["frozen", "frozen"]);
  resume();
  await expect.poll(states, { timeout: 15_000 }).toEqual(["running", "frozen"]);
});

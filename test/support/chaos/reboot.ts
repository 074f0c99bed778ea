/** Simulates a restart of the host for the sandboxes of one installation. */
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import type { TestServer } from "../server/test-server.ts";

const CGROUPS = "/sys/fs/cgroup";
const ENDED_MS = 60_000;
const EARLIER = "00000000-0000-4000-8000-000000000000";

/**
 * Ends everything physical: processes, mounts with their loop devices, cgroups, runtime state. Directories stay, and
 * all records refer to an earlier boot. No server may run meanwhile.
 */
export async function reboot({ dir, installation }: TestServer): Promise<void> {
  await endAll({ dir, installation });
  rmSync(join(dir, "runtime"), { recursive: true });
  mkdirSync(join(dir, "runtime"), { mode: 0o700 });
  for (const id of readdirSync(join(dir, "sandboxes"))) {
    const note = join(dir, "sandboxes", id, "instance.json");
    writeFileSync(note, JSON.stringify({ ...JSON.parse(readFileSync(note, "utf8")), hostBootId: EARLIER }));
  }
  ageRecords(join(dir, "holdfast.db"));
}

/** Ends the processes, mounts and cgroups of one installation, without a server's help. */
export async function endAll({ dir, installation }: Pick<TestServer, "dir" | "installation">): Promise<void> {
  await endProcesses(installation);
  for (const target of mountsBelow(dir).reverse()) execFileSync("umount", [target]);
  for (const path of cgroupsOf(installation)) rmdirSync(path);
}

async function endProcesses(installation: string): Promise<void> {
  const pids = () => cgroupsOf(installation).flatMap((path) => lines(join(path, "cgroup.procs")));
  for (const end = Date.now() + ENDED_MS; pids().length > 0; await sleep(5)) {
    if (Date.now() > end) throw new Error(`processes do not end: ${pids().join(", ")}`);
    for (const pid of new Set(pids())) quietly(() => process.kill(Number(pid), "SIGKILL"));
    // A frozen process ends only after it is thawed.
    for (const path of cgroupsOf(installation))
      quietly(() => writeFileSync(join(path, "freezer.state"), "THAWED", { flag: "r+" }));
  }
}

/** Ignores processes that no longer exist. */
function quietly(act: () => void): void {
  try {
    act();
  } catch {}
}

function ageRecords(path: string): void {
  const database = new DatabaseSync(path);
  database.exec(
    `UPDATE sandboxes SET instance = json_set(instance, '$.hostBootId', '${EARLIER}') WHERE instance IS NOT NULL;
     UPDATE sandboxes SET lease = json_set(lease, '$.hostBootId', '${EARLIER}') WHERE json_extract(lease, '$.hostBootId') IS NOT NULL`,
  );
  database.close();
}

const mountsBelow = (dir: string): string[] =>
  lines("/proc/self/mountinfo")
    .map((line) => line.split(" ")[4] ?? "")
    .filter((target) => target.startsWith(`${dir}/`));

/** The innermost first. */
const cgroupsOf = (installation: string): string[] =>
  readdirSync(CGROUPS).flatMap((name) => below(join(CGROUPS, name, `holdfast-${installation}`)));

function below(path: string): string[] {
  try {
    const inside = readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    return [...inside.flatMap(({ name }) => below(join(path, name))), path];
  } catch {
    return [];
  }
}

const lines = (path: string): string[] => readFileSync(path, "utf8").split("\n").filter(Boolean);

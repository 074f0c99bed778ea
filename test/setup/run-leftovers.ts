/**
 * Finds everything that a test run has on the machine: processes, mounts, cgroups, runtime state, network namespaces,
 * loop devices and temporary files. The search uses none of the product's code, which could overlook the resources that
 * it forgot to clean up.
 */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { currentRun, entriesOf, type Run } from "./run.ts";

/** A readable line for each trace. The key distinguishes it from a later resource of the same name. */
type Traces = ReadonlyMap<string, string>;
type Trace = [key: string, description: string];

/** Finds the traces of a run. `skipped` are pids that do not count: by default the test runner itself. */
export function findTraces(run: Run = currentRun(), skipped: ReadonlySet<string> = ownFamily()): Traces {
  return new Map([
    ...processTraces(run, skipped),
    ...mountTraces(run),
    ...cgroupTraces(run),
    ...loopTraces(run),
    ...runtimeTraces(run),
    ...networkTraces(run),
    ...entriesOf(run).map((name): Trace => [`file ${name}`, `temporary file ${join(run.directory, name)}`]),
  ]);
}

const isBelow = ({ directory }: Run, text: string): boolean => text.includes(`${directory}/`);

/** Whether a name or a mount's source carries the mark of one of the run's installations. */
const isMarked = ({ installations }: Run, text: string): boolean =>
  [...text.matchAll(/holdfast-([0-9a-z]{8})(?![0-9a-z])/g)].some(([, id = ""]) => installations.has(id));

/** Returns the text of a file; empty if it has vanished or may not be read. */
function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

function list(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

function directories(directory: string): string[] {
  try {
    const entries = readdirSync(directory, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
  } catch {
    return [];
  }
}

function stat(pid: string): { parent: string; startTime: string } {
  const line = read(`/proc/${pid}/stat`);
  const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
  return { parent: fields[1] ?? "", startTime: fields[19] ?? "" };
}

const processes = (): string[] => list("/proc").filter((name) => /^\d+$/.test(name));

/** Returns the pids of this process, its test workers, and the shells and npm above it. */
function ownFamily(): Set<string> {
  const self = String(process.pid);
  const family = new Set(processes().filter((pid) => stat(pid).parent === self));
  for (let pid = self; pid !== "" && pid !== "0" && !family.has(pid); pid = stat(pid).parent) family.add(pid);
  return family;
}

function processTraces(run: Run, skipped: ReadonlySet<string>): Trace[] {
  const traces: Trace[] = [];
  for (const pid of processes()) {
    if (skipped.has(pid)) continue;
    const command = read(`/proc/${pid}/cmdline`).replaceAll("\0", " ").trim();
    if (!belongsTo(run, pid, command)) continue;
    const line = `process ${pid}${networkOf(pid)}: ${command.slice(0, 200)}`;
    traces.push([`process ${pid} ${stat(pid).startTime}`, line]);
  }
  return traces;
}

/**
 * Returns whether a process belongs to the run. Processes outside sandboxes inherit TMPDIR. Processes inside carry
 * their installation's id; if that is not recorded, their root is a mount of files below the run's directory. Other
 * mounts of a process prove nothing: the host's mount namespace, and every copy of it, has the mounts of all runs.
 */
function belongsTo(run: Run, pid: string, command: string): boolean {
  const environment = read(`/proc/${pid}/environ`).split("\0");
  if (isBelow(run, `${command} `) || environment.includes(`TMPDIR=${run.directory}`)) return true;
  if (isMarked(run, read(`/proc/${pid}/cgroup`))) return true;
  const [mark] = environment.flatMap(
    (each) => /^HOLDFAST_(?:INSTALLATION|HELPER)=(\w+)/.exec(each)?.[1] ?? [],
  );
  if (mark === undefined) return false;
  return run.installations.has(mark) || isBelow(run, rootMountOf(pid));
}

const rootMountOf = (pid: string): string =>
  read(`/proc/${pid}/mountinfo`)
    .split("\n")
    .findLast((line) => line.split(" ")[4] === "/") ?? "";

function networkOf(pid: string): string {
  try {
    const network = readlinkSync(`/proc/${pid}/ns/net`);
    return network === readlinkSync("/proc/self/ns/net") ? "" : ` in ${network}`;
  } catch {
    return "";
  }
}

const mountLines = (): string[] => read("/proc/self/mountinfo").split("\n");

function mountTraces(run: Run): Trace[] {
  return mountLines()
    .filter((line) => isBelow(run, line) || isMarked(run, line))
    .map((line) => {
      const [id, , , , point] = line.split(" ");
      return [`mount ${id} ${point}`, `mount on ${point}`];
    });
}

function cgroupTraces(run: Run): Trace[] {
  const hierarchies = mountLines()
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4] ?? "");
  return [...new Set(hierarchies)]
    .flatMap((root) => cgroupsBelow(root))
    .filter((path) => isMarked(run, path))
    .map((path) => [`cgroup ${path}`, `cgroup ${path}`]);
}

const cgroupsBelow = (directory: string): string[] =>
  directories(directory).flatMap((name) => {
    const path = join(directory, name);
    return [path, ...cgroupsBelow(path)];
  });

function loopTraces(run: Run): Trace[] {
  return list("/sys/block")
    .filter((name) => name.startsWith("loop"))
    .flatMap((name): Trace[] => {
      const file = read(`/sys/block/${name}/loop/backing_file`).trim();
      return isBelow(run, file) ? [[`loop ${name} ${file}`, `loop device ${name} on ${file}`]] : [];
    });
}

/**
 * Traces in the runtimes' default state directories. The product keeps its runtime state elsewhere, below the run's
 * directory.
 */
const runtimeTraces = (run: Run): Trace[] =>
  ["/run/runc", "/run/crun"]
    .flatMap((home) => list(home).map((name) => join(home, name)))
    .filter((path) => ["state.json", "status"].some((file) => isBelow(run, read(join(path, file)))))
    .map((path) => [`runtime state ${path}`, `runtime state ${path}`]);

const networkTraces = (run: Run): Trace[] =>
  list("/run/netns")
    .filter((name) => isMarked(run, name))
    .map((name) => [`network namespace ${name}`, `named network namespace /run/netns/${name}`]);

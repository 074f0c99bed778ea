/**
 * What Holdfast leaves on a machine while it runs: processes, mounts, cgroups, network namespaces, loop devices and
 * directories that carry its marks. Looked for from outside, with none of the product's own code, which might miss
 * afterwards exactly what it forgot to clean.
 */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/**
 * Each trace once, with a line for people, by a key that a later thing of the same name does not share. The key carries
 * the mark of the installation that the thing belongs to, where it has one.
 */
export type Traces = ReadonlyMap<string, string>;

const MARKED_ENVIRONMENT = /(?:^|\0)HOLDFAST_(?:INSTALLATION|SANDBOX|EXEC)=/;
const MARKED_COMMAND = new RegExp(
  `/\\.holdfast/|packages/server/src/main\\.ts|test/support/crashing-server\\.ts|${tmpdir().replaceAll(/[.+*?^$()[\]{}|\\]/g, "\\$&")}/holdfast`,
);
const MARKED_NAME = /holdfast|sbx_/;
const INSTALLATION = /(?:holdfast-|HOLDFAST_INSTALLATION=)([0-9a-z]{8})(?![0-9a-z])/g;

/** `skipped` are processes that are no trace whatever they carry: by default the test run itself. */
export function findTraces(skipped: ReadonlySet<string> = ownFamily()): Traces {
  return new Map([
    ...processTraces(skipped),
    ...mountTraces(),
    ...cgroupTraces(),
    ...loopTraces(),
    ...entryTraces("temporary file", tmpdir(), /^holdfast/),
    ...entryTraces("runtime state", "/run/runc", MARKED_NAME),
    ...entryTraces("runtime state", "/run/crun", MARKED_NAME),
    ...entryTraces("named network namespace", "/run/netns", /./),
  ]);
}

/** What is there after and was not before. */
export const newTraces = (before: Traces, after: Traces): Map<string, string> =>
  new Map([...after].filter(([key]) => !before.has(key)));

/** The installations that traces carry the mark of. Directories carry none, whatever their names look like. */
export const installationsIn = (traces: Traces): Set<string> =>
  new Set([...traces.keys()].flatMap((key) => (/^(process|mount|cgroup) /.test(key) ? marksIn(key) : [])));

const marksIn = (key: string): string[] => [...key.matchAll(INSTALLATION)].map(([, id = ""]) => id);

/** Without what belongs to the installations given. */
export const withoutThoseOf = (installations: ReadonlySet<string>, traces: Traces): Map<string, string> =>
  new Map(
    [...traces].filter(([key, line]) =>
      installationsIn(new Map([[key, line]])).isDisjointFrom(installations),
    ),
  );

type Trace = [key: string, description: string];

/** The text of a file that may vanish, or not be ours to read, at any time. */
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

/** This process, its test workers, and the shells and npm above it. */
function ownFamily(): Set<string> {
  const self = String(process.pid);
  const family = new Set(processes().filter((pid) => stat(pid).parent === self));
  for (let pid = self; pid !== "" && pid !== "0" && !family.has(pid); pid = stat(pid).parent) family.add(pid);
  return family;
}

function processTraces(skipped: ReadonlySet<string>): Trace[] {
  const traces: Trace[] = [];
  for (const pid of processes()) {
    if (skipped.has(pid)) continue;
    const command = read(`/proc/${pid}/cmdline`).replaceAll("\0", " ").trim();
    const environment = read(`/proc/${pid}/environ`);
    if (!MARKED_COMMAND.test(command) && !MARKED_ENVIRONMENT.test(environment)) continue;
    const marks = `${environment}\n${read(`/proc/${pid}/cgroup`)}`.match(INSTALLATION) ?? [];
    const key = [`process ${pid} ${stat(pid).startTime}`, ...new Set(marks)].join(" ");
    traces.push([key, `process ${pid}${networkOf(pid)}: ${command.slice(0, 200)}`]);
  }
  return traces;
}

function networkOf(pid: string): string {
  try {
    const network = readlinkSync(`/proc/${pid}/ns/net`);
    return network === readlinkSync("/proc/self/ns/net") ? "" : ` in ${network}`;
  } catch {
    return "";
  }
}

const mountLines = (): string[] => read("/proc/self/mountinfo").split("\n");

function mountTraces(): Trace[] {
  return mountLines()
    .filter((line) => MARKED_NAME.test(line))
    .map((line) => {
      const [id, , , , point] = line.split(" ");
      const source = line.split(" - ")[1]?.split(" ")[1];
      return [`mount ${id} ${point} ${source}`, `mount on ${point}`];
    });
}

function cgroupTraces(): Trace[] {
  const hierarchies = mountLines()
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4] ?? "");
  return [...new Set(hierarchies)].flatMap((root) => cgroupsBelow(root));
}

function cgroupsBelow(directory: string): Trace[] {
  return directories(directory).flatMap((name) => {
    const path = join(directory, name);
    const own: Trace[] = MARKED_NAME.test(name) ? [[`cgroup ${path}`, `cgroup ${path}`]] : [];
    return [...own, ...cgroupsBelow(path)];
  });
}

function loopTraces(): Trace[] {
  return list("/sys/block")
    .filter((name) => name.startsWith("loop"))
    .flatMap((name): Trace[] => {
      const file = read(`/sys/block/${name}/loop/backing_file`).trim();
      return MARKED_NAME.test(file) ? [[`loop ${name} ${file}`, `loop device ${name} on ${file}`]] : [];
    });
}

function entryTraces(kind: string, directory: string, pattern: RegExp): Trace[] {
  return list(directory)
    .filter((name) => pattern.test(name))
    .map((name) => [`${kind} ${name}`, `${kind} ${join(directory, name)}`]);
}

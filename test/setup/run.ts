/**
 * One test run, as the leftover check knows it: the directory that holds all its temporary files, and the ids of the
 * installations it created. Other runs and servers on the machine share neither.
 */
import { appendFileSync, chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Run {
  readonly directory: string;
  readonly installations: ReadonlySet<string>;
}

/** Names the run's directory to the test workers and to the processes they start. */
const RUN_VARIABLE = "HOLDFAST_TEST_RUN";
const INSTALLATIONS = "installations";
/**
 * Mode of the run's directory, like /tmp: users of sandboxes pass through it, and programs of other users create files
 * in it.
 */
const SHARED = 0o1777;
/** Markers of mounts: `holdfast-<installation>-<sandbox or drive>`. */
const MARK = /holdfast-([0-9a-z]{8})(?![0-9a-z])/g;

/**
 * Creates the run's directory and makes it TMPDIR of every process of the run. The directory's name is short: state
 * directories with Unix sockets lie below it, and the path of a Unix socket has at most 107 bytes.
 */
export function openRun(): string {
  const directory = mkdtempSync(join(tmpdir(), "holdfast-"));
  chmodSync(directory, SHARED);
  process.env.TMPDIR = directory;
  process.env[RUN_VARIABLE] = directory;
  return directory;
}

/**
 * Removes the run's directory. Mounts below it are leftovers; then the directory stays, for the developer to examine.
 */
export function closeRun(directory: string): void {
  const mounts = readFileSync("/proc/self/mountinfo", "utf8");
  if (!mounts.includes(`${directory}/`)) rmSync(directory, { recursive: true, force: true });
}

/** The run that this process belongs to. */
export function currentRun(): Run {
  const directory = process.env[RUN_VARIABLE];
  if (directory === undefined) throw new Error(`${RUN_VARIABLE} is not set: this is no test run`);
  return { directory, installations: recordedIn(directory) };
}

/** Attributes an installation's processes, mounts and cgroups to this run. Does nothing outside a test run. */
export function recordInstallation(id: string): void {
  const directory = process.env[RUN_VARIABLE];
  if (directory !== undefined) appendFileSync(join(directory, INSTALLATIONS), `${id}\n`);
}

/**
 * Records the installations that have mounts below the run's directory, because drivers in tests have no server that
 * does.
 */
export function recordMounted(directory: string): void {
  const known = recordedIn(directory);
  for (const line of readFileSync("/proc/self/mountinfo", "utf8").split("\n")) {
    if (!line.includes(`${directory}/`)) continue;
    for (const [, id = ""] of line.matchAll(MARK)) if (!known.has(id)) recordInstallation(id);
  }
}

/** Returns the files in the run's directory, without the record itself. */
export const entriesOf = (run: Run): string[] =>
  readdirSync(run.directory).filter((name) => name !== INSTALLATIONS);

function recordedIn(directory: string): Set<string> {
  try {
    return new Set(readFileSync(join(directory, INSTALLATIONS), "utf8").split("\n").filter(Boolean));
  } catch {
    return new Set();
  }
}

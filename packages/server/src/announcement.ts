import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

export interface Announcement {
  /** Tells where the server is, now that it takes work. */
  serving(url: string): void;
  /** Takes it back. Safe to call twice, and from an exit handler. */
  withdraw(): void;
}

/**
 * Tells the rest of the machine of the server: the set-up scripts of the repository from its start on, by a file of
 * their own; clients once it serves, by `server.json` in the state directory. The start time goes with the pid, so that
 * a file left by a killed server is never taken for a process that got its pid since.
 */
export function announce(options: { stateDir: string; repository: string }): Announcement {
  const { pid } = process;
  const forClients = join(options.stateDir, "server.json");
  const scriptsDir = join(options.repository, ".holdfast");
  const forScripts = join(scriptsDir, `server-${pid}.json`);
  const self = { pid, startTime: startTimeOf(pid) };
  put(forScripts, self);
  forgetKilled(scriptsDir);
  return {
    serving(url) {
      put(forScripts, { ...self, url });
      put(forClients, { url, pid });
    },
    withdraw() {
      rmSync(forScripts, { force: true });
      if (pidIn(forClients) === pid) rmSync(forClients, { force: true });
    },
  };
}

function put(file: string, content: object): void {
  mkdirSync(dirname(file), { recursive: true });
  const fresh = `${file}.${process.pid}.tmp`;
  writeFileSync(fresh, `${JSON.stringify(content)}\n`, { mode: 0o644 });
  renameSync(fresh, file);
}

/** Removes what servers left that had no time to withdraw it. */
function forgetKilled(directory: string): void {
  for (const name of readdirSync(directory)) {
    const pid = /^server-(\d+)\.json$/.exec(name)?.[1];
    if (pid === undefined) continue;
    const file = join(directory, name);
    const running = startTimeOf(Number(pid));
    const announced = read(file)?.startTime;
    const isAnother = announced !== undefined && String(announced) !== running;
    if (running === null || isAnother) rmSync(file, { force: true });
  }
}

const pidIn = (file: string): unknown => read(file)?.pid;

function read(file: string): { pid?: unknown; startTime?: unknown } | null {
  try {
    return JSON.parse(readFileSync(file, "utf8")) as { pid?: unknown; startTime?: unknown } | null;
  } catch {
    return null;
  }
}

/**
 * In clock ticks since boot, as the kernel counts it: field 22, counted from behind the command's name. Null where
 * there is no such process.
 */
export function startTimeOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? null;
  } catch {
    return null;
  }
}

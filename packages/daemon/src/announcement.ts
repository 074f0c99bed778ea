import {
  closeSync,
  constants,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";

const AGAIN_MS = 1_000;

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
  let again: NodeJS.Timeout | undefined;
  const tellClients = (url: string): void => {
    try {
      putInPlace(forClients, { url, pid });
    } catch (error) {
      if (!(error instanceof Error && "code" in error && error.code === "ENOSPC")) throw error;
      // A server on a full disk is needed more than any other; whoever knows its address can free the disk with it.
      again = setTimeout(() => tellClients(url), AGAIN_MS).unref();
    }
  };
  return {
    serving(url) {
      put(forScripts, { ...self, url });
      tellClients(url);
    },
    withdraw() {
      clearTimeout(again);
      rmSync(forScripts, { force: true });
      if (pidIn(forClients) === pid) renameSync(forClients, spareOf(forClients));
    },
  };
}

function put(file: string, content: object): void {
  mkdirSync(dirname(file), { recursive: true });
  const fresh = `${file}.${process.pid}.tmp`;
  writeFileSync(fresh, textOf(content), { mode: 0o644 });
  renameSync(fresh, file);
}

const textOf = (content: object): string => `${JSON.stringify(content)}\n`;

const spareOf = (file: string): string => `${file}.spare`;

/** In the block that the last server's had, so that it takes no room on a full disk. */
function putInPlace(file: string, content: object): void {
  const spare = spareOf(file);
  if (!existsSync(spare) && existsSync(file)) renameSync(file, spare);
  const text = textOf(content);
  const descriptor = openSync(spare, constants.O_WRONLY | constants.O_CREAT, 0o644);
  try {
    writeSync(descriptor, text, 0);
    ftruncateSync(descriptor, Buffer.byteLength(text));
  } finally {
    closeSync(descriptor);
  }
  renameSync(spare, file);
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

import {
  closeSync,
  constants,
  existsSync,
  fchmodSync,
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

interface Announcement {
  /**
   * Publishes the server's URL when the server listens, together with the key that clients on this machine send.
   * Recovery may still be in progress then; calls that arrive during recovery are held. `remote`: the server's URLs for
   * other machines.
   */
  listening(url: string, key: string, remote?: readonly string[]): void;
  /**
   * Removes the published URL. Must be called before the server stops listening, because another program could listen
   * at that address next, and clients would connect to it.
   */
  closing(): void;
  /** Removes the announcement. May be called several times, and from an exit handler. */
  withdraw(): void;
}

/**
 * Announces the server to other programs on the machine. The repository's set-up scripts find the server when it
 * starts, through a file in `.holdfast`. Clients find it when it listens, through `server.json` in the state directory.
 * Both files contain the server's pid and start time. Otherwise a file that a killed server left behind could be
 * attributed to another process with the same pid.
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
  const tellClients = (content: object): void => {
    try {
      putInPlace(forClients, content);
    } catch (error) {
      if (!(error instanceof Error && "code" in error && error.code === "ENOSPC")) throw error;
      // If the disk is full, the file is written later. The server starts without the file, because an operator may
      // need the server to free space, and clients that know the URL do not need the file.
      again = setTimeout(() => tellClients(content), AGAIN_MS).unref();
    }
  };
  const closing = (): void => {
    clearTimeout(again);
    if (pidIn(forClients) === pid) renameSync(forClients, spareOf(forClients));
  };
  return {
    listening(url, key, remote = []) {
      put(forScripts, { ...self, url });
      tellClients({ url, ...self, key, ...(remote.length > 0 && { remote }) });
    },
    closing,
    withdraw() {
      closing();
      rmSync(forScripts, { force: true });
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

/**
 * Writes a file. It overwrites the file of the previous server and so reuses its disk block; the write therefore
 * succeeds on a full disk. The file contains a key, so only its owner may read it.
 */
function putInPlace(file: string, content: object): void {
  const spare = spareOf(file);
  if (!existsSync(spare) && existsSync(file)) renameSync(file, spare);
  const text = textOf(content);
  const descriptor = openSync(spare, constants.O_WRONLY | constants.O_CREAT, 0o600);
  try {
    fchmodSync(descriptor, 0o600);
    writeSync(descriptor, text, 0);
    ftruncateSync(descriptor, Buffer.byteLength(text));
  } finally {
    closeSync(descriptor);
  }
  renameSync(spare, file);
}

/** Removes the announcement files of servers that were killed. */
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
 * Returns the start time of a running process in clock ticks since boot (field 22 of its stat file, counted from after
 * the command name). Null if there is no such process, or only the entry of one that has ended (states Z, X and x).
 */
export function startTimeOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return /^[ZXx]$/.test(fields[0] ?? "") ? null : (fields[19] ?? null);
  } catch {
    return null;
  }
}

import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

export interface Announcement {
  /** Takes it back. Safe to call twice, and from an exit handler. */
  withdraw(): void;
}

/**
 * Tells the rest of the machine where the server is: clients by `server.json` in the state directory, the set-up
 * scripts of the repository by a file of their own. The start time goes with the pid, so that a file left by a killed
 * server is never taken for a process that got its pid since.
 */
export function announce(options: { stateDir: string; repository: string; url: string }): Announcement {
  const { pid } = process;
  const forClients = join(options.stateDir, "server.json");
  const forScripts = join(options.repository, ".holdfast", `server-${pid}.json`);
  put(forClients, { url: options.url, pid });
  put(forScripts, { pid, startTime: ownStartTime(), url: options.url });
  return {
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

function pidIn(file: string): unknown {
  try {
    return (JSON.parse(readFileSync(file, "utf8")) as { pid?: unknown }).pid;
  } catch {
    return null;
  }
}

/** In clock ticks since boot, as the kernel counts it: field 22, counted from behind the command's name. */
export function ownStartTime(): string {
  const stat = readFileSync("/proc/self/stat", "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return fields[19] ?? "";
}

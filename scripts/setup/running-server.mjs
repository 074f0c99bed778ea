import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Field 22 of the kernel's line on a process: tells it from a later one with the same pid. Null where there is none. */
export function startTimeOf(pid) {
  try {
    const line = readFileSync(`/proc/${pid}/stat`, "utf8");
    return line.slice(line.lastIndexOf(")") + 2).split(" ")[19] ?? null;
  } catch {
    return null;
  }
}

/**
 * The pids of servers that run from this checkout. Each leaves `.holdfast/server-<pid>.json` with its pid and start
 * time; a file whose process is gone means nothing.
 */
export function runningServers(root) {
  const directory = join(root, ".holdfast");
  return list(directory)
    .filter((name) => /^server-\d+\.json$/.test(name))
    .map((name) => readServer(join(directory, name)))
    .filter((server) => server !== null && startTimeOf(server.pid) === String(server.startTime))
    .map((server) => server.pid);
}

function list(directory) {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

function readServer(file) {
  try {
    const { pid, startTime } = JSON.parse(readFileSync(file, "utf8"));
    return Number.isSafeInteger(pid) ? { pid, startTime } : null;
  } catch {
    return null;
  }
}

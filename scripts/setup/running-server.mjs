import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/**
 * Returns the start time of a running process (field 22 of /proc/PID/stat), which distinguishes this process from a
 * later one with the same pid. Null if there is no such process, or only the entry of one that has ended (states Z, X
 * and x).
 */
function startTimeOf(pid) {
  try {
    const line = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
    return /^[ZXx]$/.test(fields[0]) ? null : (fields[19] ?? null);
  } catch {
    return null;
  }
}

/**
 * Returns the pids of servers that run from this checkout. Each server writes `.holdfast/server-<pid>.json` with its
 * pid and start time; files of ended processes are ignored.
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

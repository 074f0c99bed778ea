import { existsSync, readFileSync, readlinkSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

/** The server's URL and API key. */
export interface Endpoint {
  url: string;
  apiKey: string | undefined;
  /** Why no key was found. The hint of a 401 error contains this text. */
  problem: string | undefined;
  /**
   * The announcement of the server, if requests may be sent only while the server that wrote it is running. It is
   * checked before every request. Null if requests need no such check.
   */
  announced: Announced | null;
  /**
   * Why no request may be sent: no server of the state directory is running, or it is unknown whether one is. Undefined
   * if requests may be sent.
   */
  absent: string | undefined;
}

/** The announcement of a server: the file and its content. */
interface Announced {
  file: string;
  text: string;
  pid: number;
  startTime: string;
}

const DEFAULT_URL = "http://127.0.0.1:4750";

/** Returns the state directory of a server on this machine: HOLDFAST_DIR, or the default. */
export function stateDirectory(env: NodeJS.ProcessEnv = process.env): string {
  if (env.HOLDFAST_DIR) return env.HOLDFAST_DIR;
  if (process.getuid?.() === 0) return "/var/lib/holdfast";
  return join(env.XDG_STATE_HOME || join(homedir(), ".local", "state"), "holdfast");
}

/**
 * Finds the server. Precedence: given options, the environment, the state directory of a server on this machine, and
 * last `before`, the URL that was used before.
 *
 * A key from the state directory is sent to one address only: the one that the directory's running server announces. If
 * another program listens where a server used to listen, it receives neither the key nor the request. The announced key
 * is not the admin key: it becomes invalid when its server ends.
 */
export function discover(
  given: { url?: string | undefined; apiKey?: string | undefined },
  env: NodeJS.ProcessEnv = process.env,
  before: string = DEFAULT_URL,
): Endpoint {
  const chosen = given.url || env.HOLDFAST_URL;
  const apiKey = given.apiKey || env.HOLDFAST_API_KEY;
  const own = { announced: null, absent: undefined };
  if (chosen && apiKey) return { url: chosen, apiKey, problem: undefined, ...own };
  const directory = stateDirectory(env);
  const found = findServer(directory);
  if (found.state !== "running" && !chosen)
    return { url: before, apiKey, problem: found.why, announced: null, absent: found.why };
  if (apiKey && found.state === "running")
    return { url: found.url, apiKey, problem: undefined, announced: found.announced, absent: undefined };
  if (chosen && !isLoopback(chosen))
    return { url: chosen, apiKey, problem: "Set HOLDFAST_API_KEY for a server on another machine.", ...own };
  const url = chosen || before;
  if (found.state === "unknown") return { url, apiKey, problem: found.why, ...own };
  if (found.state === "stopped")
    return { url, apiKey, problem: found.why, announced: null, absent: found.why };
  if (!isLoopback(found.url)) {
    const problem = `The server of ${directory} listens at ${found.url}; set HOLDFAST_API_KEY, because its key is only sent to loopback addresses.`;
    return { url: chosen || found.url, apiKey, problem, ...own };
  }
  if (chosen && !isSameServer(chosen, found.url)) {
    const problem = `The server of ${directory} listens at ${found.url}; set HOLDFAST_API_KEY for another server.`;
    return { url, apiKey, problem, ...own };
  }
  const { announced, key } = found;
  return { url: found.url, apiKey: key, problem: undefined, announced, absent: undefined };
}

/**
 * Returns the URLs under which other machines reach the running server of a state directory; empty if there are none.
 */
export function remoteUrls(directory: string = stateDirectory()): string[] {
  const found = findServer(directory);
  if (found.state !== "running") return [];
  const { remote } = JSON.parse(found.announced.text) as { remote?: unknown };
  return Array.isArray(remote) ? remote.filter((url) => typeof url === "string") : [];
}

/**
 * Returns whether the server that announced itself is still running. Reads only two small files, so that it can be
 * called before every request.
 */
export function isAnnounced({ file, text, pid, startTime }: Announced): boolean {
  return readText(file).text === text && startTimeOf(pid) === startTime;
}

type Found =
  | { state: "running"; url: string; key: string; announced: Announced }
  | { state: "stopped"; why: string }
  /** The directory is missing or not readable, so it is not known whether a server is running. */
  | { state: "unknown"; why: string };

function findServer(directory: string): Found {
  const file = join(directory, "server.json");
  const { text, code } = readText(file);
  if (text === undefined) {
    if (code === "EACCES") return { state: "unknown", why: `${file} is not readable` };
    if (!existsSync(directory)) return { state: "unknown", why: `${directory} does not exist` };
    return { state: "stopped", why: `No server is running for ${directory}` };
  }
  const { url, pid, startTime, key } = parse(text);
  if (typeof url !== "string" || typeof pid !== "number" || !URL.canParse(url))
    return { state: "stopped", why: `${file} is not the announcement of a server` };
  if (typeof startTime !== "string" || typeof key !== "string")
    return {
      state: "stopped",
      why: `${file} was written by a server of an earlier version, which has to be restarted`,
    };
  if (startTimeOf(pid) !== startTime)
    return { state: "stopped", why: `The server of ${directory} (pid ${pid}) is not running` };
  if (!isInOwnNetwork(pid))
    return {
      state: "stopped",
      why: `The server of ${directory} runs in another network namespace`,
    };
  return { state: "running", url, key, announced: { file, text, pid, startTime } };
}

function readText(path: string): { text?: string; code?: string | undefined } {
  try {
    return { text: readFileSync(path, "utf8") };
  } catch (error) {
    return { code: (error as NodeJS.ErrnoException).code };
  }
}

function parse(text: string): Record<"url" | "pid" | "startTime" | "key", unknown> {
  const none = { url: undefined, pid: undefined, startTime: undefined, key: undefined };
  try {
    return { ...none, ...(JSON.parse(text) as object | null) };
  } catch {
    return none;
  }
}

/**
 * Returns the start time of a running process, which distinguishes it from a later process with the same pid. Undefined
 * if there is no such process, or only the entry of one that has ended (states Z, X and x).
 */
function startTimeOf(pid: number): string | undefined {
  const { text } = readText(`/proc/${pid}/stat`);
  // The fields are split after the command name, which may contain spaces. `fields[0]` is field 3 of the file, the
  // state, and `fields[19]` is field 22, the start time.
  const fields = text?.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields === undefined || /^[ZXx]$/.test(fields[0] ?? "") ? undefined : fields[19];
}

/**
 * Returns whether a process is in the network namespace of this process. In another namespace, the same loopback
 * address belongs to other programs.
 */
function isInOwnNetwork(pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`) === readlinkSync("/proc/self/ns/net");
  } catch {
    return false;
  }
}

/**
 * Returns whether a URL that the caller chose is the announced URL. `localhost` is accepted in place of the announced
 * host.
 */
function isSameServer(chosen: string, announced: string): boolean {
  const [a, b] = [new URL(chosen), new URL(announced)];
  return (
    a.protocol === b.protocol &&
    a.port === b.port &&
    a.pathname === b.pathname &&
    (a.hostname === b.hostname || a.hostname === "localhost")
  );
}

function isLoopback(url: string): boolean {
  const { hostname } = new URL(url);
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

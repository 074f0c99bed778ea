import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

/** Where the server is, and the key for it. */
export interface Endpoint {
  url: string;
  apiKey: string | undefined;
  /** Why there is no key, for the hint of a 401. */
  problem: string | undefined;
}

const DEFAULT_URL = "http://127.0.0.1:4750";

/** Where a server on this machine keeps its state: HOLDFAST_DIR, or its default. */
export function stateDirectory(env: NodeJS.ProcessEnv = process.env): string {
  if (env.HOLDFAST_DIR) return env.HOLDFAST_DIR;
  if (process.getuid?.() === 0) return "/var/lib/holdfast";
  return join(env.XDG_STATE_HOME || join(homedir(), ".local", "state"), "holdfast");
}

/**
 * What was given counts first, then the environment, then what a server on this machine left in its state directory,
 * then where it was `before`: while it restarts there is nothing in the directory.
 * The key in that directory is the administrator's: it is only ever sent to this machine.
 */
export function discover(
  given: { url?: string | undefined; apiKey?: string | undefined },
  env: NodeJS.ProcessEnv = process.env,
  before: string = DEFAULT_URL,
): Endpoint {
  const directory = stateDirectory(env);
  const url = given.url || env.HOLDFAST_URL || localUrl(directory) || before;
  const apiKey = given.apiKey || env.HOLDFAST_API_KEY;
  if (apiKey) return { url, apiKey, problem: undefined };
  if (!isLoopback(url)) {
    return { url, apiKey: undefined, problem: "Set HOLDFAST_API_KEY for a server on another machine." };
  }
  return { url, ...localKey(directory) };
}

function localUrl(directory: string): string | undefined {
  try {
    const { url } = JSON.parse(readFileSync(join(directory, "server.json"), "utf8")) as { url?: unknown };
    return typeof url === "string" ? url : undefined;
  } catch {
    return undefined;
  }
}

function localKey(directory: string): Pick<Endpoint, "apiKey" | "problem"> {
  const path = join(directory, "admin.key");
  try {
    return { apiKey: readFileSync(path, "utf8").trim(), problem: undefined };
  } catch (error) {
    const why =
      (error as NodeJS.ErrnoException).code === "EACCES" ? "is not readable for you" : "is not there";
    return { apiKey: undefined, problem: `${path} ${why}; set HOLDFAST_API_KEY, or HOLDFAST_DIR.` };
  }
}

function isLoopback(url: string): boolean {
  const { hostname } = new URL(url);
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

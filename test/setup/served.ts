import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const SERVER = "packages/server/src/main.ts";
const DEFAULT_STATE = "/var/lib/holdfast";
const ANSWER_MS = 2_000;

/** The installations of the servers that run on this machine, by their own word. One that does not answer is left out. */
export async function findServed(): Promise<Set<string>> {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const asked = await Promise.allSettled(pids.flatMap(stateDirOf).map(ask));
  return new Set(asked.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : [])));
}

/** Of a process that is a server; nothing of any other. */
function stateDirOf(pid: string): string[] {
  try {
    if (!readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(SERVER)) return [];
    const environment = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
    const set = environment.find((each) => each.startsWith("HOLDFAST_DIR="));
    return [set?.slice("HOLDFAST_DIR=".length) || DEFAULT_STATE];
  } catch {
    return [];
  }
}

async function ask(stateDir: string): Promise<string> {
  const { url } = JSON.parse(readFileSync(join(stateDir, "server.json"), "utf8")) as { url: string };
  const answer = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(ANSWER_MS) });
  return ((await answer.json()) as { installation: string }).installation;
}

import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "./errno.ts";
import { findBinary } from "./runtime.ts";

/** A CRIU that was seen to work on this kernel. */
export interface Criu {
  path: string;
  version: string;
}

export interface NoCriu {
  /** What was looked at, and why none of it will do. */
  missing: string;
  /** What to do about it. */
  fix: string;
}

export interface CriuOptions {
  /** The one to use, by name or path: no other is looked for. That of HOLDFAST_CRIU where absent. */
  criu?: string | undefined;
  /** Where set-up leaves those that it builds. */
  cache?: string;
  /** How long one question to a binary may take. */
  timeoutMs?: number;
}

interface Refusal {
  why: string;
  /** It is new enough: another of its kind would be refused as well. */
  isNewEnough: boolean;
}

const OLDEST_MAJOR = 4;
const ASK_MS = 20_000;
const GONE_MS = 2_000;
const DRAIN_MS = 200;
const OUTPUT_BYTES = 32_768;
const LINE_CHARS = 200;
/** A dump locks the sandbox's network by it; a CRIU that was built without libnftables has only iptables. */
const NEEDED_FEATURE = "network_lock_nftables";

const GET_ONE =
  "Run 'node scripts/setup.mjs criu' as root in Holdfast's directory: it installs CRIU 4 or builds it. HOLDFAST_CRIU names one of your own.";
const OTHER_KERNEL =
  "This CRIU is new enough, so look at what 'criu check' says of the kernel: it needs CONFIG_CHECKPOINT_RESTORE and nf_tables.";
const OTHER_CHOICE = `Name a CRIU of version ${OLDEST_MAJOR} or newer that passes 'criu check', or none: then set-up brings one.`;

/** In directories by their versions. */
export const criuCache = (): string => join(process.env.HOLDFAST_CACHE || "/var/cache/holdfast", "criu");

const found = new Map<string, Criu>();

/**
 * The CRIU that memory standby uses here. That one is installed says nothing: CRIU depends on the kernel like no other
 * program, and an older one fails at the first dump. So each is asked, and only one that says it works is taken. It is
 * remembered as long as this process lives; that there was none is not, since set-up can bring one at any time.
 */
export async function findCriu(options: CriuOptions = {}): Promise<Criu | NoCriu> {
  const { criu = process.env.HOLDFAST_CRIU, cache = criuCache(), timeoutMs = ASK_MS } = options;
  const key = JSON.stringify([criu, cache]);
  const known = found.get(key);
  if (known !== undefined) return known;
  const isChosen = criu !== undefined && criu !== "";
  const refusals: Refusal[] = [];
  for (const path of isChosen ? [findBinary(criu) ?? criu] : candidates(cache)) {
    const trial = await tryCriu(path, timeoutMs);
    if ("path" in trial) {
      found.set(key, trial);
      return trial;
    }
    refusals.push(trial);
  }
  if (refusals.length === 0) return { missing: "not installed", fix: GET_ONE };
  const isNewEnough = refusals.some((refusal) => refusal.isNewEnough);
  return {
    missing: refusals.map(({ why }) => why).join("; "),
    fix: isChosen ? OTHER_CHOICE : isNewEnough ? OTHER_KERNEL : GET_ONE,
  };
}

/** Set-up's own first, the newest of them first: they were made because that of the distribution doesn't work. */
function candidates(cache: string): string[] {
  const cached = versionsIn(cache).map((version) => join(cache, version, "criu"));
  return [...cached, "criu"].map((name) => findBinary(name)).filter((path) => path !== null);
}

function versionsIn(cache: string): string[] {
  try {
    const names = readdirSync(cache).filter((name) => /^\d/.test(name));
    return names.sort((one, other) => other.localeCompare(one, "en", { numeric: true }));
  } catch {
    return [];
  }
}

async function tryCriu(path: string, timeoutMs: number): Promise<Criu | Refusal> {
  const refuse = (why: string, isNewEnough = false): Refusal => ({ why: `${path} ${why}`, isNewEnough });
  const named = await ask(path, ["--version"], timeoutMs);
  const version = /^Version:\s*(\d+(?:\.\d+)*)/m.exec(named.said)?.[1];
  if (named.trouble !== null) return refuse(`does not say its version: ${named.trouble}`);
  if (version === undefined) return refuse(`does not say its version, but "${firstLine(named.said)}"`);
  if (Number.parseInt(version, 10) < OLDEST_MAJOR) {
    return refuse(`is of version ${version}, and memory standby needs ${OLDEST_MAJOR} or newer`);
  }
  const check = await ask(path, ["check", "--no-default-config"], timeoutMs);
  if (check.trouble !== null) return refuse(`${version} fails 'criu check': ${check.trouble}`, true);
  const feature = await ask(path, ["check", "--no-default-config", "--feature", NEEDED_FEATURE], timeoutMs);
  if (feature.trouble !== null)
    return refuse(`${version} has no ${NEEDED_FEATURE}: ${feature.trouble}`, true);
  return { path, version };
}

interface Answer {
  /** What is wrong with it, or null where it ended well. */
  trouble: string | null;
  said: string;
}

/** Never waits much longer than it is told to, whatever the program does, and reads only so much of what it says. */
function ask(path: string, args: readonly string[], timeoutMs: number): Promise<Answer> {
  const { promise, resolve } = Promise.withResolvers<Answer>();
  const child = spawn(path, args, { stdio: ["ignore", "pipe", "pipe"], detached: true });
  let said = "";
  let ending: string | null = null;
  const timers = new Set<NodeJS.Timeout>();
  const later = (ms: number, act: () => void) => timers.add(setTimeout(act, ms));
  const settle = (trouble: string | null) => {
    for (const timer of timers) clearTimeout(timer);
    child.stdout.destroy();
    child.stderr.destroy();
    resolve({ trouble, said });
  };
  const end = (why: string) => {
    if (ending !== null) return;
    ending = why;
    killSession(child.pid);
    later(GONE_MS, () => settle(why));
  };
  const hear = (text: string) => {
    said = (said + text).slice(0, OUTPUT_BYTES);
    if (said.length >= OUTPUT_BYTES) end("it does not stop talking");
  };
  const over = (code: number | null, signal: NodeJS.Signals | null) =>
    settle(ending ?? (code === 0 ? null : troubleIn(said) || `it ended with ${signal ?? code}`));
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", hear);
  later(timeoutMs, () => end(`no answer in ${timeoutMs / 1000} s`));
  child.once("error", (error) => settle(errnoOf(error) === "ENOENT" ? "there is none" : error.message));
  // What it left running may hold its output open; that is not waited for.
  child.once("exit", (code, signal) => later(DRAIN_MS, () => over(code, signal)));
  child.once("close", over);
  return promise;
}

/** A process with all that it has started, as far as that stayed in its session. */
function killSession(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    if (errnoOf(error) !== "ESRCH") throw error;
  }
}

/** The first error is the cause, those after it are what came of it. */
function troubleIn(said: string): string {
  const error = /^(?:Error|.*error while).*$/m.exec(said)?.[0];
  return firstLine(error?.replace(/^Error\s*\([^)]*\):\s*/, "") ?? said);
}

function firstLine(text: string): string {
  const line = text.split("\n").find((each) => each.trim() !== "") ?? "";
  return line
    .replace(/[^\x20-\x7e]/g, "?")
    .slice(0, LINE_CHARS)
    .trim();
}

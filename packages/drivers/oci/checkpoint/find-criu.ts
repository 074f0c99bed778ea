import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { findBinary } from "../machine/runtime.ts";
import { errnoOf } from "../proc/errno.ts";

/** A CRIU binary that passed its checks on this kernel. */
export interface Criu {
  path: string;
  version: string;
}

interface NoCriu {
  /** Text that lists the CRIU binaries that were tried, each with the reason why it can't be used. */
  missing: string;
  /** Advice for the operator. */
  fix: string;
}

export interface CriuOptions {
  /** Name or path of the only CRIU to try. Default: HOLDFAST_CRIU; if that is unset, all candidates are tried. */
  criu?: string | undefined;
  /** Directory in which set-up installs the CRIU versions that it builds. */
  cache?: string;
  /** Time limit for one run of a binary. */
  timeoutMs?: number;
}

interface Refusal {
  why: string;
  /**
   * Whether the version of the refused CRIU is new enough. If it is, the operator is not advised to install a newer
   * one.
   */
  isNewEnough: boolean;
}

const OLDEST_MAJOR = 4;
const ASK_MS = 20_000;
const KILLED_MS = 2_000;
const DRAIN_MS = 200;
const OUTPUT_BYTES = 32_768;
const LINE_CHARS = 200;
/** Required feature of CRIU: a network lock with nftables. A CRIU that was built without libnftables lacks it. */
const NEEDED_FEATURE = "network_lock_nftables";

const GET_ONE =
  "Run 'node scripts/setup.mjs criu' as root in Holdfast's directory: it installs CRIU 4 or builds it. HOLDFAST_CRIU names one of your own.";
const OTHER_KERNEL =
  "This CRIU is new enough, so run 'criu check' to see what the kernel lacks: CRIU needs CONFIG_CHECKPOINT_RESTORE and nf_tables.";
const OTHER_CHOICE = `Name a CRIU of version ${OLDEST_MAJOR} or newer that passes 'criu check', or unset HOLDFAST_CRIU, and set-up installs one.`;

/** Directory of the CRIU builds, with a subdirectory for each version. */
export const criuCache = (): string => join(process.env.HOLDFAST_CACHE || "/var/cache/holdfast", "criu");

const found = new Map<string, Criu>();

/**
 * Finds a CRIU that works on this host. An installed CRIU may still be unusable: CRIU depends closely on the kernel,
 * and an old version fails at the first dump. So each candidate is run with `check`, and the first that passes is used.
 * A success is cached for the life of this process; a failure is not, because set-up can install a CRIU at any time.
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

/**
 * Lists the CRIU builds of set-up, newest first, then the distribution's CRIU. The builds come first, because set-up
 * builds a CRIU only if the distribution's does not work.
 */
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
  const answer = await ask(path, ["--version"], timeoutMs);
  const version = /^Version:\s*(\d+(?:\.\d+)*)/m.exec(answer.output)?.[1];
  if (answer.failure !== null) return refuse(`reports no version: ${answer.failure}`);
  if (version === undefined) return refuse(`reports no version, but "${firstLine(answer.output)}"`);
  if (Number.parseInt(version, 10) < OLDEST_MAJOR) {
    return refuse(`has version ${version}, but memory standby needs ${OLDEST_MAJOR} or newer`);
  }
  const check = await ask(path, ["check", "--no-default-config"], timeoutMs);
  if (check.failure !== null) return refuse(`${version} fails 'criu check': ${check.failure}`, true);
  const feature = await ask(path, ["check", "--no-default-config", "--feature", NEEDED_FEATURE], timeoutMs);
  if (feature.failure !== null)
    return refuse(`${version} has no ${NEEDED_FEATURE}: ${feature.failure}`, true);
  return { path, version };
}

interface Answer {
  /** Reason for the failure of the run; null if the run succeeded. */
  failure: string | null;
  output: string;
}

/**
 * Runs a binary and returns its output. The wait and the length of the output are bounded, whatever the binary does.
 */
function ask(path: string, args: readonly string[], timeoutMs: number): Promise<Answer> {
  const { promise, resolve } = Promise.withResolvers<Answer>();
  const child = spawn(path, args, { stdio: ["ignore", "pipe", "pipe"], detached: true });
  let output = "";
  let ending: string | null = null;
  const timers = new Set<NodeJS.Timeout>();
  const later = (ms: number, act: () => void) => timers.add(setTimeout(act, ms));
  const settle = (failure: string | null) => {
    for (const timer of timers) clearTimeout(timer);
    child.stdout.destroy();
    child.stderr.destroy();
    resolve({ failure, output });
  };
  const end = (why: string) => {
    if (ending !== null) return;
    ending = why;
    killGroup(child.pid);
    later(KILLED_MS, () => settle(why));
  };
  const collect = (text: string) => {
    output = (output + text).slice(0, OUTPUT_BYTES);
    if (output.length >= OUTPUT_BYTES) end("its output is too long");
  };
  const over = (code: number | null, signal: NodeJS.Signals | null) =>
    settle(ending ?? (code === 0 ? null : errorIn(output) || `it ended with ${signal ?? code}`));
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", collect);
  later(timeoutMs, () => end(`no answer in ${timeoutMs / 1000} s`));
  child.once("error", (error) => settle(errnoOf(error) === "ENOENT" ? "no such file" : error.message));
  // A child that the binary left running may keep the output open, so the wait for the end of the output is short.
  child.once("exit", (code, signal) => later(DRAIN_MS, () => over(code, signal)));
  child.once("close", over);
  return promise;
}

/** Kills a process and its descendants, except those that left its process group. */
function killGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    if (errnoOf(error) !== "ESRCH") throw error;
  }
}

/** Returns the first error in the output, because later errors are usually its consequences. */
function errorIn(output: string): string {
  const error = /^(?:Error|.*error while).*$/m.exec(output)?.[0];
  return firstLine(error?.replace(/^Error\s*\([^)]*\):\s*/, "") ?? output);
}

function firstLine(text: string): string {
  const line = text.split("\n").find((each) => each.trim() !== "") ?? "";
  return line
    .replace(/[^\x20-\x7e]/g, "?")
    .slice(0, LINE_CHARS)
    .trim();
}

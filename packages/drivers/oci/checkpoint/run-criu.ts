import { mkdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import { LOG_FILE, meaningOf } from "./criu.ts";
import { isGone } from "./errno.ts";
import type { CriuOnHost, Machine } from "./machine.ts";
import { HELPER_MARK, helperMark } from "./marked.ts";
import { living } from "./observe.ts";
import { helperArgv } from "./runtime.ts";
import { StandbyRefusal } from "./standby-refusal.ts";

/** What was killed is buried within this. */
const GONE_MS = 5_000;
const GONE_POLL_MS = 2;
const { SIGKILL } = constants.signals;

const LOG_MAX_BYTES = 4 * 1_048_576;
const LOG_LOOK_MS = 200;
const LOG_TAIL_CHARS = 2_000;

export interface CriuCall {
  sandboxId: SandboxId;
  argv: readonly string[];
  env?: Record<string, string>;
  deadlineMs: number;
  /** Processes are built up: they are held where CRIU is ended. */
  builds?: true;
}

export function requireCriu({ criu }: Pick<Machine, "criu">): CriuOnHost {
  if (criu === null) throw new StandbyRefusal("this host has no CRIU that works");
  return criu;
}

/** A new, empty directory for the papers of one call. */
export function makeWorkDir(machine: Pick<Machine, "layout">, id: SandboxId): string {
  const { criu } = machine.layout.sandbox(id);
  removeWorkDir(machine, id);
  mkdirSync(criu, { mode: 0o700 });
  return criu;
}

/** Nothing in a sandbox has seen it. */
export const removeWorkDir = ({ layout }: Pick<Machine, "layout">, id: SandboxId): void =>
  rmSync(layout.sandbox(id).criu, { recursive: true, force: true });

/**
 * Runs CRIU to its end, in the sandbox's helper cgroup and in a session of its own. It has a deadline, and is killed where
 * its log grows beyond all reason: on images that it can't make sense of it has been seen to write for ever.
 */
export async function runCriu(
  machine: Pick<Machine, "cgroups" | "installation" | "layout" | "porter" | "alias" | "criu" | "clock">,
  call: CriuCall,
  signal: AbortSignal,
): Promise<void> {
  const { cgroups, installation, layout, porter } = machine;
  const { sandboxId } = call;
  const { runFile } = requireCriu(machine);
  const log = join(layout.sandbox(sandboxId).criu, LOG_FILE);
  const noise = new AbortController();
  const watch = setInterval(() => {
    if (sizeOf(log) > LOG_MAX_BYTES) noise.abort(new Error("CRIU does not stop complaining"));
  }, LOG_LOOK_MS);
  const env = {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    [HELPER_MARK]: helperMark(installation, sandboxId),
    // It packs what lies in memory file systems with it, and that takes longer than all the rest.
    GZIP: "-1",
    ...call.env,
  };
  const limits = AbortSignal.any([signal, AbortSignal.timeout(call.deadlineMs), noise.signal]);
  // CRIU stops what it builds up by tracing it. Once it is killed nobody does, and memory that is on disk would run: so it is
  // held by its cgroup first, until it is killed as well.
  const hold = () => cgroups.hold(sandboxId);
  if (call.builds) limits.addEventListener("abort", hold);
  try {
    const argv = helperArgv(machine, cgroups.makeHelper(sandboxId), call.argv, { runFile, ownTmp: true });
    const { status } = await porter.run({ name: "criu", argv, env }, limits);
    if (status !== 0) throw refusalOf(status, tailOf(log));
  } catch (error) {
    if (signal.aborted || !limits.aborted) throw error;
    throw new StandbyRefusal("it took too long", `CRIU was ended: ${String(error)}: ${tailOf(log)}`);
  } finally {
    clearInterval(watch);
    // Its time runs out later, whatever has become of it by then.
    limits.removeEventListener("abort", hold);
    await endCriu(machine, sandboxId);
  }
}

/**
 * Ends what is left in a sandbox's helper cgroup, in whatever session it is. The sandbox's own processes are left alone, and
 * frozen where they are.
 */
export async function endCriu(
  { cgroups, porter, clock }: Pick<Machine, "cgroups" | "porter" | "clock">,
  id: SandboxId,
): Promise<void> {
  const end = clock.now() + GONE_MS;
  while (!cgroups.removeHelper(id) && clock.now() < end) {
    const helpers = living(cgroups.helpers(id));
    await Promise.all(helpers.map(({ pid, startTime }) => porter.signal(pid, startTime, SIGKILL)));
    await clock.sleep(GONE_POLL_MS);
  }
}

function refusalOf(status: number | string, log: string): Error {
  const detail = `CRIU ended with ${status}: ${log}`;
  const meaning = meaningOf(log);
  return meaning === null ? new Error(detail) : new StandbyRefusal(meaning, detail);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/** The last words, without the one complaint that is always there where root lacks a capability. */
function tailOf(log: string): string {
  try {
    const lines = readFileSync(log, "utf8").slice(-LOG_TAIL_CHARS).trim().split("\n");
    const said = lines.filter((line) => !line.includes("Can't setup RLIMIT_NOFILE for self"));
    return said.length === 0 ? "it said nothing" : said.join("; ");
  } catch (error) {
    if (isGone(error)) return "it said nothing";
    throw error;
  }
}

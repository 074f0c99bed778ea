import { mkdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import { living } from "../machine/instance-processes.ts";
import type { CriuOnHost, Machine } from "../machine/machine.ts";
import { helperArgv } from "../machine/runtime.ts";
import { StandbyRefusal } from "../machine/step-errors.ts";
import { isGone } from "../proc/errno.ts";
import { HELPER_MARK, helperMark } from "../proc/marked-processes.ts";
import { LOG_FILE, meaningOf } from "./criu-argv.ts";

/** Maximum wait until killed helpers have ended. */
const KILLED_MS = 5_000;
const KILLED_POLL_MS = 2;
const { SIGKILL } = constants.signals;

const LOG_MAX_BYTES = 4 * 1_048_576;
const LOG_LOOK_MS = 200;
const LOG_TAIL_CHARS = 2_000;
const EMPTY_LOG = "its log is empty";

export interface CriuCall {
  sandboxId: SandboxId;
  argv: readonly string[];
  env?: Record<string, string>;
  deadlineMs: number;
  /**
   * Whether CRIU creates processes, as in a restore. If so, the sandbox is frozen before CRIU is killed, so that none
   * of these processes runs.
   */
  builds?: true;
}

export function requireCriu({ criu }: Pick<Machine, "criu">): CriuOnHost {
  if (criu === null) throw new StandbyRefusal("this host has no working CRIU");
  return criu;
}

/** Creates an empty directory for the working files of one CRIU run. */
export function makeWorkDir(machine: Pick<Machine, "layout">, id: SandboxId): string {
  const { criu } = machine.layout.sandbox(id);
  removeWorkDir(machine, id);
  mkdirSync(criu, { mode: 0o700 });
  return criu;
}

/** Removes CRIU's working files. A plain recursive removal is safe: sandboxes have no access to this directory. */
export const removeWorkDir = ({ layout }: Pick<Machine, "layout">, id: SandboxId): void =>
  rmSync(layout.sandbox(id).criu, { recursive: true, force: true });

/**
 * Runs CRIU to its end, in the sandbox's helper cgroup and in its own session. CRIU is killed at its deadline, or if
 * its log grows too large: CRIU can log without end when it reads damaged images.
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
  const excess = new AbortController();
  const watch = setInterval(() => {
    if (sizeOf(log) > LOG_MAX_BYTES) excess.abort(new Error("CRIU's log grew too large"));
  }, LOG_LOOK_MS);
  const env = {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    [HELPER_MARK]: helperMark(installation, sandboxId),
    // The fastest level of gzip. CRIU compresses the contents of tmpfs mounts with gzip, which would take most of the
    // dump's time at the default level.
    GZIP: "-1",
    ...call.env,
  };
  const limits = AbortSignal.any([signal, AbortSignal.timeout(call.deadlineMs), excess.signal]);
  // CRIU creates processes and keeps them stopped with ptrace. If CRIU were killed, these processes would start to run,
  // and a later restore of the same checkpoint would run the same memory again. So their cgroup is frozen before CRIU
  // is killed, and they stay frozen until they are killed too.
  const freeze = () => cgroups.requestFreeze(sandboxId);
  if (call.builds) limits.addEventListener("abort", freeze);
  try {
    const argv = helperArgv(machine, cgroups.makeHelper(sandboxId), call.argv, { runFile, ownTmp: true });
    const { status } = await porter.run({ name: "criu", argv, env }, limits);
    if (status !== 0) throw refusalOf(status, tailOf(log));
  } catch (error) {
    if (signal.aborted || !limits.aborted) throw error;
    throw new StandbyRefusal("it took too long", `CRIU was killed: ${String(error)}: ${tailOf(log)}`);
  } finally {
    clearInterval(watch);
    // The timeout signal fires even after CRIU has ended. It must not freeze the sandbox then.
    limits.removeEventListener("abort", freeze);
    await endCriu(machine, sandboxId);
  }
}

/**
 * Kills all processes in a sandbox's helper cgroup, including those in other sessions, and removes the cgroup. The
 * sandbox's own processes are not touched: frozen ones stay frozen.
 */
export async function endCriu(
  { cgroups, porter, clock }: Pick<Machine, "cgroups" | "porter" | "clock">,
  id: SandboxId,
): Promise<void> {
  const end = clock.now() + KILLED_MS;
  while (!cgroups.removeHelper(id) && clock.now() < end) {
    const helpers = living(cgroups.helpers(id));
    await Promise.all(helpers.map(({ pid, startTime }) => porter.signal(pid, startTime, SIGKILL)));
    await clock.sleep(KILLED_POLL_MS);
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

/** The end of CRIU's log, without the warning that CRIU always writes if root lacks CAP_SYS_RESOURCE. */
function tailOf(log: string): string {
  try {
    const lines = readFileSync(log, "utf8").slice(-LOG_TAIL_CHARS).trim().split("\n");
    const relevant = lines.filter((line) => !line.includes("Can't setup RLIMIT_NOFILE for self"));
    return relevant.length === 0 ? EMPTY_LOG : relevant.join("; ");
  } catch (error) {
    if (isGone(error)) return EMPTY_LOG;
    throw error;
  }
}

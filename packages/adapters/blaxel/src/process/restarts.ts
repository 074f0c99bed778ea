/**
 * Processes that are restarted when they fail. For the client, such a process has a constant pid and continuous output.
 * In Holdfast it is a supervised process; each of its runs is an exec with its own end and output.
 */
import { hash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { checker } from "@holdfast/adapter-shared";
import {
  type Exec,
  HoldfastError,
  isHoldfastError,
  isProcessId,
  isProcessOver,
  PROCESS_ID_PATTERN,
  type Process,
  randomText,
  type Sandbox,
  type StartExec,
  StartProcess,
} from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { MOST_BYTES, NO_OUTPUT, type Output, outputOf } from "./collected-output.ts";

const RUN_ID = new RegExp(`${PROCESS_ID_PATTERN.slice(0, -1)}(?=-)`);
/** Maximum number of runs of a process that are combined to one output. */
const RUNS_COMBINED_MAX = 50;
const NEXT_RUN_EVERY_MS = 200;
/** Maximum number of restarts of a process if its request sets no limit. */
const RESTARTS_MAX = 1_000;
const KEY_DIGITS = 32;

const check = checker(StartProcess);

/**
 * Prefix of the Holdfast names of the platform's processes. The platform allows any text as a name, Holdfast does not.
 * So the rest of the Holdfast name is a hash of the platform's name, or random if the process has no name.
 */
const MADE_UP = "bl-";
export const isMadeUp = (name: string): boolean => name.startsWith(MADE_UP);

/**
 * Returns the id of the supervised process to which an exec belongs; null if the exec is not a run of such a process.
 */
export const supervisedIdOf = ({ id }: Pick<Exec, "id">): string | null => RUN_ID.exec(id)?.[0] ?? null;

export class Restarts {
  readonly #engine: Pick<EngineApi, "execs" | "processes">;

  constructor(engine: Pick<EngineApi, "execs" | "processes">) {
    this.#engine = engine;
  }

  async start(
    { id }: Sandbox,
    {
      name,
      maxRestarts,
      order,
    }: { name: string | undefined; maxRestarts: number | undefined; order: StartExec },
    signal: AbortSignal,
  ): Promise<{ process: Process; followed: boolean }> {
    const max = maxRestarts === undefined ? {} : { max: maxRestarts < 0 ? RESTARTS_MAX : maxRestarts };
    const key = name ? hash("sha256", name).slice(0, KEY_DIGITS) : randomText(KEY_DIGITS);
    const wanted = check(
      { ...order, name: `${MADE_UP}${key}`, restart: { on: "failure", ...max } },
      "The process request is not valid",
    );
    return this.#engine.processes.start(id, wanted, { waitMs: 0, signal });
  }

  /** Finds a process by the pid that the client knows; null if no supervised process has this pid. */
  async find({ id }: Sandbox, pid: string): Promise<Process | null> {
    return isProcessId(pid) ? this.#engine.processes.get(id, pid) : null;
  }

  /**
   * Returns the supervised process to which the exec belongs. Returns null if the exec is not a run of a supervised
   * process, or if that process has been replaced by a later one of the same name.
   */
  async supervisedProcess(exec: Exec): Promise<Process | null> {
    const name = supervisedIdOf(exec);
    if (name === null) return null;
    return this.#engine.processes.get(exec.sandboxId, name).catch((error: unknown) => {
      if (isHoldfastError(error) && error.code === "process_not_found") return null;
      throw error;
    });
  }

  /** Returns the exec of a process's last run. Throws if the record of that exec is no longer retained. */
  lastRun({ exec, sandboxId, name }: Process): Exec {
    if (exec !== null) return exec;
    throw new HoldfastError("exec_not_found", {
      sandboxId,
      message: `The last run of ${name} is no longer retained.`,
    });
  }

  /**
   * Returns the output of all runs together. Their total is limited to the size that one run may have; the oldest
   * output is dropped.
   */
  async output(process: Process, signal: AbortSignal): Promise<Output> {
    const all: Output = { ...NO_OUTPUT };
    let left = MOST_BYTES;
    for (const { id } of (await this.#runs(process)).toReversed()) {
      if (left <= 0) return { ...all, truncated: true };
      const { stdout, stderr, logs, truncated } = await outputOf(this.#engine.execs, id, signal, left);
      all.stdout = stdout + all.stdout;
      all.stderr = stderr + all.stderr;
      all.logs = logs + all.logs;
      all.truncated ||= truncated;
      left -= Buffer.byteLength(logs);
    }
    return all;
  }

  /** Yields one run after another, including runs that start while earlier ones are read, until the process ends. */
  async *following(process: Process, signal: AbortSignal): AsyncGenerator<Exec, void, undefined> {
    const sent = new Set<string>();
    for (;;) {
      const { status } = await this.#engine.processes.get(process.sandboxId, process.id);
      const next = (await this.#runs(process)).find(({ id }) => !sent.has(id));
      if (next !== undefined) {
        sent.add(next.id);
        yield next;
      } else if (isProcessOver(status)) return;
      else await sleep(NEXT_RUN_EVERY_MS, undefined, { signal });
    }
  }

  /** Returns the runs of a process, oldest first. */
  async #runs({ sandboxId, id }: Process): Promise<Exec[]> {
    const { items } = await this.#engine.processes.runs(sandboxId, id, { limit: RUNS_COMBINED_MAX });
    return items.toReversed();
  }
}

/**
 * Processes that are started again when they fail. Here each is a row of runs, every run an exec with an end and an output of
 * its own; to the client the row is one process, whose pid stays and whose output goes on.
 */
import { hash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
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
import { checker } from "../checked.ts";
import { MOST_BYTES, NO_OUTPUT, type Output, outputOf } from "./collected-output.ts";

const RUN_ID = new RegExp(`${PROCESS_ID_PATTERN.slice(0, -1)}(?=-)`);
/** What is told of a row's earlier runs. */
const RUNS_TOLD = 50;
const NEXT_RUN_EVERY_MS = 200;
/** The most that there are in a row, for who asks for no end of them. */
const RESTARTS_MAX = 1_000;
const KEY_DIGITS = 32;

const check = checker(StartProcess);

/** Names there are any text; those that rows have here are made of them, or of nothing. */
const MADE_UP = "bl-";
export const isMadeUp = (name: string): boolean => name.startsWith(MADE_UP);

/** The row that an exec is a run of; null where it is one by itself. */
export const rowOf = ({ id }: Pick<Exec, "id">): string | null => RUN_ID.exec(id)?.[0] ?? null;

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
      "The process that was asked for can't be had",
    );
    return this.#engine.processes.start(id, wanted, { waitMs: 0, signal });
  }

  /** By the pid that the client knows; null where that is none of a row. */
  async find({ id }: Sandbox, pid: string): Promise<Process | null> {
    return isProcessId(pid) ? this.#engine.processes.get(id, pid) : null;
  }

  /** Null for an exec by itself, and for a run of a row that another of its name has taken the place of. */
  async rowFor(exec: Exec): Promise<Process | null> {
    const row = rowOf(exec);
    if (row === null) return null;
    return this.#engine.processes.get(exec.sandboxId, row).catch((error: unknown) => {
      if (isHoldfastError(error) && error.code === "process_not_found") return null;
      throw error;
    });
  }

  /** Its last run, for as long as that is kept. */
  lastRun({ exec, sandboxId, name }: Process): Exec {
    if (exec !== null) return exec;
    throw new HoldfastError("exec_not_found", {
      sandboxId,
      message: `The last run of ${name} is not kept any more.`,
    });
  }

  /** Of all runs together as much as of one: what is left out is of the oldest. */
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

  /** One run after the other, those to come included, until it is over. */
  async *following(process: Process, signal: AbortSignal): AsyncGenerator<Exec, void, undefined> {
    const told = new Set<string>();
    for (;;) {
      const { status } = await this.#engine.processes.get(process.sandboxId, process.id);
      const next = (await this.#runs(process)).find(({ id }) => !told.has(id));
      if (next !== undefined) {
        told.add(next.id);
        yield next;
      } else if (isProcessOver(status)) return;
      else await sleep(NEXT_RUN_EVERY_MS, undefined, { signal });
    }
  }

  /** Oldest first. */
  async #runs({ sandboxId, id }: Process): Promise<Exec[]> {
    const { items } = await this.#engine.processes.runs(sandboxId, id, { limit: RUNS_TOLD });
    return items.toReversed();
  }
}

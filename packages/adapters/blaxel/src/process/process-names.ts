import { hash } from "node:crypto";
import {
  type Exec,
  HoldfastError,
  isExecId,
  isHoldfastError,
  isProcessOver,
  isTerminal,
  type Sandbox,
} from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";
import { Restarts } from "./restarts.ts";

/** `sh -c` takes a name behind its command, which the command sees as `$0`. */
const SHELL = ["/bin/sh", "-c"] as const;
const NAMED_LENGTH = 4;
const PAGE = 1_000;
const KEY_DIGITS = 32;

export const namedArgv = (command: string, name: string): string[] => [...SHELL, command, name];

const isShell = ({ argv }: Exec): boolean => argv[0] === SHELL[0] && argv[1] === SHELL[1];
const isNamed = (exec: Exec): boolean => isShell(exec) && exec.argv.length === NAMED_LENGTH;

/** One that was given no name is called by its id. */
export const nameOf = (exec: Exec): string => (isNamed(exec) ? (exec.argv[3] ?? exec.id) : exec.id);
export const commandOf = (exec: Exec): string => (isShell(exec) ? (exec.argv[2] ?? "") : exec.argv.join(" "));

/**
 * Processes by name. A name stands in the command itself, so every exec that is on record has its own, whatever became of
 * the server that started it. A name may be taken again once what had it has ended; the ids that such execs get are counted,
 * and the engine starts an id once, so that of two callers who take a name at the same moment one is refused.
 */
export class ProcessNames {
  readonly #engine: Pick<EngineApi, "execs" | "processes">;
  readonly #restarts: Restarts;

  constructor(engine: Pick<EngineApi, "execs" | "processes">) {
    this.#engine = engine;
    this.#restarts = new Restarts(engine);
  }

  /** The process that a pid or a name means; of several that had the name, the last. */
  async find({ id: sandboxId, name: ref }: Sandbox, identifier: string): Promise<Exec> {
    const exec = (await this.#byId(sandboxId, identifier)) ?? (await this.#lastNamed(ref, identifier));
    if (exec !== null) return exec;
    const message = `There is no process ${JSON.stringify(identifier.slice(0, 80))} in the sandbox.`;
    throw new HoldfastError("exec_not_found", { sandboxId, message });
  }

  /** The id of the next process of that name. Refuses while the last one runs. */
  async nextId({ id: sandboxId, name: ref }: Sandbox, name: string): Promise<string> {
    await this.requireFree({ id: sandboxId, name: ref }, name);
    const prefix = `bl-${hash("sha256", `${sandboxId}\0${name}`).slice(0, KEY_DIGITS)}-`;
    const last = await this.#last(ref, ({ id }) => id.startsWith(prefix));
    return `${prefix}${last === null ? 1 : Number(last.id.slice(prefix.length)) + 1}`;
  }

  /** Refuses while the last process of that name runs, or is to be started again. */
  async requireFree({ id: sandboxId, name: ref }: Pick<Sandbox, "id" | "name">, name: string): Promise<void> {
    const last = await this.#lastNamed(ref, name);
    if (last !== null && !(await this.#isOver(last))) throw nameTaken(sandboxId, name);
  }

  async #isOver(exec: Exec): Promise<boolean> {
    if (!isTerminal(exec.status)) return false;
    const row = await this.#restarts.rowFor(exec);
    return row === null || isProcessOver(row.status);
  }

  async #byId(sandboxId: string, id: string): Promise<Exec | null> {
    if (!isExecId(id)) return null;
    try {
      const exec = await this.#engine.execs.get(id);
      return exec.sandboxId === sandboxId ? exec : null;
    } catch (error) {
      if (isHoldfastError(error) && error.code === "exec_not_found") return null;
      throw error;
    }
  }

  #lastNamed(ref: string, name: string): Promise<Exec | null> {
    return this.#last(ref, (exec) => isNamed(exec) && nameOf(exec) === name);
  }

  /** Newest first, as far back as there are records. */
  async #last(ref: string, isWanted: (exec: Exec) => boolean): Promise<Exec | null> {
    for (let cursor: string | undefined; ; ) {
      const { items, nextCursor } = await this.#engine.execs.list(ref, { cursor, limit: PAGE });
      const found = items.find(isWanted);
      if (found !== undefined) return found;
      if (nextCursor === null) return null;
      cursor = nextCursor;
    }
  }
}

export const nameTaken = (sandboxId: string, name: string): HoldfastError =>
  new HoldfastError("invalid_request", {
    sandboxId,
    message: `A process named ${JSON.stringify(name.slice(0, 80))} already exists and is running.`,
  });

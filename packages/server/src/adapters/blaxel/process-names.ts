import { hash } from "node:crypto";
import {
  type Exec,
  HoldfastError,
  isExecId,
  isHoldfastError,
  isTerminal,
  type Sandbox,
} from "@holdfast/contract";
import type { EngineApi } from "@holdfast/engine";

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
  readonly #engine: Pick<EngineApi, "execs">;

  constructor(engine: Pick<EngineApi, "execs">) {
    this.#engine = engine;
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
    const last = await this.#lastNamed(ref, name);
    if (last !== null && !isTerminal(last.status)) throw nameTaken(sandboxId, name);
    const prefix = `bl-${hash("sha256", `${sandboxId}\0${name}`).slice(0, KEY_DIGITS)}-`;
    const count = last?.id.startsWith(prefix) ? Number(last.id.slice(prefix.length)) : 0;
    return `${prefix}${count + 1}`;
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

  /** Newest first, as far back as there are records. */
  async #lastNamed(ref: string, name: string): Promise<Exec | null> {
    for (let cursor: string | undefined; ; ) {
      const { items, nextCursor } = await this.#engine.execs.list(ref, { cursor, limit: PAGE });
      const found = items.find((exec) => isNamed(exec) && nameOf(exec) === name);
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

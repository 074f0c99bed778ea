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

/**
 * The shell that runs commands. The argument after the command, which the command sees as `$0`, is the process's name.
 */
const SHELL = ["/bin/sh", "-c"] as const;
const NAMED_LENGTH = 4;
const PAGE = 1_000;
const KEY_DIGITS = 32;

export const namedArgv = (command: string, name: string): string[] => [...SHELL, command, name];

const isShell = ({ argv }: Exec): boolean => argv[0] === SHELL[0] && argv[1] === SHELL[1];
const isNamed = (exec: Exec): boolean => isShell(exec) && exec.argv.length === NAMED_LENGTH;

/** Prefix of the names that are generated for processes without a name. The rest of a generated name is the pid. */
const GENERATED = "proc-";
export const generatedName = (pid: string): string => `${GENERATED}${pid}`;
/** Returns the pid in a generated name. Any other identifier is returned unchanged. */
export const pidIn = (identifier: string): string =>
  identifier.startsWith(GENERATED) ? identifier.slice(GENERATED.length) : identifier;

/** Returns the name with which a process was started; null if it was started without a name. */
export const givenName = (exec: Exec): string | null => (isNamed(exec) ? (exec.argv[3] ?? null) : null);
/** Returns the name of a process, given or generated. */
export const nameOf = (exec: Exec): string => givenName(exec) ?? generatedName(exec.id);
export const commandOf = (exec: Exec): string => (isShell(exec) ? (exec.argv[2] ?? "") : exec.argv.join(" "));

/**
 * Finds processes by name. The name is stored in the command itself, so it can be read from every exec record, even
 * after a restart of the server. A name is free again when its process has ended. Exec ids of processes with the same
 * name are numbered, and the engine starts only one exec per id. So if two callers use a name at the same time, one of
 * them is refused.
 */
export class ProcessNames {
  readonly #engine: Pick<EngineApi, "execs" | "processes">;
  readonly #restarts: Restarts;

  constructor(engine: Pick<EngineApi, "execs" | "processes">) {
    this.#engine = engine;
    this.#restarts = new Restarts(engine);
  }

  /** Finds a process by its pid or its name. If several processes had the name, returns the last one. */
  async find({ id: sandboxId, name: ref }: Sandbox, identifier: string): Promise<Exec> {
    const exec =
      (await this.#byId(sandboxId, identifier)) ??
      (await this.#lastNamed(ref, identifier)) ??
      (await this.#byId(sandboxId, pidIn(identifier)));
    if (exec !== null) return exec;
    const message = `There is no process ${JSON.stringify(identifier.slice(0, 80))} in the sandbox.`;
    throw new HoldfastError("exec_not_found", { sandboxId, message });
  }

  /** Returns the id for the next process of that name. Throws while the previous process of that name is running. */
  async nextId({ id: sandboxId, name: ref }: Sandbox, name: string): Promise<string> {
    await this.requireFree({ id: sandboxId, name: ref }, name);
    const prefix = `bl-${hash("sha256", `${sandboxId}\0${name}`).slice(0, KEY_DIGITS)}-`;
    const last = await this.#last(ref, ({ id }) => id.startsWith(prefix));
    return `${prefix}${last === null ? 1 : Number(last.id.slice(prefix.length)) + 1}`;
  }

  /** Throws while the last process of that name is running, or while it waits to be restarted. */
  async requireFree({ id: sandboxId, name: ref }: Pick<Sandbox, "id" | "name">, name: string): Promise<void> {
    const last = await this.#lastNamed(ref, name);
    if (last !== null && !(await this.#isOver(last))) throw nameTaken(sandboxId, name);
  }

  async #isOver(exec: Exec): Promise<boolean> {
    if (!isTerminal(exec.status)) return false;
    const supervised = await this.#restarts.supervisedProcess(exec);
    return supervised === null || isProcessOver(supervised.status);
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
    return this.#last(ref, (exec) => givenName(exec) === name);
  }

  /** Returns the newest exec that matches, searching back to the oldest record; null if none does. */
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

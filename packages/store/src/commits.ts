import type { DatabaseSync } from "node:sqlite";
import { HoldfastError } from "@holdfast/contract";
import type { Commit } from "@holdfast/engine";

/** One transaction writes at most this many commits, so that a burst doesn't keep the event loop for long. */
const BATCH_MAX = 256;
const WAITING_MAX = 20_000;

interface Waiting {
  commit: Commit;
  resolve(): void;
  reject(error: unknown): void;
}

/**
 * Group commit. A durable COMMIT costs a flush of the disk however much it holds, so all commits that arrive within one
 * turn of the event loop share one. Each is written in a savepoint of its own: one whose precondition fails is taken
 * back alone. None is answered before the COMMIT has returned.
 *
 * The end of a turn is `setImmediate`: it comes after every socket that had something to say has been heard, which a
 * microtask does not wait for, and costs a lone commit a few microseconds. The transaction begins and ends within one
 * synchronous stretch, so no other query of the connection ever sees or joins it.
 */
export class CommitQueue {
  readonly #transaction: (commits: readonly Commit[]) => unknown[];
  #waiting: Waiting[] = [];
  #scheduled = false;
  #closed = false;

  constructor(database: DatabaseSync, write: (commit: Commit) => void) {
    this.#transaction = createTransaction(database, write);
  }

  add(commit: Commit): Promise<void> {
    if (this.#closed) return Promise.reject(new HoldfastError("shutting_down"));
    if (this.#waiting.length >= WAITING_MAX) {
      const message = `${WAITING_MAX} writes wait for the database already.`;
      return Promise.reject(new HoldfastError("capacity", { message }));
    }
    this.#schedule();
    return new Promise((resolve, reject) => {
      this.#waiting.push({ commit, resolve, reject });
    });
  }

  /** Writes what waits and takes no more. */
  close(): void {
    this.#closed = true;
    while (this.#waiting.length > 0) this.#flush();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#flush();
      if (this.#waiting.length > 0) this.#schedule();
    });
  }

  #flush(): void {
    const batch = this.#waiting.splice(0, BATCH_MAX);
    if (batch.length === 0) return;
    const errors = this.#transaction(batch.map(({ commit }) => commit));
    for (const [index, { resolve, reject }] of batch.entries()) {
      if (errors[index] === undefined) resolve();
      else reject(errors[index]);
    }
  }
}

/** Answers, for each commit, undefined once it is durable, or why it was not written. */
function createTransaction(database: DatabaseSync, write: (commit: Commit) => void) {
  const begin = database.prepare("BEGIN IMMEDIATE");
  const commit = database.prepare("COMMIT");
  const save = database.prepare("SAVEPOINT one");
  const release = database.prepare("RELEASE one");
  const rollbackToSave = database.prepare("ROLLBACK TO one");

  const writeAlone = (one: Commit): unknown => {
    save.run();
    try {
      write(one);
    } catch (error) {
      // A full disk or a failing one makes SQLite give up the whole transaction: then nobody's commit was written.
      if (!database.isTransaction) throw error;
      rollbackToSave.run();
      release.run();
      return error;
    }
    release.run();
    return undefined;
  };

  return (commits: readonly Commit[]): unknown[] => {
    let errors: unknown[] = [];
    try {
      begin.run();
      errors = commits.map(writeAlone);
      commit.run();
      return errors;
    } catch (error) {
      if (database.isTransaction) database.exec("ROLLBACK");
      return commits.map((_, index) => errors[index] ?? error);
    }
  };
}

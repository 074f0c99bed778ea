import type { DatabaseSync } from "node:sqlite";
import { HoldfastError } from "@holdfast/contract";
import type { Commit } from "@holdfast/engine";
import { isFull } from "./sqlite.ts";

/** One transaction writes at most this many commits, so that a burst doesn't keep the event loop for long. */
const BATCH_MAX = 256;
const WAITING_MAX = 20_000;

interface Waiting {
  commit: Commit;
  resolve(): void;
  reject(error: unknown): void;
}

export interface CommitHooks {
  /** Told of every transaction that a power cut could still undo. */
  onRelaxed(): void;
  /** Asked when the disk is full; true where it is worth trying again. */
  makeRoom(): boolean;
}

/**
 * Group commit. A durable COMMIT costs a flush of the disk however much it holds, so all commits that arrive within one
 * turn of the event loop share one. Where there are several, each is written in a savepoint of its own: one whose
 * precondition fails is taken back alone. None is answered before the COMMIT has returned. Where all that share it need to
 * outlive the server only, it leaves the log to the kernel, which keeps it through any death of this process; a late
 * flush follows.
 *
 * The end of a turn is `setImmediate`: it comes after every socket that had something to say has been heard, which a
 * microtask does not wait for, and costs a lone commit a few microseconds. The transaction begins and ends within one
 * synchronous stretch, so no other query of the connection ever sees or joins it.
 */
export class CommitQueue {
  readonly #transaction: Transaction;
  readonly #onRelaxed: () => void;
  #waiting: Waiting[] = [];
  #scheduled = false;
  #closed = false;

  constructor(database: DatabaseSync, write: (commit: Commit) => void, hooks: CommitHooks) {
    const transaction = makingRoom(createTransaction(database, write), hooks.makeRoom);
    this.#transaction = { host: transaction, server: relaxed(database, transaction) };
    this.#onRelaxed = hooks.onRelaxed;
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
    const outlives = batch.every(({ commit }) => commit.outlives === "server") ? "server" : "host";
    const errors = this.#transaction[outlives](batch.map(({ commit }) => commit));
    if (outlives === "server") this.#onRelaxed();
    for (const [index, { resolve, reject }] of batch.entries()) {
      if (errors[index] === undefined) resolve();
      else reject(errors[index]);
    }
  }
}

/** Answers, for each commit, undefined once it is written, or why it was not. */
type Write = (commits: readonly Commit[]) => unknown[];

type Transaction = Readonly<Record<NonNullable<Commit["outlives"]>, Write>>;

/** FULL is the connection's rule, for whatever else writes through it; what is relaxed is one transaction. */
function relaxed(database: DatabaseSync, transaction: Write): Write {
  return (commits) => {
    database.exec("PRAGMA synchronous = NORMAL");
    try {
      return transaction(commits);
    } finally {
      database.exec("PRAGMA synchronous = FULL");
    }
  };
}

/** A transaction that a full disk broke is tried once more where room could be made. Nothing of the first try was kept. */
function makingRoom(transaction: Write, makeRoom: () => boolean): Write {
  return (commits) => {
    const errors = transaction(commits);
    return errors.some(isFull) && makeRoom() ? transaction(commits) : errors;
  };
}

function createTransaction(database: DatabaseSync, write: (commit: Commit) => void): Write {
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
      // A full disk or a failing one is everybody's: the whole transaction is given up, and nobody's commit was written.
      if (!database.isTransaction || isFull(error)) throw error;
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
      // One by itself is taken back with the transaction.
      errors = commits.map(commits.length === 1 ? write : writeAlone);
      commit.run();
      return errors;
    } catch (error) {
      if (database.isTransaction) database.exec("ROLLBACK");
      return commits.map((_, index) => errors[index] ?? error);
    }
  };
}

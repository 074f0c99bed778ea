import type { DatabaseSync } from "node:sqlite";
import { HoldfastError } from "@holdfast/contract";
import type { Commit } from "@holdfast/engine";
import { isFull } from "./sqlite.ts";

/** Maximum number of commits per transaction, so that a burst does not block the event loop for long. */
const BATCH_MAX = 256;
const WAITING_MAX = 20_000;

interface Waiting {
  commit: Commit;
  resolve(): void;
  reject(error: unknown): void;
}

interface CommitHooks {
  /** Called after every transaction that was not flushed to disk, which a power cut could still undo. */
  onRelaxed(): void;
  /** Called when the disk is full. Returns whether a retry is worthwhile. */
  makeRoom(): boolean;
}

/**
 * Group commit. A durable COMMIT costs a disk flush regardless of its size, so all commits that arrive within one turn
 * of the event loop share one transaction. If there are several, each is written in its own savepoint. If the
 * precondition of one commit fails, only that commit is rolled back. No commit is acknowledged before the transaction's
 * COMMIT has returned.
 *
 * Some commits need to survive only a crash of the server, not a power cut. A transaction of only such commits is not
 * flushed at once: the kernel still has the log when this process dies, and a late flush follows.
 *
 * The transaction runs in a `setImmediate` callback, because that runs after all pending socket events were handled,
 * unlike a microtask. Waiting for it delays a lone commit by a few microseconds. The transaction begins and ends
 * synchronously, so no other query of the connection ever sees or joins it.
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
      const message = `${WAITING_MAX} writes are already waiting for the database.`;
      return Promise.reject(new HoldfastError("capacity", { message }));
    }
    this.#schedule();
    return new Promise((resolve, reject) => {
      this.#waiting.push({ commit, resolve, reject });
    });
  }

  /** Writes the waiting commits. Commits that are added later are refused. */
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

/** Writes the commits. For each commit, returns undefined if it was written, or the error. */
type Write = (commits: readonly Commit[]) => unknown[];

type Transaction = Readonly<Record<NonNullable<Commit["outlives"]>, Write>>;

/**
 * Runs a transaction without a disk flush. The connection's `synchronous` setting is NORMAL during this transaction,
 * and FULL otherwise.
 */
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

/**
 * Retries a transaction once if it failed on a full disk and space could be freed. The failed attempt stored nothing,
 * so nothing is written twice.
 */
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
      // An error that ended the transaction or came from a full disk affects all commits: the whole transaction fails,
      // and none of them is written.
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
      // If a transaction has only one commit, the commit is rolled back with the transaction and needs no savepoint.
      errors = commits.map(commits.length === 1 ? write : writeAlone);
      commit.run();
      return errors;
    } catch (error) {
      if (database.isTransaction) database.exec("ROLLBACK");
      return commits.map((_, index) => errors[index] ?? error);
    }
  };
}

import { OneShot, type OneShotEvent } from "../lib/one-shot.ts";
import type { Stage } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";
import { StdinFeed } from "./stdin-feed.ts";

/** An exec without an outcome. Its `mark` methods note what has happened to the exec. */
export class OpenExec {
  readonly live: LiveSandbox;
  readonly stdin: StdinFeed;
  /** Whether the caller is expected to read the exec's output from the start. */
  readonly expectsReader: boolean;
  readonly #commitDone = new OneShot();
  readonly #begun = new OneShot();
  readonly #over = new OneShot();
  #record: ExecRecord;
  #isStored = false;
  #isQueued = false;
  #isAcknowledged = false;
  #hasJournal = false;
  #mayHaveBeenSent = false;
  #isDispatching = false;
  #isEnding = false;
  #isOverdue = false;
  /** The link over which the exec was last observed running, and how long it was observed running over this link. */
  #running: { link: Link; ms: number } | null = null;

  constructor(context: EngineContext, live: LiveSandbox, record: ExecRecord, expectsReader: boolean) {
    this.#record = record;
    this.live = live;
    this.stdin = new StdinFeed(context, live, record.id);
    this.expectsReader = expectsReader;
  }

  get record(): ExecRecord {
    return this.#record;
  }

  // ── The record in the store ────────────────────────────────────────────────────────────────────────────────────

  /** Whether the record is stored. Until then neither the keeper nor any caller may see the exec. */
  get isStored(): boolean {
    return this.#isStored;
  }

  /** Set once the record is stored or the commit has failed. */
  get commitDone(): OneShotEvent {
    return this.#commitDone;
  }

  markStored(): void {
    this.#isStored = true;
    this.#commitDone.set();
  }

  /**
   * Notes that the record could not be stored. The exec then does not exist, and callers stop waiting for its commit or
   * end.
   */
  markNotStored(): void {
    this.#over.set();
    this.#commitDone.set();
  }

  // ── The queue and the keeper ───────────────────────────────────────────────────────────────────────────────────

  /** Whether the exec waits in the queue. */
  get isQueued(): boolean {
    return this.#isQueued;
  }

  markQueued(): void {
    this.#isQueued = true;
  }

  markUnqueued(): void {
    this.#isQueued = false;
  }

  /** Whether a loop is sending the start request. While it is, no other code may send the request. */
  get isDispatching(): boolean {
    return this.#isDispatching;
  }

  async whileDispatching(send: () => Promise<void>): Promise<void> {
    this.#isDispatching = true;
    try {
      await send();
    } finally {
      this.#isDispatching = false;
    }
  }

  /** Whether this server or an earlier one sent a start request that has no answer but may have reached the keeper. */
  get mayHaveBeenSent(): boolean {
    return this.#mayHaveBeenSent;
  }

  /** Notes that a start request may have reached the keeper, although no answer has arrived. */
  markMaybeSent(): void {
    this.#mayHaveBeenSent = true;
  }

  /** Whether the keeper has acknowledged the exec. */
  get isAcknowledged(): boolean {
    return this.#isAcknowledged;
  }

  /** Set when the keeper has received the exec, or when the exec has ended before that. */
  get begun(): OneShotEvent {
    return this.#begun;
  }

  /** Notes that the keeper has reported the exec. Returns whether this is the keeper's first report of it. */
  markAcknowledged(startedAt: number | null): boolean {
    if (this.#isAcknowledged) return false;
    this.#isAcknowledged = true;
    this.#record = { ...this.#record, startedAt };
    this.#begun.set();
    return true;
  }

  /** Notes whether the exec has a journal. A journal proves that the keeper received the exec. */
  markJournal(exists: boolean): void {
    this.#hasJournal = exists;
  }

  /** Whether the keeper has received the exec, according to its acknowledgement or to the exec's journal. */
  get hasArrived(): boolean {
    return this.#isAcknowledged || this.#hasJournal;
  }

  /** Whether the exec waits for its start request to reach a keeper. The sandbox must be awake for that. */
  get awaitsKeeper(): boolean {
    return !this.#isQueued && !this.hasArrived && !this.#isEnding;
  }

  get stage(): Stage {
    if (this.#isQueued) return "queued";
    return this.hasArrived ? "running" : "starting";
  }

  // ── The end ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Whether the exec's command runs, as far as the keeper has reported. */
  get isRunning(): boolean {
    return this.#isAcknowledged && !this.#isEnding;
  }

  /** Whether the outcome is known and is being stored, or is stored. */
  get isEnding(): boolean {
    return this.#isEnding;
  }

  /** Set when the exec has an outcome, or when it turns out not to exist because it could not be stored. */
  get over(): OneShotEvent {
    return this.#over;
  }

  /**
   * Notes that the outcome is known and is about to be stored. Returns false if that was noted before, because an exec
   * ends only once.
   */
  markEnding(): boolean {
    if (this.#isEnding) return false;
    this.#isEnding = true;
    return true;
  }

  /**
   * Notes that the outcome was stored in this record. All callers that wait for the start or the end of the exec
   * continue.
   */
  markEnded(record: ExecRecord): void {
    this.#record = record;
    this.#over.set();
    this.#begun.set();
  }

  /** Whether the server has requested the end of the exec, because the keeper did not enforce the exec's timeout. */
  get isOverdue(): boolean {
    return this.#isOverdue;
  }

  markOverdue(): void {
    this.#isOverdue = true;
  }

  /**
   * Adds `ms` to the time for which the exec was seen running over this link, and returns the sum. The sum starts at
   * zero with each new link.
   */
  countRunning(link: Link | null, ms: number): number {
    if (link === null) {
      this.#running = null;
      return 0;
    }
    const total = this.#running?.link === link ? this.#running.ms + ms : 0;
    this.#running = { link, ms: total };
    return total;
  }
}

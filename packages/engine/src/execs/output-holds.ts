import { causeOf, type ExecId } from "@holdfast/contract";
import type { OpenExec } from "../live/open-exec.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import { absentNear, type HeldReader, type Hold, holdOf, untilReturn } from "./hold-decision.ts";

/**
 * How much output before a reader's position is also held, as a share of the journal's maximum size. If a reader's
 * connection breaks, bytes in transit are lost, and the reader comes back for them.
 */
const KEPT_BEHIND = 1 / 4;
/**
 * How far a reader must advance before its position is reported to the keeper again, as a share of the journal's
 * maximum size.
 */
const CURSOR_STEP = 1 / 8;
/**
 * Time after which a reader's position is reported to the keeper again, even if the reader has advanced less than
 * `CURSOR_STEP`. It is a share of `outputHoldMs`.
 */
const TIME_STEP = 1 / 20;

interface Reader extends HeldReader {
  /** The next report to the keeper is due when the reader reaches this position. */
  nextCursor: number;
  /** From this time on, a report to the keeper is due as soon as the reader advances at all. */
  nextAt: number;
}

interface HeldExec {
  readonly exec: OpenExec;
  readonly readers: Set<Reader>;
  /** The reader that is expected because the exec's caller announced it; null once a reader has come in its place. */
  expected: Reader | null;
  /** The last hold that was requested from the keeper, and the link of that request. */
  sent: (Hold & { link: Link }) | null;
}

/** Makes a command wait for one reader. Must be disposed of when the reader leaves; the reader may come back. */
export interface ReaderHold extends Disposable {
  /** Must be called when the reader has taken the output before this position. */
  reached(cursor: number): void;
  /** Ends the hold, because the reader needs no more output or has already missed some. */
  release(): void;
}

/**
 * Makes commands wait for the readers that follow them: output that such a reader has not taken is not dropped, and the
 * command waits as it would on a pipe. For this the keeper gets a position and a duration (`leaseMs`), and new ones as
 * the readers take output. Each wait is bounded: by `outputHoldMs` for a reader that takes nothing, and by
 * `outputReturnMs` for a reader that has left, or was announced and has not come yet. The keeper ends an expired hold
 * by itself, so a command continues even if no server is running.
 */
export class OutputHolds {
  readonly #context: EngineContext;
  readonly #held = new Map<ExecId, HeldExec>();
  /** Links to keepers that are too old to hold output. */
  readonly #without = new WeakSet<Link>();

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /**
   * Must be called when an exec's start request was sent over the link. Requests the hold at once, before the command
   * has written any output.
   */
  started(exec: OpenExec, link: Link): void {
    const { clock, numbers } = this.#context;
    let held = this.#held.get(exec.record.id);
    if (held === undefined) {
      if (!exec.expectsReader) return;
      held = this.#of(exec);
      const until = clock.now() + numbers.outputReturnMs;
      held.expected = { cursor: 0, until, isHere: false, nextCursor: 0, nextAt: 0 };
      held.readers.add(held.expected);
    }
    this.#ask(held, link);
  }

  enter(exec: OpenExec, cursor: number): ReaderHold {
    const { clock, numbers } = this.#context;
    const held = this.#of(exec);
    const returned = absentNear(held.readers, cursor);
    if (returned !== null) held.readers.delete(returned);
    if (returned === held.expected) held.expected = null;
    const until = clock.now() + numbers.outputHoldMs;
    const reader: Reader = { cursor, until, isHere: true, nextCursor: 0, nextAt: 0 };
    held.readers.add(reader);
    this.#report(held, reader);
    return {
      reached: (position) => this.#reached(held, reader, position),
      release: () => this.#remove(held, reader),
      [Symbol.dispose]: () => this.#leave(held, reader),
    };
  }

  /**
   * Must be called when a reader has come for which the command does not wait. The reader that was announced is then no
   * longer expected.
   */
  decline({ record: { id } }: OpenExec): void {
    const held = this.#held.get(id);
    if (held?.expected) this.#remove(held, held.expected);
  }

  /**
   * Must be called when an exec has ended. Forgets the absent readers; the present readers read the rest of the output.
   */
  closed({ record: { id } }: OpenExec): void {
    const held = this.#held.get(id);
    for (const reader of held?.readers ?? []) if (!reader.isHere) held?.readers.delete(reader);
    if (held?.readers.size === 0) this.#held.delete(id);
  }

  #of(exec: OpenExec): HeldExec {
    const { id } = exec.record;
    const held = this.#held.get(id) ?? { exec, readers: new Set<Reader>(), expected: null, sent: null };
    this.#held.set(id, held);
    return held;
  }

  #reached(held: HeldExec, reader: Reader, cursor: number): void {
    if (!held.readers.has(reader)) return;
    const { clock, numbers } = this.#context;
    const now = clock.now();
    reader.cursor = cursor;
    reader.until = now + numbers.outputHoldMs;
    const isOtherLink = linkOf(held) !== held.sent?.link;
    if (isOtherLink || cursor >= reader.nextCursor || now >= reader.nextAt) this.#report(held, reader);
  }

  #report(held: HeldExec, reader: Reader): void {
    const { clock, numbers } = this.#context;
    reader.nextCursor = reader.cursor + numbers.journalCapBytes * CURSOR_STEP;
    reader.nextAt = clock.now() + numbers.outputHoldMs * TIME_STEP;
    this.#ask(held, linkOf(held));
  }

  #leave(held: HeldExec, reader: Reader): void {
    if (!held.readers.has(reader)) return;
    if (held.exec.over.isSet) {
      this.#remove(held, reader);
      return;
    }
    const { clock, numbers } = this.#context;
    reader.isHere = false;
    reader.until = untilReturn(reader, clock.now(), numbers.outputReturnMs);
    this.#forgetAbsent(held);
    this.#ask(held, linkOf(held));
  }

  #remove(held: HeldExec, reader: Reader): void {
    if (!held.readers.delete(reader)) return;
    this.#ask(held, linkOf(held));
    if (held.readers.size === 0) this.#held.delete(held.exec.record.id);
  }

  /**
   * Forgets absent readers whose `until` has passed. If more than `readersPerExec` are absent, also forgets the oldest.
   */
  #forgetAbsent({ readers }: HeldExec): void {
    const { clock, numbers } = this.#context;
    const now = clock.now();
    const absent = [...readers].filter(({ isHere }) => !isHere);
    const excess = absent.length - numbers.readersPerExec;
    for (const [index, reader] of absent.entries())
      if (reader.until <= now || index < excess) readers.delete(reader);
  }

  /** Sends the keeper a request for the hold that the current readers need. */
  #ask(held: HeldExec, link: Link | null): void {
    const { clock, numbers, stopping, log } = this.#context;
    if (link === null || this.#without.has(link)) return;
    const now = clock.now();
    const wanted = holdOf(held.readers, now);
    if (wanted === null && (held.sent === null || held.sent.until <= now)) return;
    const hold = wanted ?? { cursor: 0, until: now };
    const sent = { ...hold, link };
    held.sent = wanted === null ? null : sent;
    const cursor = Math.max(0, Math.floor(hold.cursor - numbers.journalCapBytes * KEPT_BEHIND));
    // If the clock was set back, `until` is too far in the future. The requested duration is therefore limited to
    // `outputHoldMs`.
    const leaseMs = Math.min(hold.until - now, numbers.outputHoldMs);
    const { id } = held.exec.record;
    link.holdExec(id, { cursor, leaseMs }, stopping).then(
      (isHeld) => {
        if (!isHeld) this.#without.add(link);
      },
      (error: unknown) => {
        if (held.sent === sent) held.sent = null;
        log.debug({ exec: id, cause: causeOf(error) }, "output could not be held");
      },
    );
  }
}

const linkOf = ({ exec }: HeldExec): Link | null => exec.live.link;

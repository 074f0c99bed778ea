import { type ExecId, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { raced, soonest, within } from "./clock.ts";
import { cursorOf } from "./exec.ts";
import { translate } from "./gate.ts";
import type { Ledger } from "./ledger.ts";
import type { OpenExec } from "./open-exec.ts";
import { type JournalSlice, KeeperRefusal, type Link, LinkLost } from "./ports.ts";
import type { ExecRecord } from "./records.ts";
import type { World } from "./world.ts";

/** Four of the largest records that there are, with their headers. */
const READ_BYTES = 4 * (65_536 + 24);

/**
 * Where output is read from: the keeper of a sandbox that serves, and otherwise the journal on disk, which outlives the
 * keeper's memory, the keeper and the sandbox. Every link is a disposable view of that journal: a lost one costs a
 * reader nothing but the next call.
 */
export class OutputSource {
  readonly #world: World;
  readonly #ledger: Ledger;
  readonly #cellOf: (id: string) => Cell | undefined;
  readonly #waits = new Map<ExecId, { link: Link; end: number; over: Promise<void> }>();

  constructor(world: World, ledger: Ledger, cellOf: (id: string) => Cell | undefined) {
    this.#world = world;
    this.#ledger = ledger;
    this.#cellOf = cellOf;
  }

  /** What there is behind an offset, waited for up to `waitMs` while the exec runs; null: nobody can be asked yet. */
  async read(
    record: ExecRecord,
    offset: number,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<JournalSlice | null> {
    const open = this.#ledger.open(record.id);
    if (open !== undefined && this.#sleeps(record)) return this.#whileAsleep(record, offset, waitMs, signal);
    if (open !== undefined && !open.acknowledged)
      await soonest(this.#world.clock, waitMs, signal, open.begun.signal, open.over.signal);
    const link = await this.#link(record, open, waitMs, signal);
    if (link !== null && (open === undefined || open.acknowledged)) {
      try {
        const from = { cursor: offset, maxBytes: READ_BYTES, waitMs: 0 };
        const slice = await link.readExec(record.id, from, signal);
        const isNews = slice.records.length > 0 || !slice.more || slice.next !== offset;
        if (isNews || open === undefined || waitMs <= 0) return slice;
        await this.#news(record, link, { end: slice.end, waitMs }, signal);
        return await link.readExec(record.id, from, signal);
      } catch (error) {
        // Who has left hears that, and not what happened to break in the same moment.
        signal.throwIfAborted();
        if (!(error instanceof LinkLost) && !isUnknownExec(error)) throw outputError(error, record);
      }
    }
    return this.#ledger.open(record.id) === undefined ? this.#fromDisk(record, offset, signal) : null;
  }

  /** What is frozen writes nothing to the journal: it can be read as it lies there, without waking anybody. */
  #sleeps({ sandboxId }: ExecRecord): boolean {
    const cell = this.#cellOf(sandboxId);
    return cell?.isAsleep === true && !cell.links?.current;
  }

  /** Waits for a change of the sandbox, for a while. */
  async #until(
    { sandboxId, id }: ExecRecord,
    holds: () => boolean,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const { clock } = this.#world;
    const over = this.#ledger.open(id)?.over.signal;
    const ended = over === undefined ? signal : AbortSignal.any([signal, over]);
    const cell = this.#cellOf(sandboxId);
    if (cell === undefined) return soonest(clock, waitMs, ended);
    const limit = { ms: waitMs, what: "waiting for the sandbox", signal: ended };
    await within(clock, limit, (inner) => cell.until(holds, inner)).catch(() => undefined);
  }

  async #whileAsleep(
    record: ExecRecord,
    offset: number,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<JournalSlice> {
    const slice = await this.#fromDisk(record, offset, signal);
    if (slice.records.length === 0 && waitMs > 0)
      await this.#until(record, () => !this.#sleeps(record), waitMs, signal);
    return { ...slice, more: true };
  }

  /** Resolves when there is more than up to `end`, or after a while. All readers that wait for it share one request. */
  async #news(
    { id }: ExecRecord,
    link: Link,
    { end, waitMs }: { end: number; waitMs: number },
    signal: AbortSignal,
  ): Promise<void> {
    let wait = this.#waits.get(id);
    if (wait?.link !== link || wait.end !== end) {
      const from = { cursor: end, maxBytes: 1, waitMs };
      const over = link.readExec(id, from, this.#world.stopping).then(
        () => undefined,
        () => undefined,
      );
      wait = { link, end, over };
      this.#waits.set(id, wait);
      const mine = wait;
      void over.then(() => this.#waits.get(id) === mine && this.#waits.delete(id));
    }
    await raced(wait.over, signal);
  }

  /** The link to read over, waited for while the exec runs. */
  async #link(
    record: ExecRecord,
    open: OpenExec | undefined,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<Link | null> {
    const cell = this.#cellOf(record.sandboxId);
    const links = cell?.refusal() === null ? cell.links : null;
    if (links?.current || open === undefined || waitMs <= 0) return links?.current ?? null;
    // Who follows asks again and again: where no link will come, the next change of the sandbox is what to wait for.
    if (!links || links.isClosed)
      await this.#until(record, () => Boolean(cell?.links?.current), waitMs, signal);
    else await links.get(waitMs, AbortSignal.any([signal, open.over.signal])).catch(() => null);
    return cell?.links?.current ?? null;
  }

  async #fromDisk(record: ExecRecord, offset: number, signal: AbortSignal): Promise<JournalSlice> {
    const { journals } = this.#world;
    try {
      const from = { cursor: offset, maxBytes: READ_BYTES };
      const slice = await journals.read(record.sandboxId, record.id, from, signal);
      if (slice !== null) return slice;
    } catch (error) {
      signal.throwIfAborted();
      throw outputError(error, record);
    }
    if (record.outputEnd === 0 && offset === 0)
      return { records: [], next: 0, floor: 0, end: 0, more: false };
    throw new HoldfastError("output_dropped", {
      sandboxId: record.sandboxId,
      execId: record.id,
      message: "The output of this exec is no longer kept.",
    });
  }
}

const isUnknownExec = (error: unknown): boolean =>
  error instanceof KeeperRefusal && error.reason === "no_such_exec";

/** The floor that a keeper, or a journal on disk, answered instead of output; null where it was something else. */
export const floorIn = (error: unknown): string | null =>
  error instanceof HoldfastError && error.code === "output_dropped" ? (error.floor ?? null) : null;

function outputError(error: unknown, record: ExecRecord): unknown {
  const about = { sandboxId: record.sandboxId, execId: record.id };
  if (!(error instanceof KeeperRefusal)) {
    const told = translate(error, about);
    if (told instanceof HoldfastError) return told;
    return new HoldfastError("internal", {
      ...about,
      message: "The output could not be read.",
      cause: error,
    });
  }
  if (error.reason === "bad_cursor") return new HoldfastError("bad_cursor", about);
  if (error.reason !== "below_floor" || error.floor === null) return translate(error, about);
  const floor = cursorOf(record, error.floor);
  const message = `The output at that cursor is no longer kept; the first that is: ${floor}`;
  return new HoldfastError("output_dropped", { ...about, floor, message });
}

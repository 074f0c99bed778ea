import { type ExecId, HoldfastError } from "@holdfast/contract";
import { raced, soonest, within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { cursorOf } from "../model/exec-outcome.ts";
import { translate } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import { type JournalSlice, KeeperRefusal, type Link, LinkLost } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { ExecLedger } from "./exec-ledger.ts";

/** Maximum number of bytes in one read: four journal records of the largest size, with their headers. */
const READ_BYTES = 4 * (65_536 + 24);

/**
 * Reads output from the keeper of a sandbox that serves, and otherwise from the journal on disk, which outlives the
 * keeper's memory, the keeper and the sandbox. A reader that loses its link can simply call again, because every link
 * reads the same journal.
 */
export class OutputSource {
  readonly #context: EngineContext;
  readonly #ledger: ExecLedger;
  readonly #liveOf: (id: string) => LiveSandbox | undefined;
  readonly #waits = new Map<ExecId, { link: Link; end: number; over: Promise<void> }>();

  constructor(context: EngineContext, ledger: ExecLedger, liveOf: (id: string) => LiveSandbox | undefined) {
    this.#context = context;
    this.#ledger = ledger;
    this.#liveOf = liveOf;
  }

  /**
   * Reads output after an offset and waits up to `waitMs` for more while the exec runs. Returns null if the exec is
   * open but no keeper can be asked.
   */
  async read(
    record: ExecRecord,
    offset: number,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<JournalSlice | null> {
    const open = this.#ledger.open(record.id);
    if (open !== undefined && this.#sleeps(record)) return this.#whileAsleep(record, offset, waitMs, signal);
    if (open !== undefined && !open.isAcknowledged)
      await soonest(this.#context.clock, waitMs, signal, open.begun, open.over);
    const link = await this.#link(record, open, waitMs, signal);
    if (link !== null && (open === undefined || open.isAcknowledged)) {
      try {
        const from = { cursor: offset, maxBytes: READ_BYTES, waitMs: 0 };
        const slice = await link.readExec(record.id, from, signal);
        const isNews = slice.records.length > 0 || !slice.more || slice.next !== offset;
        if (isNews || open === undefined || waitMs <= 0) return slice;
        await this.#news(record, link, { end: slice.end, waitMs }, signal);
        return await link.readExec(record.id, from, signal);
      } catch (error) {
        // If the caller has aborted, it gets its own abort reason, even if the link fails at the same time.
        signal.throwIfAborted();
        if (!(error instanceof LinkLost) && !isUnknownExec(error)) throw outputError(error, record);
      }
    }
    return this.#ledger.open(record.id) === undefined ? this.#fromDisk(record, offset, signal) : null;
  }

  /**
   * Whether the sandbox is in standby. Its journal then doesn't grow and is read from disk, without waking the sandbox.
   */
  #sleeps({ sandboxId }: ExecRecord): boolean {
    const live = this.#liveOf(sandboxId);
    return live?.isAsleep === true && live.link === null;
  }

  /** Waits for at most `waitMs` until `condition` returns true; checks it after every change of the sandbox. */
  async #until(
    { sandboxId, id }: ExecRecord,
    condition: () => boolean,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const { clock } = this.#context;
    const over = this.#ledger.open(id)?.over.signal;
    const ended = over === undefined ? signal : AbortSignal.any([signal, over]);
    const live = this.#liveOf(sandboxId);
    if (live === undefined) return soonest(clock, waitMs, ended);
    const limit = { ms: waitMs, what: "waiting for the sandbox", signal: ended };
    await within(clock, limit, (inner) => live.until(condition, inner)).catch(() => undefined);
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

  /**
   * Resolves when there is output after `end`, or after `waitMs`. All readers waiting for the same position share one
   * request.
   */
  async #news(
    { id }: ExecRecord,
    link: Link,
    { end, waitMs }: { end: number; waitMs: number },
    signal: AbortSignal,
  ): Promise<void> {
    let wait = this.#waits.get(id);
    if (wait?.link !== link || wait.end !== end) {
      const from = { cursor: end, maxBytes: 1, waitMs };
      const over = link.readExec(id, from, this.#context.stopping).then(
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

  /** Returns the link for the read. Waits for a link while the exec runs. */
  async #link(
    record: ExecRecord,
    open: OpenExec | undefined,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<Link | null> {
    const live = this.#liveOf(record.sandboxId);
    const serving = live?.refusal() === null ? live : null;
    const link = serving?.link ?? null;
    if (link !== null || open === undefined || waitMs <= 0) return link;
    // While no link is attached, the call waits for a change of the sandbox. If it returned at once, a reader that
    // follows the output would repeat it over and over.
    if (!serving?.isLinkWanted)
      await this.#until(record, () => live !== undefined && live.link !== null, waitMs, signal);
    else await serving.waitForLink(waitMs, AbortSignal.any([signal, open.over.signal])).catch(() => null);
    return live?.link ?? null;
  }

  async #fromDisk(record: ExecRecord, offset: number, signal: AbortSignal): Promise<JournalSlice> {
    const { journals } = this.#context;
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

/** Returns the cursor of the oldest kept output from an `output_dropped` error; null for any other error. */
export const floorIn = (error: unknown): string | null =>
  error instanceof HoldfastError && error.code === "output_dropped" ? (error.floor ?? null) : null;

function outputError(error: unknown, record: ExecRecord): unknown {
  const about = { sandboxId: record.sandboxId, execId: record.id };
  if (!(error instanceof KeeperRefusal)) {
    const translated = translate(error, about);
    if (translated instanceof HoldfastError) return translated;
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

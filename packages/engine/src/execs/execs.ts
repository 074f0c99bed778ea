import {
  causeOf,
  type Exec,
  type ExecId,
  HoldfastError,
  isExecId,
  isTerminal,
  type ProcessId,
  type SandboxId,
  type StartExec,
  type TerminalSize,
} from "@holdfast/contract";
import { invalidCursor } from "../lib/cursor.ts";
import { raced, soonest, within } from "../lib/deadline.ts";
import { type Digest, digestOf } from "../lib/digest.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import { whileAwaited } from "../lifecycle/suspend.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { entryOf } from "../live/run-ids.ts";
import { cursorOf, isComplete, newExec, offsetIn, signalNumber } from "../model/exec-outcome.ts";
import { specSize } from "../model/exec-spec-size.ts";
import { translate } from "../model/keeper-errors.ts";
import type { ExecApi, OutputOptions, OutputRecord } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import {
  type Clock,
  type Idempotency,
  type JournalSlice,
  KeeperRefusal,
  type Link,
  StoreConflict,
} from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { ExecLedger } from "./exec-ledger.ts";
import { idempotencyOf, specOf } from "./exec-spec.ts";
import { InlineOutput } from "./inline-output.ts";
import type { ReaderHold } from "./output-holds.ts";
import { Readers } from "./output-readers.ts";
import { floorIn, OutputSource } from "./output-source.ts";

export interface Finder {
  find(ref: string): Promise<LiveSandbox>;
  /** Returns the sandbox's id. Also finds a deleted sandbox, if `ref` is its id. */
  idOf(ref: string): Promise<SandboxId>;
  /** Returns the live sandbox with this id; undefined if it does not exist or is not live. */
  live(id: string): LiveSandbox | undefined;
}

const FLOOR_TRIES = 5;
/** Number of records that a listing reads at a time. */
const LISTED_AT_ONCE = 16;
/** Total size of the commands, in characters, at which a page of a listing ends. */
const LISTED_SIZE = 4_194_304;

export class Execs implements ExecApi {
  readonly #context: EngineContext;
  readonly #gate: SandboxGate;
  readonly #ledger: ExecLedger;
  readonly #finder: Finder;
  readonly #source: OutputSource;
  readonly #readers: Readers;
  constructor(context: EngineContext, gate: SandboxGate, ledger: ExecLedger, finder: Finder) {
    this.#context = context;
    this.#gate = gate;
    this.#ledger = ledger;
    this.#finder = finder;
    this.#source = new OutputSource(context, ledger, (id) => finder.live(id));
    this.#readers = new Readers(context);
  }

  get readers(): Readers {
    return this.#readers;
  }

  async start(ref: string, input: StartExec, options: Parameters<ExecApi["start"]>[2]) {
    const live = await this.#finder.find(ref);
    const spec = specOf(input, live);
    const digest = digestOf([live.id, spec]);
    const idempotency = idempotencyOf(options.idempotencyKey, live, digest.text);
    const id = (input.id ?? this.#context.ids.exec()) as ExecId;
    let link = this.#gate.passNow(live);
    const mayBeKnown =
      idempotency !== undefined || isAtExecLimit(live) || this.#ledger.open(id) !== undefined;
    // A request may be a repetition of an earlier one. In the common case (the sandbox serves, and nothing suggests
    // that the exec exists) the store is not searched for the earlier request: if the exec exists after all, the commit
    // fails with a conflict.
    if (link === null || mayBeKnown) {
      const known = await this.#known(live, id, idempotency, digest);
      if (known !== null) return { exec: this.#ledger.view(known), followed: true };
      // The gate is passed again even if there was a link, because the sandbox may have been suspended in the meantime.
      link = await this.#gate.pass(live, options.signal);
    }
    options.signal.throwIfAborted();
    checkExecLimit(live);
    try {
      const { awaited = false } = options;
      const expectsReader = options.expectsReader === true && spec.tty === null;
      const order = newExec(live, { id, spec, digest: digest.text, createdAt: this.#context.clock.now() });
      const open = await this.#ledger.start(live, order, { idempotency, link, awaited, expectsReader });
      return { exec: this.#ledger.view(open.record), followed: false };
    } catch (error) {
      if (!(error instanceof StoreConflict)) throw error;
      const known = await this.#known(live, id, idempotency, digest);
      if (known === null) throw new HoldfastError("exec_conflict", { sandboxId: live.id, execId: id });
      return { exec: this.#ledger.view(known), followed: true };
    }
  }

  /**
   * Returns the exec that an earlier copy of this request created, or null. Throws a conflict if the id belongs to
   * another command.
   */
  async #known(
    live: LiveSandbox,
    id: ExecId,
    idempotency: Idempotency | undefined,
    digest: Digest,
  ): Promise<ExecRecord | null> {
    const { store } = this.#context;
    let wanted = id;
    if (idempotency !== undefined) {
      const made = await store.idempotent(idempotency.scope, idempotency.key);
      if (made !== null && !digest.matches(made.fingerprint))
        throw new HoldfastError("idempotency_conflict", { sandboxId: live.id });
      if (made !== null) wanted = made.target as ExecId;
    }
    const open = this.#ledger.open(wanted);
    // The exec may still fail to be stored, so the result of its commit is awaited.
    if (open !== undefined && !open.isStored)
      await soonest(this.#context.clock, this.#context.numbers.keeperCallMs, open.commitDone);
    const record = this.#ledger.open(wanted)?.record ?? (await store.exec(wanted));
    if (record === null) return null;
    if (record.sandboxId !== live.id || !digest.matches(record.digest)) {
      throw new HoldfastError("exec_conflict", { sandboxId: live.id, execId: wanted });
    }
    return record;
  }

  async get(id: string): Promise<Exec> {
    return this.#ledger.view(await this.#find(id));
  }

  async #find(id: string): Promise<ExecRecord> {
    if (!isExecId(id)) throw new HoldfastError("exec_not_found", { execId: id.slice(0, 64) });
    const record = this.#ledger.open(id)?.record ?? (await this.#context.store.exec(id));
    if (record === null) throw new HoldfastError("exec_not_found", { execId: id });
    return record;
  }

  async wait(id: string, { waitMs, signal }: { waitMs: number; signal: AbortSignal }): Promise<Exec> {
    const found = await this.#find(id);
    const open = this.#ledger.open(found.id);
    if (open !== undefined && waitMs > 0)
      await whileAwaited(open.live, open.record.id, () =>
        soonest(this.#context.clock, waitMs, signal, open.over),
      );
    const record = open?.record ?? found;
    const exec = this.#ledger.view(record);
    if (isTerminal(record.status) && record.outputEnd === 0) return { ...exec, stdout: "", stderr: "" };
    return this.#withOutput(exec, record, signal);
  }

  /** Adds the output from the journal as text, up to the inline limit for each stream. */
  async #withOutput(exec: Exec, record: ExecRecord, signal: AbortSignal): Promise<Exec> {
    const sink = new InlineOutput(this.#context.numbers.execInlineBytes);
    sink.truncated = exec.truncated;
    try {
      let slice = await this.#firstSlice(record, signal);
      if (slice !== null && slice.floor > 0) sink.truncated = true;
      let cursor = 0;
      // Only output up to the current end is read, so that a command that keeps writing can't delay this call forever.
      const end = slice?.end ?? 0;
      while (slice !== null) {
        for (const each of slice.records) sink.take(each);
        const isLast = slice.next >= end || slice.next === cursor || sink.full;
        cursor = slice.next;
        slice = isLast ? null : await this.#source.read(record, cursor, 0, signal);
      }
      // The end of a journal may be missing because of a disk failure or an incomplete copy. The output is then
      // reported as truncated.
      if (isTerminal(record.status) && cursor < record.outputEnd) sink.truncated = true;
      return { ...exec, ...sink.text(), cursor: cursorOf(record, cursor) };
    } catch (error) {
      signal.throwIfAborted();
      this.#context.log.debug({ exec: record.id, cause: causeOf(error) }, "output could not be read");
      return { ...exec, ...sink.text(), truncated: true };
    }
  }

  /** Reads from the beginning of the output or, if that was dropped, from the oldest output that is kept. */
  async #firstSlice(record: ExecRecord, signal: AbortSignal): Promise<JournalSlice | null> {
    let offset = 0;
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#source.read(record, offset, 0, signal);
      } catch (error) {
        // A command that writes fast may move the floor (the oldest kept position) between the two requests.
        const floor = floorIn(error);
        if (floor === null || tries === FLOOR_TRIES) throw error;
        offset = offsetIn(floor, record) ?? 0;
      }
    }
  }

  async list(ref: string, page: { cursor?: string | undefined; limit: number }) {
    return this.listOf(await this.#finder.idOf(ref), undefined, page);
  }

  /** Lists the execs of a sandbox: either all of them or the runs of one process. */
  async listOf(
    sandboxId: SandboxId,
    of: ProcessId | undefined,
    { cursor, limit }: { cursor?: string | undefined; limit: number },
  ) {
    if (cursor !== undefined && !isExecId(cursor)) throw invalidCursor();
    const items: Exec[] = [];
    let before = cursor as ExecId | undefined;
    // A page ends early if its commands are large, because an answer with a thousand commands of a megabyte each would
    // be too large.
    for (let size = 0; ; ) {
      const count = Math.min(LISTED_AT_ONCE, limit + 1 - items.length);
      const records = await this.#context.store.execs(sandboxId, { of, before, limit: count });
      for (const record of records) {
        if (items.length === limit || size > LISTED_SIZE) return { items, nextCursor: before ?? null };
        items.push(this.#ledger.view(record));
        before = record.id;
        size += specSize(record.spec);
      }
      if (records.length < count) return { items, nextCursor: null };
    }
  }

  readerWedged(id: string): void {
    this.#readers.noteCut(id, "wedged");
  }

  async *output(id: string, options: OutputOptions): AsyncIterable<OutputRecord> {
    const { cursor, follow, stream, signal } = options;
    const { clock, numbers } = this.#context;
    const begunAt = clock.now();
    const isOld = () => follow && Math.abs(clock.now() - begunAt) >= numbers.streamMaxMs;
    const record = await this.#find(id);
    using _place = this.#readers.enter(record.id);
    using hold = this.#hold(record, options);
    using _awaited = hold === null ? null : this.#ledger.awaitedReaders.enter(record.id);
    // Whether the exec has ended, or is not followed. Determined before each slice is read: only a slice that was
    // requested after the end of the exec includes the end of the output.
    const isOver = () => !follow || this.#ledger.open(record.id) === undefined;
    let wasOver = isOver();
    // The first slice is read before anything is sent to the caller, so that a bad cursor is answered with an error and
    // not with a stream that breaks off.
    let slice = await this.#open(record, cursor, signal);
    let offset = cursor ? (offsetIn(cursor, record) ?? 0) : (slice?.floor ?? 0);
    const at = (position = offset) => cursorOf(record, position);
    const hasNoHead = offset > 0 && !cursor;
    if (hasNoHead) hold?.release();
    const started = this.#ledger.view(record);
    yield { type: "start", cursor: at(), exec: hasNoHead ? { ...started, truncated: true } : started };
    const keepalive = new KeepaliveTimer(clock, numbers.streamKeepaliveMs);
    let goal: number | null = null;
    for (;;) {
      for (const { stream: type, at: time, cursor: behind, data } of slice?.records ?? []) {
        if (stream !== undefined && stream !== type) continue;
        keepalive.reset();
        yield { type, cursor: at(behind), at: time, data };
        hold?.reached(behind);
      }
      if (options.isTaken?.()) slice?.release?.();
      offset = slice?.next ?? offset;
      hold?.reached(offset);
      // `goal` is the position at which the stream ends. It is set once the exec has ended, or if the caller does not
      // follow the exec. Without it, a child process that keeps writing after the end of the exec would keep the stream
      // open forever.
      if (slice !== null && wasOver) goal ??= slice.end;
      if (slice !== null && (!slice.more || (goal !== null && offset >= goal))) break;
      if (slice === null && !follow) {
        if (!this.#ledger.open(record.id)?.isAcknowledged) break;
        throw this.#unreachable(record);
      }
      if (isOld()) return this.#readers.noteCut(record.id, "expired");
      if (follow && keepalive.isDue()) yield this.#keepalive(record, at());
      wasOver = isOver();
      slice = await this.#source.read(record, offset, follow ? numbers.streamKeepaliveMs : 0, signal);
      signal.throwIfAborted();
    }
    for (let open = this.#ledger.open(record.id); follow && open; open = this.#ledger.open(record.id)) {
      await soonest(clock, numbers.streamKeepaliveMs, signal, open.over);
      signal.throwIfAborted();
      if (isOld()) return this.#readers.noteCut(record.id, "expired");
      if (keepalive.isDue()) yield this.#keepalive(record, at());
    }
    const final = await this.#find(id);
    if (!isTerminal(final.status)) return;
    const truncated = hasNoHead || !isComplete(final) || offset < final.outputEnd;
    yield { type: "end", cursor: at(), exec: { ...this.#ledger.view(final), truncated, cursor: at() } };
  }

  /**
   * Makes the command wait for a reader that follows it, so that no output is dropped before the reader has taken it.
   * Returns null if the command does not wait for this reader.
   */
  #hold(record: ExecRecord, { cursor, follow, hold }: OutputOptions): ReaderHold | null {
    const open = this.#ledger.open(record.id);
    const offset = cursor ? offsetIn(cursor, record) : 0;
    if (open === undefined || !follow || offset === null) return null;
    const isProgram = record.spec.tty === null && !entryOf(open.live, record.id);
    if (hold ?? isProgram) return this.#ledger.holds.enter(open, offset);
    this.#ledger.holds.decline(open);
    this.#ledger.awaitedReaders.came(record.id);
    return null;
  }

  /**
   * Returns a keepalive record. If the sandbox is asleep, the record says that the exec is suspended, so that the
   * reader knows why there is no output.
   */
  #keepalive({ sandboxId }: ExecRecord, cursor: string): OutputRecord {
    const isAsleep = this.#finder.live(sandboxId)?.isAsleep ?? false;
    return { type: "keepalive", cursor, ...(isAsleep ? { suspended: true } : {}) };
  }

  /** Reads the first slice of a stream: from the cursor, or from the oldest output that is kept. */
  async #open(
    record: ExecRecord,
    cursor: string | undefined,
    signal: AbortSignal,
  ): Promise<JournalSlice | null> {
    if (!cursor) return this.#firstSlice(record, signal);
    const offset = offsetIn(cursor, record);
    if (offset === null)
      throw new HoldfastError("bad_cursor", { sandboxId: record.sandboxId, execId: record.id });
    return this.#source.read(record, offset, 0, signal);
  }

  #unreachable({ sandboxId, id }: ExecRecord): HoldfastError {
    return new HoldfastError("link_lost", { sandboxId, execId: id });
  }

  async writeStdin(
    id: string,
    { offset, data, end }: { offset: number | null; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ) {
    const record = await this.#find(id);
    if (record.spec.stdin === null) throw wrongState(record, "The exec was started without an open stdin.");
    const link = await this.#linkOf(record, signal).catch(async (error: unknown) => {
      // If the exec has ended, the bytes are accepted and discarded, as the keeper would do: the caller may be
      // repeating an earlier write that made the command end and whose answer was lost.
      const hadIt = offset !== null && (await this.#find(id)).dispatched === "yes";
      if (hadIt && this.#ledger.open(record.id) === undefined) return null;
      throw error;
    });
    if (link === null) return { accepted: (offset ?? 0) + data.length };
    return this.#call(record, signal, async (inner) => {
      const open = this.#ledger.open(record.id);
      if (offset !== null) {
        // The stdin text from the start request may still be in transit and has to be written first.
        await raced(open?.stdin.begun ?? Promise.resolve(), inner);
        return link.writeStdin(record.id, { offset, data, end }, inner);
      }
      if (open === undefined) throw wrongState(record, "The exec has ended.");
      return { accepted: await open.stdin.append(data, end, inner) };
    });
  }

  async resize(id: string, size: TerminalSize, signal: AbortSignal): Promise<Exec> {
    const record = await this.#find(id);
    if (record.spec.tty === null) throw wrongState(record, "The exec was started without a terminal.");
    const link = await this.#linkOf(record, signal);
    await this.#call(record, signal, (inner) => link.resizeExec(record.id, size, inner));
    return this.get(id);
  }

  async signal(id: string, name: string, abort: AbortSignal): Promise<Exec> {
    const number = signalNumber(name);
    if (number === null)
      throw new HoldfastError("invalid_request", { execId: id, message: `There is no signal ${name}.` });
    const record = await this.#find(id);
    const link = await this.#linkOf(record, abort);
    await this.#call(record, abort, (inner) => link.signalExec(record.id, number, inner));
    return this.get(id);
  }

  async cancel(id: string, signal: AbortSignal): Promise<Exec> {
    const found = await this.#find(id);
    const open = this.#ledger.open(found.id);
    if (open === undefined) return this.#cancelRest(found, signal);
    if (!this.#ledger.cancelQueued(open)) {
      const link = await this.#linkOf(found, signal);
      await this.#call(found, signal, (inner) => link.cancelExec(found.id, inner));
    }
    await soonest(this.#context.clock, this.#context.numbers.keeperCallMs, signal, open.over);
    return this.#ledger.view(open.record);
  }

  /** Kills the processes that an ended exec left running. The outcome of the exec stays as it is. */
  async #cancelRest(record: ExecRecord, signal: AbortSignal): Promise<Exec> {
    const live = this.#finder.live(record.sandboxId);
    const link = live?.refusal() === null ? live.link : null;
    if (link) {
      await this.#call(record, signal, (inner) => link.cancelExec(record.id, inner)).catch(
        (error: unknown) => {
          this.#context.log.debug({ exec: record.id, cause: causeOf(error) }, "nothing was left to cancel");
        },
      );
    }
    return this.#ledger.view(record);
  }

  /**
   * Returns the link to the keeper of a running exec. If there is no link, throws an error that names the state of the
   * exec or the sandbox.
   */
  async #linkOf(record: ExecRecord, signal: AbortSignal): Promise<Link> {
    const about = { sandboxId: record.sandboxId, execId: record.id };
    const open = this.#ledger.open(record.id);
    if (open === undefined) throw wrongState(record, "The exec has ended.");
    if (open.isQueued) throw wrongState(record, "The exec still waits for its turn.");
    const { clock, numbers } = this.#context;
    const live = this.#finder.live(record.sandboxId);
    if (live?.isAsleep) await this.#gate.pass(live, signal);
    if (!open.isAcknowledged) await soonest(clock, numbers.linkWaitMs, signal, open.begun);
    const refusal = live?.refusal();
    if (refusal) throw refusal;
    try {
      const link = await live?.waitForLink(this.#context.numbers.linkWaitMs, signal);
      if (link) return link;
    } catch (error) {
      throw new HoldfastError("link_lost", { ...about, cause: error });
    }
    throw new HoldfastError("link_lost", about);
  }

  async #call<Result>(
    record: ExecRecord,
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<Result>,
  ): Promise<Result> {
    const { clock, numbers } = this.#context;
    const about = { sandboxId: record.sandboxId, execId: record.id };
    const leave = this.#finder.live(record.sandboxId)?.enter();
    try {
      return await within(clock, { ms: numbers.keeperCallMs, what: "the call", signal }, work);
    } catch (error) {
      const isUnknown = error instanceof KeeperRefusal && error.reason === "no_such_exec";
      if (!isUnknown) throw translate(error, about);
      // The exec has a record, so the error is not `exec_not_found`. Either the exec's start or the report of its end
      // is still in transit.
      throw new HoldfastError("link_lost", {
        ...about,
        message: "The keeper does not have the exec yet, or any more.",
      });
    } finally {
      leave?.();
    }
  }
}

/** Whether the sandbox has reached `maxExecs`. Execs that are being stored are counted too. */
const isAtExecLimit = ({ record }: LiveSandbox): boolean =>
  record.execsStarted >= (record.spec.lifecycle.maxExecs ?? Number.POSITIVE_INFINITY);

export function checkExecLimit(live: LiveSandbox): void {
  if (!isAtExecLimit(live)) return;
  const { id: sandboxId, record } = live;
  const message = `The sandbox has started ${record.execsStarted} execs, as many as its maxExecs allows.`;
  throw new HoldfastError("exec_limit", { sandboxId, message });
}

/** Measures the time since the last record was sent to a reader, and decides when a keepalive is due. */
class KeepaliveTimer {
  readonly #clock: Clock;
  readonly #ms: number;
  #since: number;

  /**
   * A keepalive is due slightly before `ms` has passed. Otherwise a wait that ends a moment too early would be followed
   * by another wait of full length.
   */
  constructor(clock: Clock, ms: number) {
    this.#clock = clock;
    this.#ms = ms * 0.9;
    this.#since = clock.now();
  }

  reset(): void {
    this.#since = this.#clock.now();
  }

  /** Whether a keepalive is due. If so, restarts the timer. */
  isDue(): boolean {
    const isDue = Math.abs(this.#clock.now() - this.#since) >= this.#ms;
    if (isDue) this.reset();
    return isDue;
  }
}

const wrongState = ({ sandboxId, id: execId }: ExecRecord, message: string): HoldfastError =>
  new HoldfastError("wrong_state", { sandboxId, execId, message });

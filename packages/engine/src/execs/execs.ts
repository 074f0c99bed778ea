import { hash } from "node:crypto";
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
import type { ExecApi, OutputOptions, OutputRecord } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, soonest, within } from "./clock.ts";
import { cursorOf, isComplete, newExec, offsetIn, signalNumber } from "./exec.ts";
import { idempotencyOf, specOf } from "./exec-spec.ts";
import { type Gate, translate } from "./gate.ts";
import { InlineOutput } from "./inline-output.ts";
import type { Ledger } from "./ledger.ts";
import { floorIn, OutputSource } from "./output-source.ts";
import {
  type Clock,
  type Idempotency,
  type JournalSlice,
  KeeperRefusal,
  type Link,
  StoreConflict,
} from "./ports.ts";
import { Readers } from "./readers.ts";
import type { ExecRecord, ExecSpec } from "./records.ts";
import type { World } from "./world.ts";

export interface Finder {
  find(ref: string): Promise<Cell>;
  /** Also of a deleted one, where that is asked for by its id. */
  idOf(ref: string): Promise<SandboxId>;
  /** The cell of a sandbox that is still live, by id. */
  cell(id: string): Cell | undefined;
}

const FLOOR_TRIES = 5;
/** Records that a listing reads at a time, and the size of their commands behind which it ends. */
const LISTED_AT_ONCE = 16;
const LISTED_SIZE = 4_194_304;

export class Execs implements ExecApi {
  readonly #world: World;
  readonly #gate: Gate;
  readonly #ledger: Ledger;
  readonly #finder: Finder;
  readonly #source: OutputSource;
  readonly #readers: Readers;

  constructor(world: World, gate: Gate, ledger: Ledger, finder: Finder) {
    this.#world = world;
    this.#gate = gate;
    this.#ledger = ledger;
    this.#finder = finder;
    this.#source = new OutputSource(world, ledger, (id) => finder.cell(id));
    this.#readers = new Readers(world);
  }

  get readers(): Readers {
    return this.#readers;
  }

  async start(ref: string, input: StartExec, options: Parameters<ExecApi["start"]>[2]) {
    const cell = await this.#finder.find(ref);
    const spec = specOf(input, cell);
    const digest = hash("sha256", JSON.stringify([cell.id, spec]));
    const idempotency = idempotencyOf(options.idempotencyKey, cell, digest);
    const id = (input.id ?? this.#world.ids.exec()) as ExecId;
    let link = this.#gate.passNow(cell);
    const mayBeKnown =
      idempotency !== undefined || hasNoStepsLeft(cell) || this.#ledger.open(id) !== undefined;
    // Otherwise the commit itself finds out whether the id is known: the common case is that it isn't.
    if (link === null || mayBeKnown) {
      const known = await this.#known(cell, id, idempotency, digest);
      if (known !== null) return { exec: this.#ledger.view(known), followed: true };
      // Also where there was a link: the sandbox may have slept since.
      link = await this.#gate.pass(cell, options.signal);
    }
    options.signal.throwIfAborted();
    checkSteps(cell);
    try {
      const { awaited = false } = options;
      const order = newExec(cell, { id, spec, digest, createdAt: this.#world.clock.now() });
      const open = await this.#ledger.start(cell, order, { idempotency, link, awaited });
      return { exec: this.#ledger.view(open.record), followed: false };
    } catch (error) {
      if (!(error instanceof StoreConflict)) throw error;
      const known = await this.#known(cell, id, idempotency, digest);
      if (known === null) throw new HoldfastError("exec_conflict", { sandboxId: cell.id, execId: id });
      return { exec: this.#ledger.view(known), followed: true };
    }
  }

  /** The exec that this request has already made, null where it hasn't; a conflict where the id means something else. */
  async #known(
    cell: Cell,
    id: ExecId,
    idempotency: Idempotency | undefined,
    digest: string,
  ): Promise<ExecRecord | null> {
    const { store } = this.#world;
    let wanted = id;
    if (idempotency !== undefined) {
      const made = await store.idempotent(idempotency.scope, idempotency.key);
      if (made !== null && made.fingerprint !== digest)
        throw new HoldfastError("idempotency_conflict", { sandboxId: cell.id });
      if (made !== null) wanted = made.target as ExecId;
    }
    const open = this.#ledger.open(wanted);
    // What is not stored yet may turn out never to have been: nobody is told of it before.
    if (open !== undefined && !open.stored)
      await soonest(this.#world.clock, this.#world.numbers.keeperCallMs, open.storing.signal);
    const record = this.#ledger.open(wanted)?.record ?? (await store.exec(wanted));
    if (record === null) return null;
    if (record.sandboxId !== cell.id || record.digest !== digest) {
      throw new HoldfastError("exec_conflict", { sandboxId: cell.id, execId: wanted });
    }
    return record;
  }

  async get(id: string): Promise<Exec> {
    return this.#ledger.view(await this.#find(id));
  }

  async #find(id: string): Promise<ExecRecord> {
    if (!isExecId(id)) throw new HoldfastError("exec_not_found", { execId: id.slice(0, 64) });
    const record = this.#ledger.open(id)?.record ?? (await this.#world.store.exec(id));
    if (record === null) throw new HoldfastError("exec_not_found", { execId: id });
    return record;
  }

  async wait(id: string, { waitMs, signal }: { waitMs: number; signal: AbortSignal }): Promise<Exec> {
    const found = await this.#find(id);
    const open = this.#ledger.open(found.id);
    if (open !== undefined) await soonest(this.#world.clock, waitMs, signal, open.over.signal);
    const record = open?.record ?? found;
    const exec = this.#ledger.view(record);
    if (isTerminal(record.status) && record.outputEnd === 0) return { ...exec, stdout: "", stderr: "" };
    return this.#withOutput(exec, record, signal);
  }

  /** What the journal holds, as text, up to the inline bound for each stream. */
  async #withOutput(exec: Exec, record: ExecRecord, signal: AbortSignal): Promise<Exec> {
    const sink = new InlineOutput(this.#world.numbers.execInlineBytes);
    sink.truncated = exec.truncated;
    try {
      let slice = await this.#firstSlice(record, signal);
      if (slice !== null && slice.floor > 0) sink.truncated = true;
      let cursor = 0;
      // What is there now and no more, so that a command that never stops talking can't hold this call.
      const end = slice?.end ?? 0;
      while (slice !== null) {
        for (const each of slice.records) sink.take(each);
        const isLast = slice.next >= end || slice.next === cursor || sink.full;
        cursor = slice.next;
        slice = isLast ? null : await this.#source.read(record, cursor, 0, signal);
      }
      // A journal may have lost its tail, in a copy that was cut short or with the disk that it lay on.
      if (isTerminal(record.status) && cursor < record.outputEnd) sink.truncated = true;
      return { ...exec, ...sink.text(), cursor: cursorOf(record, cursor) };
    } catch (error) {
      signal.throwIfAborted();
      this.#world.log.debug({ exec: record.id, cause: causeOf(error) }, "output could not be read");
      return { ...exec, ...sink.text(), truncated: true };
    }
  }

  /** From the beginning or, where that was dropped, from the first that is kept. */
  async #firstSlice(record: ExecRecord, signal: AbortSignal): Promise<JournalSlice | null> {
    let offset = 0;
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#source.read(record, offset, 0, signal);
      } catch (error) {
        // A command that prints fast moves the floor while it is asked for.
        const floor = floorIn(error);
        if (floor === null || tries === FLOOR_TRIES) throw error;
        offset = offsetIn(floor, record) ?? 0;
      }
    }
  }

  async list(ref: string, page: { cursor?: string | undefined; limit: number }) {
    return this.listOf(await this.#finder.idOf(ref), undefined, page);
  }

  /** Of a sandbox, all or the runs of one process. */
  async listOf(
    sandboxId: SandboxId,
    of: ProcessId | undefined,
    { cursor, limit }: { cursor?: string | undefined; limit: number },
  ) {
    if (cursor !== undefined && !isExecId(cursor))
      throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
    const items: Exec[] = [];
    let before = cursor as ExecId | undefined;
    // A page ends early where its commands are large: a thousand of a megabyte each would be nobody's answer.
    for (let size = 0; ; ) {
      const count = Math.min(LISTED_AT_ONCE, limit + 1 - items.length);
      const records = await this.#world.store.execs(sandboxId, { of, before, limit: count });
      for (const record of records) {
        if (items.length === limit || size > LISTED_SIZE) return { items, nextCursor: before ?? null };
        items.push(this.#ledger.view(record));
        before = record.id;
        size += sizeOf(record.spec);
      }
      if (records.length < count) return { items, nextCursor: null };
    }
  }

  readerWedged(id: string): void {
    this.#readers.noteCut(id, "wedged");
  }

  async *output(id: string, options: OutputOptions): AsyncIterable<OutputRecord> {
    const { cursor, follow, stream, signal } = options;
    const { clock, numbers } = this.#world;
    const begunAt = clock.now();
    const isOld = () => follow && Math.abs(clock.now() - begunAt) >= numbers.streamMaxMs;
    const record = await this.#find(id);
    using _place = this.#readers.enter(record.id);
    // The first slice is read before anything is said, so that a cursor that can't be served is an error, not a stream.
    let slice = await this.#open(record, cursor, signal);
    let offset = cursor ? (offsetIn(cursor, record) ?? 0) : (slice?.floor ?? 0);
    const at = (position = offset) => cursorOf(record, position);
    const hasNoHead = offset > 0 && !cursor;
    const started = this.#ledger.view(record);
    yield { type: "start", cursor: at(), exec: hasNoHead ? { ...started, truncated: true } : started };
    const silence = new Silence(clock, numbers.streamKeepaliveMs);
    let goal: number | null = null;
    for (;;) {
      for (const { stream: type, at: time, cursor: behind, data } of slice?.records ?? []) {
        if (stream !== undefined && stream !== type) continue;
        silence.broken();
        yield { type, cursor: at(behind), at: time, data };
      }
      if (options.isTaken?.()) slice?.release?.();
      offset = slice?.next ?? offset;
      // A child that goes on writing behind the end, or faster than this reads, can't hold the reader for ever.
      if (slice !== null && (!follow || !this.#ledger.open(record.id))) goal ??= slice.end;
      if (slice !== null && (!slice.more || (goal !== null && offset >= goal))) break;
      if (slice === null && !follow) {
        if (!this.#ledger.open(record.id)?.acknowledged) break;
        throw this.#unreachable(record);
      }
      if (isOld()) return this.#readers.noteCut(record.id, "expired");
      if (follow && silence.isLong()) yield this.#keepalive(record, at());
      slice = await this.#source.read(record, offset, follow ? numbers.streamKeepaliveMs : 0, signal);
      signal.throwIfAborted();
    }
    for (let open = this.#ledger.open(record.id); follow && open; open = this.#ledger.open(record.id)) {
      await soonest(clock, numbers.streamKeepaliveMs, signal, open.over.signal);
      signal.throwIfAborted();
      if (isOld()) return this.#readers.noteCut(record.id, "expired");
      if (silence.isLong()) yield this.#keepalive(record, at());
    }
    const final = await this.#find(id);
    if (!isTerminal(final.status)) return;
    const truncated = hasNoHead || !isComplete(final) || offset < final.outputEnd;
    yield { type: "end", cursor: at(), exec: { ...this.#ledger.view(final), truncated, cursor: at() } };
  }

  /** Says that the exec sleeps, where it does: a reader then knows what it waits for. */
  #keepalive({ sandboxId }: ExecRecord, cursor: string): OutputRecord {
    const isAsleep = this.#finder.cell(sandboxId)?.isAsleep ?? false;
    return { type: "keepalive", cursor, ...(isAsleep ? { suspended: true } : {}) };
  }

  /** The slice that a stream begins with: from the cursor, or from the first output that is kept. */
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
      // As if read, like a keeper says it: a write whose answer was lost may be what let the command end.
      const hadIt = offset !== null && (await this.#find(id)).dispatched === "yes";
      if (hadIt && this.#ledger.open(record.id) === undefined) return null;
      throw error;
    });
    if (link === null) return { accepted: (offset ?? 0) + data.length };
    return this.#call(record, signal, async (inner) => {
      const open = this.#ledger.open(record.id);
      if (offset !== null) {
        // Behind the text that came with the exec, which may still be on its way.
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
    await soonest(this.#world.clock, this.#world.numbers.keeperCallMs, signal, open.over.signal);
    return this.#ledger.view(open.record);
  }

  /** An exec that has ended keeps its outcome; what it left running in the background is killed. */
  async #cancelRest(record: ExecRecord, signal: AbortSignal): Promise<Exec> {
    const cell = this.#finder.cell(record.sandboxId);
    const link = cell?.refusal() === null ? cell.links?.current : null;
    if (link) {
      await this.#call(record, signal, (inner) => link.cancelExec(record.id, inner)).catch(
        (error: unknown) => {
          this.#world.log.debug({ exec: record.id, cause: causeOf(error) }, "nothing was left to cancel");
        },
      );
    }
    return this.#ledger.view(record);
  }

  /** The link of an exec that runs; its own or the sandbox's state is the error where there is none. */
  async #linkOf(record: ExecRecord, signal: AbortSignal): Promise<Link> {
    const about = { sandboxId: record.sandboxId, execId: record.id };
    const open = this.#ledger.open(record.id);
    if (open === undefined) throw wrongState(record, "The exec has ended.");
    if (open.queued) throw wrongState(record, "The exec still waits for its turn.");
    const { clock, numbers } = this.#world;
    const cell = this.#finder.cell(record.sandboxId);
    if (cell?.isAsleep) await this.#gate.pass(cell, signal);
    if (!open.acknowledged) await soonest(clock, numbers.linkWaitMs, signal, open.begun.signal);
    const refusal = cell?.refusal();
    if (refusal) throw refusal;
    try {
      const link = await cell?.links?.get(this.#world.numbers.linkWaitMs, signal);
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
    const { clock, numbers } = this.#world;
    const about = { sandboxId: record.sandboxId, execId: record.id };
    const leave = this.#finder.cell(record.sandboxId)?.enter();
    try {
      return await within(clock, { ms: numbers.keeperCallMs, what: "the call", signal }, work);
    } catch (error) {
      const isUnknown = error instanceof KeeperRefusal && error.reason === "no_such_exec";
      if (!isUnknown) throw translate(error, about);
      // It is on record, so this is no 404: its start is on the way, or its end is.
      throw new HoldfastError("link_lost", {
        ...about,
        message: "The keeper does not have the exec yet, or any more.",
      });
    } finally {
      leave?.();
    }
  }
}

const sizeOf = ({ argv, env, stdin }: ExecSpec): number =>
  [...argv, ...Object.entries(env).flat(), stdin?.text ?? ""].reduce((sum, text) => sum + text.length, 0);

/** By the limit on execs in all; what is being stored at this moment counts. */
const hasNoStepsLeft = ({ record }: Cell): boolean =>
  record.execsStarted >= (record.spec.lifecycle.maxExecs ?? Number.POSITIVE_INFINITY);

export function checkSteps(cell: Cell): void {
  if (!hasNoStepsLeft(cell)) return;
  const { id: sandboxId, record } = cell;
  const message = `The sandbox has started ${record.execsStarted} execs, as many as its maxExecs allows.`;
  throw new HoldfastError("exec_limit", { sandboxId, message });
}

/** How long nothing was said to a reader. */
class Silence {
  readonly #clock: Clock;
  readonly #ms: number;
  #since: number;

  /** A little less than `ms` counts as long: a wait that ends a moment early must not double the next. */
  constructor(clock: Clock, ms: number) {
    this.#clock = clock;
    this.#ms = ms * 0.9;
    this.#since = clock.now();
  }

  broken(): void {
    this.#since = this.#clock.now();
  }

  /** True where it is time to say something, which is then taken as said. */
  isLong(): boolean {
    const isLong = Math.abs(this.#clock.now() - this.#since) >= this.#ms;
    if (isLong) this.broken();
    return isLong;
  }
}

const wrongState = ({ sandboxId, id: execId }: ExecRecord, message: string): HoldfastError =>
  new HoldfastError("wrong_state", { sandboxId, execId, message });

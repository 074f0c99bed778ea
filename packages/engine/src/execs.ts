import { hash } from "node:crypto";
import {
  causeOf,
  type Exec,
  type ExecId,
  HoldfastError,
  isExecId,
  isTerminal,
  type StartExec,
  type StreamRecord,
} from "@holdfast/contract";
import type { ExecApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import { cursorOf, isComplete, offsetIn, signalNumber } from "./exec.ts";
import { idempotencyOf, specOf } from "./exec-spec.ts";
import { type Gate, translate } from "./gate.ts";
import { InlineOutput } from "./inline-output.ts";
import type { Ledger, OpenExec } from "./ledger.ts";
import { type Idempotency, KeeperRefusal, type Link, LinkLost, StoreConflict } from "./ports.ts";
import type { ExecRecord, ExecSpec } from "./records.ts";
import type { World } from "./world.ts";

export interface Finder {
  find(ref: string): Promise<Cell>;
  /** The cell of a sandbox that is still live, by id. */
  cell(id: string): Cell | undefined;
}

const READ_BYTES = 1_048_576;
const START_PAUSE_MS = 20;

export class Execs implements ExecApi {
  readonly #world: World;
  readonly #gate: Gate;
  readonly #ledger: Ledger;
  readonly #finder: Finder;

  constructor(world: World, gate: Gate, ledger: Ledger, finder: Finder) {
    this.#world = world;
    this.#gate = gate;
    this.#ledger = ledger;
    this.#finder = finder;
  }

  async start(
    ref: string,
    input: StartExec,
    options: { idempotencyKey?: string | undefined; signal: AbortSignal },
  ) {
    const cell = await this.#finder.find(ref);
    const spec = specOf(input, cell);
    const digest = hash("sha256", JSON.stringify([cell.id, spec]));
    const idempotency = idempotencyOf(options.idempotencyKey, cell, digest);
    const id = (input.id ?? this.#world.ids.exec()) as ExecId;
    let link = this.#gate.passNow(cell);
    if (link === null || idempotency !== undefined || this.#ledger.open(id) !== undefined) {
      const known = await this.#known(cell, id, idempotency, digest);
      if (known !== null) return { exec: this.#ledger.view(known), followed: true };
      link ??= await this.#gate.pass(cell, options.signal);
    }
    this.#admit(cell, options.signal);
    try {
      const open = await this.#ledger.start(cell, this.#record(cell, id, spec, digest), idempotency, link);
      return { exec: this.#ledger.view(open.record), followed: false };
    } catch (error) {
      if (!(error instanceof StoreConflict)) throw error;
      const known = await this.#known(cell, id, idempotency, digest);
      if (known === null) throw new HoldfastError("exec_conflict", { sandboxId: cell.id, execId: id });
      return { exec: this.#ledger.view(known), followed: true };
    }
  }

  #admit(cell: Cell, signal: AbortSignal): void {
    if (signal.aborted) throw signal.reason;
    const limit = this.#world.numbers.execsPerSandbox;
    if (cell.openExecs.size < limit) return;
    const message = `The sandbox already has ${limit} execs under way.`;
    throw new HoldfastError("too_many_execs", { sandboxId: cell.id, message });
  }

  #record(cell: Cell, id: ExecId, spec: ExecSpec, digest: string): ExecRecord {
    return {
      id,
      sandboxId: cell.id,
      generation: cell.record.generation,
      spec,
      digest,
      status: "starting",
      exitCode: null,
      signal: null,
      cause: null,
      dispatched: "unknown",
      outputEnd: 0,
      createdAt: this.#world.clock.now(),
      startedAt: null,
      endedAt: null,
    };
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
    if (open !== undefined) await this.#settled(open, waitMs, signal);
    const record = open?.record ?? found;
    const cell = this.#finder.cell(record.sandboxId);
    const exec = this.#ledger.view(record);
    if (isTerminal(record.status) && !isComplete(record)) return exec;
    if (isTerminal(record.status) && record.outputEnd === 0) return { ...exec, stdout: "", stderr: "" };
    return this.#withOutput(exec, record, cell, signal);
  }

  async #settled(open: OpenExec, waitMs: number, signal: AbortSignal): Promise<void> {
    if (waitMs <= 0 || signal.aborted) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, waitMs);
    const done = () => resolve();
    signal.addEventListener("abort", done, { once: true });
    open.settled.promise.then(done, done);
    await promise;
    clearTimeout(timer);
    signal.removeEventListener("abort", done);
  }

  /** What the journal holds, as text, up to the inline bound for each stream. */
  async #withOutput(
    exec: Exec,
    record: ExecRecord,
    cell: Cell | undefined,
    signal: AbortSignal,
  ): Promise<Exec> {
    const link = cell?.links?.current;
    if (!link) return { ...exec, truncated: true };
    const sink = new InlineOutput(this.#world.numbers.execInlineBytes);
    try {
      let cursor = 0;
      // What is there now and no more, so that a command that never stops talking can't hold this call.
      let end = 1;
      for (let first = true; cursor < end && !sink.full; first = false) {
        const slice = await readFrom(link, record.id, cursor, signal);
        if (slice.dropped) sink.truncated = true;
        for (const each of slice.records) sink.take(each);
        if (first) end = slice.end;
        if (slice.next === cursor) break;
        cursor = slice.next;
      }
      return { ...exec, ...sink.text(), cursor: cursorOf(record, cursor) };
    } catch (error) {
      this.#world.log.debug({ exec: record.id, cause: causeOf(error) }, "output could not be read");
      return { ...exec, ...sink.text(), truncated: true };
    }
  }

  async list(ref: string, { cursor, limit }: { cursor?: string | undefined; limit: number }) {
    const cell = await this.#finder.find(ref);
    if (cursor !== undefined && !isExecId(cursor))
      throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
    const records = await this.#world.store.execs(cell.id, {
      before: cursor as ExecId | undefined,
      limit: limit + 1,
    });
    const items = records.slice(0, limit).map((record) => this.#ledger.view(record));
    return { items, nextCursor: records.length > limit ? (items.at(-1)?.id ?? null) : null };
  }

  async *output(
    id: string,
    { cursor, follow, signal }: { cursor?: string | undefined; follow: boolean; signal: AbortSignal },
  ): AsyncIterable<StreamRecord> {
    const record = await this.#find(id);
    let offset = 0;
    if (cursor !== undefined && cursor !== "") {
      const parsed = offsetIn(cursor, record.id);
      if (parsed === null)
        throw new HoldfastError("invalid_request", {
          execId: id,
          message: "The cursor is not one of this exec.",
        });
      offset = parsed;
    }
    const at = () => cursorOf(record, offset);
    // The first slice is read before anything is said, so that a cursor that can't be served is an error, not a stream.
    const slices = this.#slices(record, offset, follow, signal);
    let step = await slices.next();
    yield { type: "start", cursor: at(), exec: this.#ledger.view(record) };
    for (let first = true; !step.done; step = await slices.next(), first = false) {
      offset = step.value.next;
      if (step.value.records.length === 0 && follow && !first) yield { type: "keepalive", cursor: at() };
      for (const each of step.value.records) {
        const data = Buffer.from(each.data.buffer, each.data.byteOffset, each.data.byteLength).toString(
          "base64",
        );
        yield {
          type: each.stream,
          cursor: cursorOf(record, each.cursor),
          at: new Date(each.at).toISOString(),
          data,
        };
      }
    }
    const last = this.#ledger.open(record.id);
    const final = last ? (follow ? await raced(last.settled.promise, signal) : null) : await this.#find(id);
    if (final !== null && isTerminal(final.status)) {
      const truncated = !isComplete(final) || offset < final.outputEnd;
      yield { type: "end", cursor: at(), exec: { ...this.#ledger.view(final), truncated, cursor: at() } };
    }
  }

  /** Slices of the journal from an offset on, across lost links, until the exec has ended and all was read. */
  async *#slices(record: ExecRecord, from: number, follow: boolean, signal: AbortSignal) {
    let offset = from;
    for (let first = true; !signal.aborted; first = false) {
      const open = this.#ledger.open(record.id);
      const link = await this.#nextLink(record, open, signal);
      if (link === null) {
        if (open === undefined || !follow) return;
        yield { records: [], next: offset };
        continue;
      }
      try {
        const waitMs = follow && open !== undefined && !first ? this.#world.numbers.streamKeepaliveMs : 0;
        const slice = await link.readExec(
          record.id,
          { cursor: offset, maxBytes: READ_BYTES, waitMs },
          signal,
        );
        offset = slice.next;
        yield { records: slice.records, next: slice.next };
        if (!slice.more || (!follow && slice.next >= slice.end)) return;
      } catch (error) {
        if (signal.aborted) throw error;
        if (error instanceof LinkLost) continue;
        if (open === undefined || !isUnknownExec(error)) throw outputError(error, record);
        // Stored, but its start has not reached the keeper yet.
        await this.#settled(open, START_PAUSE_MS, signal);
      }
    }
  }

  /** The link to read a journal over, waited for while its sandbox lives; null after a while, or where it never comes. */
  async #nextLink(record: ExecRecord, open: OpenExec | undefined, signal: AbortSignal): Promise<Link | null> {
    const { streamKeepaliveMs } = this.#world.numbers;
    const cell = this.#finder.cell(record.sandboxId);
    const links = cell?.refusal() === null ? cell.links : null;
    if (links?.current) return links.current;
    if (open === undefined && !links) return null;
    const ended = open && this.#settled(open, streamKeepaliveMs, signal).then(() => null);
    const back = links?.get(streamKeepaliveMs, signal).catch(() => null);
    const link = await Promise.race([ended, back].filter((one) => one !== undefined));
    // Of an exec that has ended nothing more is said than was read: no link means come again, not that this was all.
    if (link === null && open === undefined)
      throw new HoldfastError("link_lost", { sandboxId: record.sandboxId, execId: record.id });
    return link;
  }

  async writeStdin(
    id: string,
    chunk: { offset: number; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ) {
    const record = await this.#find(id);
    if (record.spec.stdin === null)
      throw new HoldfastError("wrong_state", {
        execId: id,
        message: "The exec was started without an open stdin.",
      });
    const link = await this.#linkOf(record, signal);
    return this.#call(record, signal, (inner) => link.writeStdin(record.id, chunk, inner));
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
    if (open === undefined) return this.#ledger.view(found);
    const link = await this.#linkOf(found, signal);
    await this.#call(found, signal, (inner) => link.cancelExec(found.id, inner));
    await this.#settled(open, this.#world.numbers.keeperCallMs, signal);
    return this.#ledger.view(open.record);
  }

  /** The link of an exec that runs; the sandbox's own state is the error where there is none. */
  async #linkOf(record: ExecRecord, signal: AbortSignal): Promise<Link> {
    const about = { sandboxId: record.sandboxId, execId: record.id };
    if (isTerminal(record.status))
      throw new HoldfastError("wrong_state", { ...about, message: "The exec has ended." });
    const cell = this.#finder.cell(record.sandboxId);
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
    try {
      return await within(clock, { ms: numbers.keeperCallMs, what: "the call", signal }, work);
    } catch (error) {
      throw translate(error, { sandboxId: record.sandboxId, execId: record.id });
    }
  }
}

/** A slice from a cursor; where the head was dropped meanwhile, from the floor, and said so. */
async function readFrom(link: Link, id: ExecId, cursor: number, signal: AbortSignal) {
  try {
    return {
      ...(await link.readExec(id, { cursor, maxBytes: READ_BYTES, waitMs: 0 }, signal)),
      dropped: false,
    };
  } catch (error) {
    if (!(error instanceof KeeperRefusal) || error.reason !== "below_floor" || error.floor === null)
      throw error;
    return {
      ...(await link.readExec(id, { cursor: error.floor, maxBytes: READ_BYTES, waitMs: 0 }, signal)),
      dropped: true,
    };
  }
}

const isUnknownExec = (error: unknown): boolean =>
  error instanceof KeeperRefusal && error.reason === "no_such_exec";

function outputError(error: unknown, { sandboxId, id }: ExecRecord): unknown {
  if (error instanceof KeeperRefusal && error.reason === "below_floor") {
    const message = `The output at that cursor is no longer kept; the first that is: ${id}.${error.floor}`;
    return new HoldfastError("output_dropped", { sandboxId, execId: id, message });
  }
  if (isUnknownExec(error)) {
    return new HoldfastError("output_dropped", {
      sandboxId,
      execId: id,
      message: "The output of this exec is no longer kept.",
    });
  }
  return translate(error, { sandboxId, execId: id });
}

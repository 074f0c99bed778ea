import {
  HoldfastError,
  isProcessId,
  isProcessOver,
  type Process,
  type ProcessList,
  type StartProcess,
} from "@holdfast/contract";
import type { ExecLedger } from "../execs/exec-ledger.ts";
import type { Execs, Finder } from "../execs/execs.ts";
import { within } from "../lib/deadline.ts";
import { type Digest, digestOf } from "../lib/digest.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import { whileAwaited } from "../lifecycle/suspend.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { ProcessEntry } from "../live/process-entry.ts";
import { entryOf, isUnrecordedRun, named, runIdOf } from "../live/run-ids.ts";
import type { ProcessApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import type { ProcessRecord } from "../ports/records.ts";
import { FoundRuns } from "./found-runs.ts";
import { ProcessReconcile } from "./process-reconcile.ts";
import { isEnding, ProcessRecords } from "./process-records.ts";
import { processSpecOf } from "./process-spec.ts";
import { ProcessStart } from "./process-start.ts";

interface ProcessParts {
  events: EngineEvents;
  ledger: ExecLedger;
  gate: SandboxGate;
  execs: Execs;
  finder: Finder;
}

/** How long a call waits, and the signal of its caller. */
interface WaitOptions {
  waitMs?: number | undefined;
  signal: AbortSignal;
}

/**
 * How much longer than the readiness deadline a caller waits by default: for the start itself, and for the check that
 * detects the missed deadline.
 */
const READY_SLACK_MS = 5_000;
/**
 * Maximum number of attempts to replace an ended process of the same name. An attempt fails if another caller restarts
 * that process at the same time.
 */
const START_TRIES = 3;

/**
 * Named processes. A run is an exec like any other. While the keeper has its memory, the keeper decides whether another
 * run follows, so that a process is restarted even without a server. The server learns the result from the keeper's
 * list, which is authoritative; a report of the keeper only makes the server read the list sooner. If the keeper's
 * memory is lost, the server starts the next run.
 */
export class Processes implements ProcessApi {
  readonly #context: EngineContext;
  readonly #parts: ProcessParts;
  readonly #records: ProcessRecords;
  readonly #starts: ProcessStart;
  readonly #reconcile: ProcessReconcile;
  /** Runs the starts of one process name in one sandbox one after the other. */
  readonly #startsByName: KeyedSerialQueue<string>;

  constructor(context: EngineContext, parts: ProcessParts) {
    const { ledger, gate, events } = parts;
    this.#context = context;
    this.#startsByName = new KeyedSerialQueue({ limit: context.numbers.changesWaiting });
    this.#parts = parts;
    const records = new ProcessRecords(context, ledger);
    const runs = new FoundRuns(context, ledger, records);
    const starts = new ProcessStart(context, ledger, gate);
    this.#records = records;
    this.#starts = starts;
    this.#reconcile = new ProcessReconcile(context, { ledger, records, runs, starts });
    const { execsListed, execClosed, keeperEndedExec, keeperStartedExec, linkUsable, inService } = events;
    execsListed.subscribe((...listing) => runs.recordListed(...listing));
    execClosed.subscribe((exec) => this.#onRunClosed(exec));
    for (const signal of [keeperStartedExec, linkUsable, inService])
      signal.subscribe((live) => this.reconcile(live));
    keeperEndedExec.subscribe((live, exec) => {
      if (isUnrecordedRun(live, exec.id)) this.reconcile(live);
    });
  }

  /** Loads the processes that an earlier server stored. */
  async load(): Promise<void> {
    const { store } = this.#context;
    for (const record of await store.processes()) {
      const live = this.#parts.finder.live(record.sandboxId);
      if (live === undefined) continue;
      const entry = this.adopt(live, record);
      if (record.end === null) entry.setLastExec(await store.exec(runIdOf(record)).catch(() => null));
    }
  }

  /** Adds a stored process to its live sandbox. */
  adopt(live: LiveSandbox, record: ProcessRecord): ProcessEntry {
    const entry = new ProcessEntry(live, record);
    live.addProcess(entry);
    return entry;
  }

  /** Asks the keeper, in the background, for the state of the sandbox's processes, and acts on it. */
  reconcile(live: LiveSandbox): void {
    this.#reconcile.reconcile(live);
  }

  #onRunClosed({ live, record }: OpenExec): void {
    const entry = entryOf(live, record.id);
    if (entry === undefined) return;
    if (runIdOf(entry.record) === record.id) entry.setLastExec(record);
    this.reconcile(live);
  }

  async start(ref: string, input: StartProcess, options: WaitOptions) {
    const live = await this.#parts.finder.find(ref);
    const spec = processSpecOf(input, live);
    const digest = digestOf(spec);
    const wanted = { name: input.name, spec, digest: digest.text };
    const { entry, followed } = await this.#startsByName.run(`${live.id}/${input.name}`, async () => {
      for (let tries = 1; ; tries += 1) {
        const there = named(live, input.name);
        if (there?.record.end === null) return { entry: followable(there, digest), followed: true };
        const made = await this.#starts.create(live, wanted, options.signal);
        if (made !== null) {
          this.reconcile(live);
          return { entry: made, followed: false };
        }
        if (tries === START_TRIES) throw conflict(live, input.name);
      }
    });
    return { process: await this.#settled(entry, options), followed };
  }

  async list(ref: string): Promise<ProcessList> {
    const live = await this.#parts.finder.find(ref);
    const items = await Promise.all([...live.processes.values()].map((entry) => this.#records.view(entry)));
    return { items, nextCursor: null };
  }

  async get(ref: string, which: string): Promise<Process> {
    return this.#records.view(await this.#find(ref, which));
  }

  async wait(ref: string, which: string, options: WaitOptions): Promise<Process> {
    return this.#settled(await this.#find(ref, which), options);
  }

  async runs(ref: string, which: string, page: { cursor?: string | undefined; limit: number }) {
    const { record } = await this.#find(ref, which);
    return this.#parts.execs.listOf(record.sandboxId, record.id, page);
  }

  async stop(ref: string, which: string, signal: AbortSignal): Promise<Process> {
    const { clock, numbers } = this.#context;
    const entry = await this.#find(ref, which);
    const { live } = entry;
    if (entry.record.end === null) {
      // In a failed sandbox no process runs, and a stop only prevents a later start of the process. So the call need
      // not pass the gate.
      if (live.record.phase.name !== "failed") await this.#parts.gate.pass(live, signal);
      await this.#request(entry, "stop");
      const limit = { ms: numbers.keeperCallMs, what: "the end of the process", signal };
      const isOver = () => entry.record.end !== null || isEnding(live);
      await within(clock, limit, (inner) => live.until(isOver, inner)).catch(() => signal.throwIfAborted());
    }
    return this.#records.view(entry);
  }

  async restart(ref: string, which: string, options: WaitOptions): Promise<Process> {
    const entry = await this.#find(ref, which);
    await this.#parts.gate.pass(entry.live, options.signal);
    const after = await this.#request(entry, "restart");
    const { clock, numbers } = this.#context;
    const limit = { ms: numbers.execStartDeadlineMs, what: "the next run", signal: options.signal };
    const isBegun = () => entry.record.run > after || entry.record.end !== null || isEnding(entry.live);
    await within(clock, limit, (inner) => entry.live.until(isBegun, inner)).catch(() =>
      options.signal.throwIfAborted(),
    );
    return this.#settled(entry, options);
  }

  /**
   * Stores the request; it is carried out even if the caller disconnects. Returns the number of the last run before the
   * request.
   */
  async #request(entry: ProcessEntry, what: "stop" | "restart"): Promise<number> {
    const after = await entry.turns.run(async () => {
      const { live, record } = entry;
      if (live.processes.get(record.id) !== entry) throw notFound(live, record.name);
      if (what === "stop" && (record.end !== null || record.order?.do === "stop")) return record.run;
      const order = what === "stop" ? { do: what } : { do: what, after: record.run };
      await this.#records.store(entry, { order, end: null }, []).catch((cause: unknown) => {
        const message = "The request could not be recorded, so nothing was done.";
        throw new HoldfastError("internal", { sandboxId: live.id, message, cause });
      });
      return record.run;
    });
    this.reconcile(entry.live);
    return after;
  }

  async #find(ref: string, which: string): Promise<ProcessEntry> {
    const live = await this.#parts.finder.find(ref);
    const entry = isProcessId(which) ? live.processes.get(which) : named(live, which);
    if (entry !== undefined) return entry;
    throw notFound(live, which);
  }

  /**
   * Waits until the process is ready, has missed its readiness deadline, or is over, and then returns it. The wait is
   * limited, to `waitMs` if that is set.
   */
  async #settled(entry: ProcessEntry, { waitMs, signal }: WaitOptions): Promise<Process> {
    const { clock, numbers } = this.#context;
    const { readyWhen } = entry.record.spec;
    const ms = Math.min(waitMs ?? (readyWhen?.withinMs ?? 0) + READY_SLACK_MS, numbers.execWaitMaxMs);
    const isSettled = () => {
      const { status } = this.#records.judge(entry);
      const isStill = isEnding(entry.live) || entry.live.record.phase.name === "failed";
      return status === "ready" || status === "unready" || isProcessOver(status) || isStill;
    };
    const limit = { ms, what: "becoming ready", signal };
    if (ms > 0)
      await whileAwaited(entry.live, runIdOf(entry.record), () =>
        within(clock, limit, (inner) => entry.live.until(isSettled, inner)),
      ).catch(() => signal.throwIfAborted());
    return this.#records.view(entry);
  }
}

function followable(there: ProcessEntry, digest: Digest): ProcessEntry {
  if (digest.matches(there.record.digest)) return there;
  throw conflict(there.live, there.record.name);
}

function conflict({ id: sandboxId }: LiveSandbox, name: string): HoldfastError {
  const message = `The sandbox has a process ${name} that was started with other settings and has not ended.`;
  return new HoldfastError("process_conflict", { sandboxId, message });
}

function notFound({ id: sandboxId }: LiveSandbox, which: string): HoldfastError {
  const message = `The sandbox has no process ${JSON.stringify(which.slice(0, 80))}.`;
  return new HoldfastError("process_not_found", { sandboxId, message });
}

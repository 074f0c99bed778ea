import { HoldfastError } from "@holdfast/contract";
import type { ExecLedger, StartExtras } from "../execs/exec-ledger.ts";
import { checkExecLimit } from "../execs/execs.ts";
import { soonest } from "../lib/deadline.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { ProcessEntry } from "../live/process-entry.ts";
import { newExec } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { ProcessRecord, ProcessSpec } from "../ports/records.ts";
import { eventOf } from "./process-events.ts";
import { execOf } from "./process-records.ts";

interface WantedProcess {
  name: string;
  spec: ProcessSpec;
  digest: string;
}

/** Creates processes and starts their runs. */
export class ProcessStart {
  readonly #context: EngineContext;
  readonly #ledger: ExecLedger;
  readonly #gate: SandboxGate;
  /**
   * Runs the starts in one sandbox one after the other. If several callers waited for the same wake, concurrent starts
   * would all see the same number of processes and together exceed the limit.
   */
  readonly #starts: KeyedSerialQueue<LiveSandbox>;

  constructor(context: EngineContext, ledger: ExecLedger, gate: SandboxGate) {
    this.#context = context;
    this.#starts = new KeyedSerialQueue({ limit: context.numbers.changesWaiting });
    this.#ledger = ledger;
    this.#gate = gate;
  }

  /**
   * Stores the process and its first run in one commit, and only then sends the run to the keeper. Returns null if a
   * process that was to be replaced was restarted in the meantime.
   */
  async create(live: LiveSandbox, wanted: WantedProcess, signal: AbortSignal): Promise<ProcessEntry | null> {
    const { clock, numbers } = this.#context;
    const link = await this.#gate.pass(live, signal);
    signal.throwIfAborted();
    const made = await this.#starts.run(live, () => this.#make(live, wanted, link));
    if (made === null) return null;
    const { entry, open } = made;
    await soonest(clock, numbers.execStartDeadlineMs, open.begun);
    if (open.record.status === "refused" && open.record.cause?.code === "unknown_type")
      throw new HoldfastError("process_unsupported", { sandboxId: live.id, execId: open.record.id });
    return entry;
  }

  async #make(
    live: LiveSandbox,
    wanted: WantedProcess,
    link: Link,
  ): Promise<{ entry: ProcessEntry; open: OpenExec } | null> {
    const { clock, ids } = this.#context;
    checkExecLimit(live);
    const displaced = this.#displaced(live, wanted.name);
    const record: ProcessRecord = {
      id: ids.process(),
      sandboxId: live.id,
      ...wanted,
      run: 1,
      generation: live.record.generation,
      restarts: 0,
      order: null,
      seen: null,
      end: null,
      createdAt: clock.now(),
      revision: 0,
    };
    const message = `Process ${record.name} was started.`;
    const also: StartExtras = {
      changes: [
        ...displaced.map(({ record: { id } }) => ({ kind: "process.remove", id }) as const),
        { kind: "process.insert", record },
      ],
      events: [eventOf(record, "process.started", clock.now(), message)],
    };
    const entry = new ProcessEntry(live, record);
    return inTurnsOf([...displaced, entry], async () => {
      // If a caller restarted one of the displaced processes before this work began, that process must not be removed.
      if (displaced.some((old) => old.record.end === null)) return null;
      live.addProcess(entry);
      try {
        const open = await this.startRun(live, record, link, also);
        for (const { record: old } of displaced) live.removeProcess(old.id);
        return { entry, open };
      } catch (error) {
        live.removeProcess(record.id);
        throw error;
      }
    });
  }

  /**
   * Stores the run and sends it without waiting for the keeper, because other callers of the same process wait for this
   * call.
   */
  startRun(
    live: LiveSandbox,
    record: ProcessRecord,
    link: Link,
    also: StartExtras,
    isUncounted = false,
  ): Promise<OpenExec> {
    const exec = newExec(live, execOf(record, this.#context.clock.now()));
    const options = { idempotency: undefined, link, awaited: false, isUnwaited: true };
    return this.#ledger.start(live, exec, { ...options, also, isUncounted });
  }

  /**
   * Returns the processes that are removed to make room for a new one: the previous process of the same name and, at
   * the limit, the process that ended first.
   */
  #displaced(live: LiveSandbox, name: string): ProcessEntry[] {
    const { processesPerSandbox } = this.#context.numbers;
    const entries = [...live.processes.values()];
    const displaced = entries.filter(({ record }) => record.name === name);
    if (entries.length - displaced.length < processesPerSandbox) return displaced;
    const endedAt = ({ record }: ProcessEntry) => record.end?.at ?? Number.POSITIVE_INFINITY;
    const [oldest] = entries
      .filter(({ record }) => record.end !== null)
      .sort((a, b) => endedAt(a) - endedAt(b));
    if (oldest === undefined) throw new HoldfastError("too_many_processes", { sandboxId: live.id });
    return [...displaced, oldest];
  }
}

/**
 * Runs the work in the queues of several processes at once, so that no other work of these processes runs meanwhile.
 * The queues are entered in the order of the process ids, so that no two callers can deadlock.
 */
function inTurnsOf<Result>(entries: readonly ProcessEntry[], work: () => Promise<Result>): Promise<Result> {
  const sorted = [...entries].sort((one, other) => (one.record.id < other.record.id ? -1 : 1));
  return sorted.reduceRight<() => Promise<Result>>((inner, entry) => () => entry.turns.run(inner), work)();
}

import {
  causeOf,
  type ProcessUsage,
  type ResourceReport,
  type SandboxId,
  type UsageSample,
} from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { hasInstance } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { ProcessSeen, ProcessSnapshot, Usage } from "../ports/index.ts";
import { requireCapability } from "../ports/index.ts";
import { slopeOf } from "./linear-fit.ts";

/** Usage of a sandbox at one moment. Counters are cumulative: they continue across instances of the sandbox. */
export interface Sample extends Usage {
  cpuPercent: number;
}

interface Account {
  generation: number;
  /** Sum of the final counter values of earlier instances, and of earlier cgroups of the current instance. */
  before: Counters;
  /** The figures as the kernel last reported them. */
  raw: Usage;
  last: Sample;
  history: Sample[];
}

type Counters = Pick<
  Usage,
  "cpuMs" | "throttledMs" | "pidsRefused" | "readBytes" | "writtenBytes" | "ioOperations"
>;

const COUNTERS = [
  "cpuMs",
  "throttledMs",
  "pidsRefused",
  "readBytes",
  "writtenBytes",
  "ioOperations",
] as const;
const NONE: Counters = {
  cpuMs: 0,
  throttledMs: 0,
  pidsRefused: 0,
  readBytes: 0,
  writtenBytes: 0,
  ioOperations: 0,
};

/** Minimum time between two samples: a rate over a shorter time is meaningless. */
const RATE_MS = 200;
const MEASURE_MS = 5_000;
const TREND_SAMPLES = 6;
/** Minimum time between two samples in the history, as a share of the interval between two observation passes. */
const KEPT_SHARE = 0.8;

/**
 * Measures the resource usage of sandboxes: it takes one sample of every instance in each observation pass and keeps a
 * short history. It reads the kernel's counters from outside, so it wakes no sandbox and also works for frozen and
 * silent ones. The history is in memory only: a new server begins a new one.
 */
export class UsageMeter {
  readonly #context: EngineContext;
  readonly #accounts = new WeakMap<LiveSandbox, Account>();

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /** Takes one sample of each of the given sandboxes. A sandbox that can't be measured gets no sample. */
  async take(allLive: readonly LiveSandbox[], signal: AbortSignal = this.#context.stopping): Promise<void> {
    const { clock, driver, log } = this.#context;
    const living = allLive.filter(({ record }) => hasInstance(record));
    const { outsideView } = driver.capabilities;
    if (living.length === 0 || outsideView === null) return;
    const generations = new Map(living.map((live) => [live, live.record.generation]));
    const limit = { ms: MEASURE_MS, what: "measuring", signal };
    const ids: SandboxId[] = living.map(({ id }) => id);
    const measured = await within(clock, limit, (inner) => outsideView.measure(ids, inner)).catch(
      (error: unknown) => {
        if (!signal.aborted) log.warn({ cause: causeOf(error) }, "failed to measure sandboxes");
        return new Map<SandboxId, Usage>();
      },
    );
    for (const [live, generation] of generations) {
      const usage = measured.get(live.id);
      if (usage !== undefined && live.record.generation === generation) this.#add(live, usage);
    }
  }

  #add(live: LiveSandbox, raw: Usage): void {
    const { generation } = live.record;
    const { numbers } = this.#context;
    const known = this.#accounts.get(live);
    const passed = known === undefined ? 0 : raw.at - known.last.at;
    if (known !== undefined && passed >= 0 && passed < RATE_MS) return;
    // The kernel's counters start at zero for a new or restored instance. A lower CPU time than before therefore shows
    // that the counters have started again.
    const isNew = known !== undefined && (known.generation !== generation || raw.cpuMs < known.raw.cpuMs);
    const before = isNew ? sum(known.before, known.raw) : (known?.before ?? NONE);
    const total = { ...raw, ...sum(before, raw) };
    const cpuPercent =
      known === undefined || passed <= 0 ? 0 : (100 * (total.cpuMs - known.last.cpuMs)) / passed;
    const last: Sample = { ...total, cpuPercent: Math.max(0, cpuPercent) };
    // A new instance gets a new history, because an earlier instance's memory usage says nothing about its growth.
    const history = known === undefined || known.generation !== generation ? [] : known.history;
    const sinceKept = Math.abs(raw.at - (history.at(-1)?.at ?? Number.NEGATIVE_INFINITY));
    // Samples that a report or a diagnosis takes between two passes must not push older samples out of the history.
    if (sinceKept >= numbers.observeEveryMs * KEPT_SHARE) history.push(last);
    history.splice(0, history.length - numbers.usageSamples);
    this.#accounts.set(live, { generation, before, raw, last, history });
  }

  /** Returns the history: one sample per observation pass, oldest first. */
  history(live: LiveSandbox): readonly Sample[] {
    return this.#accounts.get(live)?.history ?? [];
  }

  /** Returns the newest sample, even if the instance from which it was taken no longer exists. */
  last(live: LiveSandbox): Sample | null {
    return this.#accounts.get(live)?.last ?? null;
  }

  /** Returns the newest sample, or null if the sandbox has no instance. */
  latest(live: LiveSandbox): Sample | null {
    return hasInstance(live.record) ? this.last(live) : null;
  }

  async inspect(live: LiveSandbox, signal: AbortSignal): Promise<ProcessSnapshot> {
    const { clock, driver } = this.#context;
    const limit = { ms: MEASURE_MS, what: "inspecting the processes", signal };
    return within(clock, limit, (inner) => requireCapability(driver, "outsideView").inspect(live.id, inner));
  }

  async report(live: LiveSandbox, signal: AbortSignal): Promise<ResourceReport> {
    const { clock, log } = this.#context;
    let snapshot: ProcessSnapshot = { at: clock.now(), processes: [], truncated: false };
    if (hasInstance(live.record)) {
      const isFirst = this.last(live) === null;
      await this.take([live], signal);
      // A CPU rate needs two samples. If the sample just taken is the first one, a second is taken after a short wait.
      if (isFirst) {
        await clock.sleep(RATE_MS * 2, signal);
        await this.take([live], signal);
      }
      snapshot = await this.inspect(live, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        log.debug(
          { sandbox: live.id, cause: causeOf(error) },
          "failed to inspect the processes of a sandbox",
        );
        return { ...snapshot, truncated: true };
      });
    }
    return this.#describe(live, snapshot);
  }

  #describe(live: LiveSandbox, snapshot: ProcessSnapshot): ResourceReport {
    const now = this.#context.clock.now();
    const { record } = live;
    const { resources } = record.spec;
    const samples = this.history(live);
    const last = this.last(live);
    const latest = this.latest(live);
    return {
      sandboxId: live.id,
      at: iso(now),
      status: live.judge().status,
      durationMs: Math.max(0, (record.endedAt ?? now) - record.createdAt),
      lastActivityAt: iso(record.lastActivityAt),
      operations: this.operations(live),
      cpu: {
        percent: rounded(latest?.cpuPercent ?? 0),
        totalMs: Math.round(last?.cpuMs ?? 0),
        limitCpus: resources.cpus,
        throttledMs: Math.round(last?.throttledMs ?? 0),
      },
      memory: {
        bytes: latest?.memoryBytes ?? 0,
        limitBytes: resources.memoryMb * 1_048_576,
        trendBytesPerMinute: latest === null ? null : trendOf(samples),
        oomKills: live.oom.kills,
      },
      io: {
        readBytes: last?.readBytes ?? 0,
        writtenBytes: last?.writtenBytes ?? 0,
        operations: last?.ioOperations ?? 0,
      },
      disk: latest?.disk ?? null,
      processes: {
        count: latest?.processes ?? 0,
        limit: resources.pids,
        refused: last?.pidsRefused ?? 0,
        items: snapshot.processes.map(viewProcess),
        truncated: snapshot.truncated,
      },
      history: samples.map(viewSample),
    };
  }

  /**
   * Returns how many operations the sandbox has performed so far: execs, file calls and disk operations of its
   * processes.
   */
  operations(live: LiveSandbox): number {
    return live.record.execsStarted + live.fileCalls + (this.last(live)?.ioOperations ?? 0);
  }
}

const sum = (one: Counters, other: Counters): Counters =>
  Object.fromEntries(COUNTERS.map((name) => [name, one[name] + other[name]])) as unknown as Counters;

const rounded = (value: number): number => Math.round(value * 10) / 10;

function trendOf(samples: readonly Sample[]): number | null {
  if (samples.length < TREND_SAMPLES) return null;
  const points = samples.map(({ at, memoryBytes }) => ({ x: at, y: memoryBytes }));
  return Math.round(slopeOf(points) * 60_000);
}

const viewSample = ({
  at,
  cpuPercent,
  memoryBytes,
  processes,
  readBytes,
  writtenBytes,
}: Sample): UsageSample => ({
  at: iso(at),
  cpuPercent: rounded(cpuPercent),
  memoryBytes,
  processes,
  readBytes,
  writtenBytes,
});

function viewProcess({
  startTime: _start,
  faults: _faults,
  calls: _calls,
  ...process
}: ProcessSeen): ProcessUsage {
  return process;
}

import {
  causeOf,
  type ProcessUsage,
  type ResourceReport,
  type SandboxId,
  type UsageSample,
} from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { hasInstance } from "./machine.ts";
import type { Look, ProcessSeen, Usage } from "./ports.ts";
import { slopeOf } from "./trend.ts";
import type { World } from "./world.ts";

/** What an instance had used at one moment. Counters go on where those of the instance before it ended. */
export interface Sample extends Usage {
  cpuPercent: number;
}

interface Account {
  generation: number;
  /** What earlier instances, or cgroups that were begun anew, had counted by their last sample. */
  before: Counters;
  /** As the kernel last said it. */
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

/** A shorter time says nothing about a rate. */
const RATE_MS = 200;
const MEASURE_MS = 5_000;
const TREND_SAMPLES = 6;
/** Of the time between two passes. */
const KEPT_SHARE = 0.8;

/**
 * What sandboxes use: one sample of every instance in each observation pass, and a short history of them. It reads the
 * kernel's counters from outside: it wakes nobody, asks nobody inside, and is right also of what is frozen or silent.
 * Only memory: evidence ages, and a new server begins a new history.
 */
export class Meter {
  readonly #world: World;
  readonly #accounts = new WeakMap<Cell, Account>();

  constructor(world: World) {
    this.#world = world;
  }

  /** One pass over these. What can't be measured has no sample. */
  async take(cells: readonly Cell[], signal: AbortSignal = this.#world.stopping): Promise<void> {
    const { clock, driver, log } = this.#world;
    const living = cells.filter(({ record }) => hasInstance(record));
    if (living.length === 0) return;
    const generations = new Map(living.map((cell) => [cell, cell.record.generation]));
    const limit = { ms: MEASURE_MS, what: "measuring", signal };
    const ids: SandboxId[] = living.map(({ id }) => id);
    const measured = await within(clock, limit, (inner) => driver.measure(ids, inner)).catch(
      (error: unknown) => {
        if (!signal.aborted) log.warn({ cause: causeOf(error) }, "sandboxes could not be measured");
        return new Map<SandboxId, Usage>();
      },
    );
    for (const [cell, generation] of generations) {
      const usage = measured.get(cell.id);
      if (usage !== undefined && cell.record.generation === generation) this.#add(cell, usage);
    }
  }

  #add(cell: Cell, raw: Usage): void {
    const { generation } = cell.record;
    const { numbers } = this.#world;
    const known = this.#accounts.get(cell);
    const passed = known === undefined ? 0 : raw.at - known.last.at;
    if (known !== undefined && passed >= 0 && passed < RATE_MS) return;
    // A new instance, or one that was restored, is counted from nothing.
    const isNew = known !== undefined && (known.generation !== generation || raw.cpuMs < known.raw.cpuMs);
    const before = isNew ? sum(known.before, known.raw) : (known?.before ?? NONE);
    const total = { ...raw, ...sum(before, raw) };
    const cpuPercent =
      known === undefined || passed <= 0 ? 0 : (100 * (total.cpuMs - known.last.cpuMs)) / passed;
    const last: Sample = { ...total, cpuPercent: Math.max(0, cpuPercent) };
    // Who looks more often than the passes do must not push the history out.
    // What an earlier instance used says nothing of how this one grows.
    const history = known === undefined || known.generation !== generation ? [] : known.history;
    const sinceKept = Math.abs(raw.at - (history.at(-1)?.at ?? Number.NEGATIVE_INFINITY));
    if (sinceKept >= numbers.observeEveryMs * KEPT_SHARE) history.push(last);
    history.splice(0, history.length - numbers.usageSamples);
    this.#accounts.set(cell, { generation, before, raw, last, history });
  }

  /** Oldest first, of the passes. */
  history(cell: Cell): readonly Sample[] {
    return this.#accounts.get(cell)?.history ?? [];
  }

  /** The newest there is, of an instance that may be gone by now. */
  last(cell: Cell): Sample | null {
    return this.#accounts.get(cell)?.last ?? null;
  }

  /** The newest, where it is of an instance that is there. */
  latest(cell: Cell): Sample | null {
    return hasInstance(cell.record) ? this.last(cell) : null;
  }

  async inspect(cell: Cell, signal: AbortSignal): Promise<Look> {
    const { clock, driver } = this.#world;
    const limit = { ms: MEASURE_MS, what: "looking at the processes", signal };
    return within(clock, limit, (inner) => driver.inspect(cell.id, inner));
  }

  async report(cell: Cell, signal: AbortSignal): Promise<ResourceReport> {
    const { clock, log } = this.#world;
    let look: Look = { at: clock.now(), processes: [], truncated: false };
    if (hasInstance(cell.record)) {
      const isFirst = this.last(cell) === null;
      await this.take([cell], signal);
      // A first look at it has nothing to compare with.
      if (isFirst) {
        await clock.sleep(RATE_MS * 2, signal);
        await this.take([cell], signal);
      }
      look = await this.inspect(cell, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        log.debug({ sandbox: cell.id, cause: causeOf(error) }, "its processes could not be looked at");
        return { ...look, truncated: true };
      });
    }
    return this.#describe(cell, look);
  }

  #describe(cell: Cell, look: Look): ResourceReport {
    const now = this.#world.clock.now();
    const { record } = cell;
    const { resources } = record.spec;
    const samples = this.history(cell);
    const last = this.last(cell);
    const latest = this.latest(cell);
    return {
      sandboxId: cell.id,
      at: iso(now),
      status: cell.judge().status,
      durationMs: Math.max(0, (record.endedAt ?? now) - record.createdAt),
      lastActivityAt: iso(record.lastActivityAt),
      operations: this.operations(cell),
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
        oomKills: cell.oomKills,
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
        items: look.processes.map(viewProcess),
        truncated: look.truncated,
      },
      history: samples.map(viewSample),
    };
  }

  /** Execs, calls on files, and what its processes read and wrote that reached a disk. */
  operations(cell: Cell): number {
    return cell.record.execsStarted + cell.fileCalls + (this.last(cell)?.ioOperations ?? 0);
  }
}

const sum = (one: Counters, other: Counters): Counters =>
  Object.fromEntries(COUNTERS.map((name) => [name, one[name] + other[name]])) as unknown as Counters;

const iso = (at: number): string => new Date(at).toISOString();
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

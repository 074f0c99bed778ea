import { causeOf, type Diagnosis, type Recovery } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { raced } from "./clock.ts";
import type { ClockWatch } from "./clock-watch.ts";
import { diagnose, type ExecFact, type Facts } from "./diagnosis.ts";
import { hasInstance } from "./machine.ts";
import type { Meter, Sample } from "./meter.ts";
import type { OpenExec } from "./open-exec.ts";
import type { Look } from "./ports.ts";
import { DISK_FULL } from "./prover.ts";
import { compareLooks } from "./signs.ts";
import { Turnstile } from "./turnstile.ts";
import type { World } from "./world.ts";

export interface DiagnosticianParts {
  meter: Meter;
  clockWatch: ClockWatch;
  recovery(cell: Cell): Recovery | null;
  launches(): { suspended: boolean; waiting: number };
}

const SAMPLE_MS = 500;
const ENDED_LOOKED_AT = 20;
const ENDED_WINDOW_MS = 600_000;
const FLAP_WINDOW_MS = 60_000;
const BUSY_PERCENT = 80;

/**
 * Looks at a sandbox for a few seconds and gathers what a diagnosis is made of. It looks from outside only: at the
 * kernel's counters and the states of processes, at the record, the timeline and the clock. So it answers for what is
 * frozen, silent, asleep or broken as well, wakes nobody, and what can't be looked at is said, not guessed.
 */
export class Diagnostician {
  readonly #world: World;
  readonly #parts: DiagnosticianParts;
  readonly #turns: Turnstile;
  readonly #underWay = new Map<Cell, Promise<Diagnosis>>();

  constructor(world: World, parts: DiagnosticianParts) {
    this.#world = world;
    this.#parts = parts;
    this.#turns = new Turnstile(world.numbers.diagnosesAtOnce);
  }

  /** Who asks for the same one meanwhile shares it; a few are made at a time, and the rest wait for their turn. */
  diagnose(cell: Cell, options: { windowMs?: number | undefined }, signal: AbortSignal): Promise<Diagnosis> {
    const underWay = this.#underWay.get(cell);
    if (underWay !== undefined) return raced(underWay, signal);
    const { stopping } = this.#world;
    const made = this.#turns
      .pass(stopping, () => this.#made(cell, options, stopping))
      .finally(() => this.#underWay.delete(cell));
    this.#underWay.set(cell, made);
    return raced(made, signal);
  }

  async #made(
    cell: Cell,
    { windowMs }: { windowMs?: number | undefined },
    signal: AbortSignal,
  ): Promise<Diagnosis> {
    const { numbers } = this.#world;
    const asked = Math.min(windowMs ?? numbers.diagnosisWindowMs, numbers.diagnosisWindowMaxMs);
    const unseen: string[] = [];
    const watched = hasInstance(cell.record) ? await this.#watch(cell, asked, unseen, signal) : null;
    const ended = await this.#ended(cell).catch((error: unknown) => {
      unseen.push(`its ended commands: ${causeOf(error).message}`);
      return { count: 0, timedOut: 0, windowMs: ENDED_WINDOW_MS };
    });
    const { id: sandboxId, record } = cell;
    return diagnose(this.#facts(cell, watched, ended), { sandboxId, name: record.name, unseen });
  }

  /** Two looks at its processes, with figures in between. */
  async #watch(
    cell: Cell,
    windowMs: number,
    unseen: string[],
    signal: AbortSignal,
  ): Promise<{ first: Look | null; last: Look | null; samples: readonly Sample[] }> {
    const { clock } = this.#world;
    const { meter } = this.#parts;
    const look = () =>
      meter.inspect(cell, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        unseen.push(`its processes: ${causeOf(error).message}`);
        return null;
      });
    const samples = [...meter.history(cell)];
    const sample = async () => {
      await meter.take([cell], signal);
      const newest = meter.last(cell);
      if (newest !== null && newest.at > (samples.at(-1)?.at ?? 0)) samples.push(newest);
    };
    const known = samples.length;
    await sample();
    const first = await look();
    for (let left = windowMs; left > 0; left -= SAMPLE_MS) {
      await clock.sleep(Math.min(SAMPLE_MS, left), signal);
      await sample();
    }
    const last = first === null ? null : await look();
    if (samples.length === known) unseen.push("its figures: they could not be read");
    return { first, last, samples };
  }

  #facts(
    cell: Cell,
    watched: { first: Look | null; last: Look | null; samples: readonly Sample[] } | null,
    ended: Facts["ended"],
  ): Facts {
    const { clock } = this.#world;
    const { record, health } = cell;
    const now = clock.now();
    const { first = null, last = null, samples = [] } = watched ?? {};
    const newest = samples.at(-1) ?? null;
    const open = [...cell.openExecs];
    return {
      now,
      ...cell.judge(),
      recovery: this.#parts.recovery(cell),
      keptUntil: record.phase.name === "failed" ? record.phase.keptUntil : null,
      nextStopAt: "nextAttemptAt" in record.lease ? record.lease.nextAttemptAt : null,
      restartsOnLoss: record.spec.lifecycle.onMemoryLoss === "cold-start",
      since: record.transitionedAt,
      labels: record.spec.labels,
      limits: record.spec.resources,
      windowMs: first === null || last === null ? 0 : last.at - first.at,
      usage: newest,
      cpuPercent: newest?.cpuPercent ?? null,
      forksRefused: refusedIn(samples, first?.at ?? now),
      memory: samples.map(({ at, memoryBytes }) => ({ x: at, y: memoryBytes })),
      busyForMs: busyFor(samples, Math.min(1, record.spec.resources.cpus)),
      signs: first === null || last === null ? null : compareLooks(first, last),
      execs: {
        running: open.filter(({ queued }) => !queued).map(execFact),
        queued: open.filter(({ queued }) => queued).map(execFact),
      },
      ended,
      oom: {
        kills: cell.oomKills,
        lastAt: Number.isFinite(cell.oomSeenAt) ? cell.oomSeenAt : null,
      },
      linkLosses: cell.linkLosses.filter((at) => Math.abs(now - at) < FLAP_WINDOW_MS).length,
      clockJump: this.#parts.clockWatch.last,
      launches: this.#parts.launches(),
      isDiskFull: health.proof?.checks.some(({ message }) => message === DISK_FULL) ?? false,
    };
  }

  async #ended(cell: Cell): Promise<Facts["ended"]> {
    const { clock, store } = this.#world;
    const newest = await store.execs(cell.id, { limit: ENDED_LOOKED_AT });
    const since = clock.now() - ENDED_WINDOW_MS;
    const lately = newest.filter(({ endedAt }) => endedAt !== null && endedAt >= since);
    const timedOut = lately.filter(({ status }) => status === "timed_out").length;
    return { count: lately.length, timedOut, windowMs: ENDED_WINDOW_MS };
  }
}

function execFact({ record }: OpenExec): ExecFact {
  const { id, spec, startedAt, createdAt } = record;
  const endsBy = spec.timeoutMs === null ? null : (startedAt ?? createdAt) + spec.timeoutMs;
  return { id, command: spec.argv.join(" "), startedAt, createdAt, endsBy };
}

function refusedIn(samples: readonly Sample[], since: number): number {
  const before = samples.findLast(({ at }) => at <= since) ?? samples[0];
  return Math.max(0, (samples.at(-1)?.pidsRefused ?? 0) - (before?.pidsRefused ?? 0));
}

/** How long, up to now, it has had nearly all of what it may have of a core. */
function busyFor(samples: readonly Sample[], share: number): number {
  const calm = samples.findLastIndex(({ cpuPercent }) => cpuPercent < BUSY_PERCENT * share);
  const begun = samples[calm + 1];
  return begun === undefined ? 0 : (samples.at(-1)?.at ?? begun.at) - begun.at;
}

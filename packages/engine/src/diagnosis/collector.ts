import { causeOf, type Diagnosis, type Recovery } from "@holdfast/contract";
import type { Admission } from "../launch/admission.ts";
import type { Launcher } from "../launch/launcher.ts";
import { DISK_FULL } from "../launch/prover.ts";
import { raced } from "../lib/deadline.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { hasInstance } from "../model/sandbox-facts.ts";
import { filesLeft } from "../model/status.ts";
import type { EngineContext } from "../ports/context.ts";
import type { ProcessSnapshot } from "../ports/index.ts";
import type { ClockJumpWatch } from "./clock-jump-watch.ts";
import { diagnose, type ExecFact, type Facts } from "./diagnosis.ts";
import { compareSnapshots } from "./process-activity.ts";
import type { Sample, UsageMeter } from "./usage-meter.ts";

interface DiagnosisCollectorParts {
  meter: UsageMeter;
  clockWatch: ClockJumpWatch;
  healer: { recovery(live: LiveSandbox): Recovery | null };
  admission: Admission;
  launcher: Launcher;
}

const SAMPLE_MS = 500;
const ENDED_EXECS_READ = 20;
const ENDED_WINDOW_MS = 600_000;
const FLAP_WINDOW_MS = 60_000;
const BUSY_PERCENT = 80;

/**
 * Observes a sandbox for a few seconds and collects the facts of a diagnosis. It observes from outside only: the kernel's
 * counters, the states of processes, the record, the store and the clock. So it also works for a sandbox that is frozen,
 * silent, asleep or broken, and never wakes one. Facts that could not be collected are listed in `unseen`, not guessed.
 */
export class DiagnosisCollector {
  readonly #context: EngineContext;
  readonly #parts: DiagnosisCollectorParts;
  readonly #turns: Semaphore;
  readonly #inProgress = new Map<LiveSandbox, Promise<Diagnosis>>();

  constructor(context: EngineContext, parts: DiagnosisCollectorParts) {
    this.#context = context;
    this.#parts = parts;
    this.#turns = new Semaphore(context.numbers.diagnosesAtOnce, {
      limit: context.numbers.diagnosesWaiting,
    });
  }

  /**
   * Concurrent requests for the same sandbox share one diagnosis. At most `diagnosesAtOnce` run at a time; the rest
   * wait.
   */
  diagnose(
    live: LiveSandbox,
    options: { windowMs?: number | undefined },
    signal: AbortSignal,
  ): Promise<Diagnosis> {
    const inProgress = this.#inProgress.get(live);
    if (inProgress !== undefined) return raced(inProgress, signal);
    const { stopping } = this.#context;
    const diagnosis = this.#turns
      .run(stopping, () => this.#run(live, options, stopping))
      .finally(() => this.#inProgress.delete(live));
    this.#inProgress.set(live, diagnosis);
    return raced(diagnosis, signal);
  }

  async #run(
    live: LiveSandbox,
    { windowMs }: { windowMs?: number | undefined },
    signal: AbortSignal,
  ): Promise<Diagnosis> {
    const { numbers } = this.#context;
    const asked = Math.min(windowMs ?? numbers.diagnosisWindowMs, numbers.diagnosisWindowMaxMs);
    const unseen: string[] = [];
    const watched = hasInstance(live.record) ? await this.#watch(live, asked, unseen, signal) : null;
    const ended = await this.#ended(live).catch((error: unknown) => {
      unseen.push(`its ended commands: ${causeOf(error).message}`);
      return { count: 0, timedOut: 0, windowMs: ENDED_WINDOW_MS };
    });
    const { id: sandboxId, record } = live;
    return diagnose(this.#facts(live, watched, ended), { sandboxId, name: record.name, unseen });
  }

  /** Takes a process snapshot at the start and at the end of the window, and usage samples in between. */
  async #watch(
    live: LiveSandbox,
    windowMs: number,
    unseen: string[],
    signal: AbortSignal,
  ): Promise<{ first: ProcessSnapshot | null; last: ProcessSnapshot | null; samples: readonly Sample[] }> {
    const { clock } = this.#context;
    const { meter } = this.#parts;
    const inspect = () =>
      meter.inspect(live, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        unseen.push(`its processes: ${causeOf(error).message}`);
        return null;
      });
    const samples = [...meter.history(live)];
    const sample = async () => {
      await meter.take([live], signal);
      const newest = meter.last(live);
      if (newest !== null && newest.at > (samples.at(-1)?.at ?? 0)) samples.push(newest);
    };
    const known = samples.length;
    await sample();
    const first = await inspect();
    for (let left = windowMs; left > 0; left -= SAMPLE_MS) {
      await clock.sleep(Math.min(SAMPLE_MS, left), signal);
      await sample();
    }
    const last = first === null ? null : await inspect();
    if (samples.length === known) unseen.push("its usage: it could not be measured");
    return { first, last, samples };
  }

  #facts(
    live: LiveSandbox,
    watched: {
      first: ProcessSnapshot | null;
      last: ProcessSnapshot | null;
      samples: readonly Sample[];
    } | null,
    ended: Facts["ended"],
  ): Facts {
    const { clock } = this.#context;
    const { record, health } = live;
    const now = clock.now();
    const { first = null, last = null, samples = [] } = watched ?? {};
    const newest = samples.at(-1) ?? null;
    const open = [...live.openExecs];
    return {
      now,
      ...live.judge(),
      recovery: this.#parts.healer.recovery(live),
      filesLeft: filesLeft(record, health),
      keptUntil: record.phase.name === "failed" ? record.phase.keptUntil : null,
      nextStopAt: "nextAttemptAt" in record.lease ? record.lease.nextAttemptAt : null,
      restartsOnLoss: record.spec.lifecycle.onMemoryLoss === "cold-start",
      since: record.transitionedAt,
      labels: record.spec.labels,
      expectedLabels: this.#context.expectedLabels ?? [],
      limits: record.spec.resources,
      windowMs: first === null || last === null ? 0 : last.at - first.at,
      usage: newest,
      cpuPercent: newest?.cpuPercent ?? null,
      forksRefused: refusedIn(samples, first?.at ?? now),
      memory: samples.map(({ at, memoryBytes }) => ({ x: at, y: memoryBytes })),
      busyForMs: busyFor(samples, Math.min(1, record.spec.resources.cpus)),
      activity: first === null || last === null ? null : compareSnapshots(first, last),
      execs: {
        running: open.filter(({ isQueued }) => !isQueued).map(execFact),
        queued: open.filter(({ isQueued }) => isQueued).map(execFact),
      },
      ended,
      oom: {
        kills: live.oom.kills,
        lastAt: Number.isFinite(live.oom.seenAt) ? live.oom.seenAt : null,
      },
      linkLosses: live.linkLosses.filter((at) => Math.abs(now - at) < FLAP_WINDOW_MS).length,
      clockJump: this.#parts.clockWatch.last,
      launches: {
        suspended: this.#parts.admission.launches.name !== "closed",
        waiting: this.#parts.launcher.waiting,
      },
      isDiskFull: health.proof?.checks.some(({ message }) => message === DISK_FULL) ?? false,
    };
  }

  async #ended(live: LiveSandbox): Promise<Facts["ended"]> {
    const { clock, store } = this.#context;
    const newest = await store.execs(live.id, { limit: ENDED_EXECS_READ });
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

/**
 * Returns for how long, up to now, the sandbox has used nearly as much CPU as one busy loop can use. `share` is the CPU
 * that a busy loop can use, as a share of one core: 1, or less if the sandbox's CPU limit is less than one core.
 */
function busyFor(samples: readonly Sample[], share: number): number {
  const calm = samples.findLastIndex(({ cpuPercent }) => cpuPercent < BUSY_PERCENT * share);
  const begun = samples[calm + 1];
  return begun === undefined ? 0 : (samples.at(-1)?.at ?? begun.at) - begun.at;
}

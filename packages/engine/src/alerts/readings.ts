import {
  ALERT_KINDS,
  type AlertKind,
  causeOf,
  type SandboxId,
  type Status,
  type SweepLayer,
} from "@holdfast/contract";
import type { Audit } from "../cleanup/audit.ts";
import type { Orphans } from "../cleanup/orphans.ts";
import type { Sweeps } from "../cleanup/sweeps.ts";
import type { Observer } from "../healing/observer.ts";
import { type Admission, takesPlace } from "../launch/admission.ts";
import { within } from "../lib/deadline.ts";
import { counted, inWords, iso, listNames } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { filesLeft, type Judgement } from "../model/status.ts";
import type { Reading, Readings } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Capacity } from "../ports/index.ts";
import type { AlertRecord } from "../ports/records.ts";
import { StateAges } from "./state-ages.ts";
import type { TimeoutWindow } from "./timeout-window.ts";

export interface ReadingParts {
  registry: SandboxRegistry;
  sweeps: Pick<Sweeps, "health" | "failing">;
  audit: Pick<Audit, "last">;
  admission: Pick<Admission, "measure" | "launches">;
  orphans: Pick<Orphans, "count">;
  observer: Pick<Observer, "lastPassAt">;
  timeouts: TimeoutWindow;
  /** Number of deliveries that were given up. */
  deadDeliveries(): Promise<number>;
}

/** Statuses of active sandboxes: those that run, and those that are moving to or from running. */
const ACTIVE = new Set<Status>(["ready", "degraded", "paused", "waking", "suspending"]);
const AWAKE = new Set<Status>(["ready", "degraded"]);
/** Statuses that a sandbox should leave by itself soon. A sandbox that keeps one for too long is reported as stuck. */
const TRANSIENT = new Set<Status>(["degraded", "stopping", "creating", "suspending", "waking"]);

/** A sandbox with its status in this round. */
interface Seen extends Judgement {
  live: LiveSandbox;
}

interface Round {
  now: number;
  elapsedMs: number;
  seen: readonly Seen[];
  /** Null if the host could not be measured. */
  capacity: Capacity | null;
}

type Reader = (round: Round) => readonly Reading[] | Promise<readonly Reading[]>;

/**
 * Takes the readings of all alert kinds every few seconds, mostly from state that the engine has in memory. Each kind is read
 * independently: a kind that can't be read is logged, is unknown in this round, and does not affect the others.
 */
export class AlertReadings {
  readonly #context: EngineContext;
  readonly #parts: ReadingParts;
  readonly #late = { sweeps: new StateAges(), audit: new StateAges(), observation: new StateAges() };
  readonly #transient = new StateAges();
  readonly #awake = new StateAges();
  /**
   * How long each sandbox had been stuck when an earlier server stored the alert for it. Contains only sandboxes with
   * such an alert.
   */
  #resumed: ReadonlyMap<SandboxId, number> = new Map();

  constructor(context: EngineContext, parts: ReadingParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /**
   * Restores how long sandboxes have been stuck, from the alerts that were firing when the last server ended, so that
   * the same alerts do not fire again.
   */
  resume(firing: readonly AlertRecord[]): void {
    const stuck = firing.filter(({ kind }) => kind === "stuck");
    this.#resumed = new Map(
      stuck.flatMap(({ sandboxId, value }) => (sandboxId === null ? [] : [[sandboxId, value] as const])),
    );
  }

  async take(elapsedMs: number): Promise<Readings> {
    const { clock, log } = this.#context;
    const capacity = await this.#parts.admission.measure().catch((error: unknown) => {
      log.warn({ cause: causeOf(error) }, "failed to measure the host");
      return null;
    });
    const seen = [...this.#parts.registry.allLive()].map((live) => ({ live, ...live.judge() }));
    const round = { now: clock.now(), elapsedMs, seen, capacity };
    const read = ALERT_KINDS.map(async (kind) => [kind, await this.#read(kind, round)] as const);
    return Object.fromEntries(await Promise.all(read));
  }

  async #read(kind: AlertKind, round: Round): Promise<readonly Reading[] | null> {
    const { clock, numbers, stopping, log } = this.#context;
    const limit = { ms: numbers.measureMs, what: "taking a reading", signal: stopping };
    try {
      return await within(clock, limit, async () => this.#readers[kind](round));
    } catch (error) {
      if (!stopping.aborted) log.warn({ alertKind: kind, cause: causeOf(error) }, "failed to take a reading");
      return null;
    }
  }

  readonly #readers: Readonly<Record<AlertKind, Reader>> = {
    timeout_rate: ({ now }) => this.#timeoutRate(now),
    repeated_timeouts: (round) => this.#repeatedTimeouts(round),
    too_many_active: ({ seen }) => [one("too_many_active", countActive(seen), activeMessage(seen))],
    active_escalation: ({ seen }) => [one("active_escalation", countActive(seen), activeMessage(seen))],
    running_long: (round) => this.#runningLong(round),
    stuck: (round) => this.#stuck(round),
    leak: ({ seen }) => this.#leak(seen),
    cleanup_not_running: ({ elapsedMs }) => this.#cleanupNotRunning(elapsedMs),
    cleanup_failing: () => this.#parts.sweeps.failing().map(failingLayer),
    audit_overdue: ({ elapsedMs }) => {
      const mark = String(this.#parts.audit.last?.at);
      const ms = ageOf(this.#late.audit, mark, elapsedMs);
      return [one("audit_overdue", ms, `The last audit was ${inWords(ms)} ago.`)];
    },
    audit_incomplete: () => this.#auditIncomplete(),
    observation_overdue: ({ elapsedMs }) => {
      const mark = String(this.#parts.observer.lastPassAt);
      const ms = ageOf(this.#late.observation, mark, elapsedMs);
      return [one("observation_overdue", ms, `Instances were last observed ${inWords(ms)} ago.`)];
    },
    sandbox_failed: ({ seen }) => seen.flatMap(failedOne),
    lease_exhausted: ({ seen }) => seen.flatMap(exhausted),
    lease_quarantined: async ({ seen }) => [...seen.flatMap(quarantined), ...(await this.#unreadable())],
    capacity: (round) => this.#capacity(round),
    capacity_unmeasured: ({ capacity }) =>
      capacity === null
        ? [
            one(
              "capacity_unmeasured",
              1,
              "Free disk and memory can't be measured, so no sandbox is launched.",
            ),
          ]
        : [],
    launches_suspended: () => this.#launchesSuspended(),
    delivery_failing: async () => {
      // Failed deliveries are not counted if no webhook is configured.
      const dead = this.#context.notifier === null ? 0 : await this.#parts.deadDeliveries();
      return [
        one("delivery_failing", dead, `${counted(dead, "message")} to the webhook could not be delivered.`),
      ];
    },
  };

  /** Returns no reading if fewer than `alertMinExecs` execs ended, because a rate of so few is meaningless. */
  #timeoutRate(now: number): Reading[] {
    const { alertMinExecs, alertWindowMs } = this.#context.numbers;
    const { ended, timedOut } = this.#parts.timeouts.read(now);
    if (ended === 0 || ended < alertMinExecs) return [];
    const percent = rounded((100 * timedOut) / ended);
    const message = `${percent} % of the ${ended} execs that ended in the last ${inWords(alertWindowMs)} timed out.`;
    return [one("timeout_rate", percent, message)];
  }

  #repeatedTimeouts({ now, seen }: Round): Reading[] {
    const { alertWindowMs } = this.#context.numbers;
    const { of } = this.#parts.timeouts.read(now);
    return seen.flatMap(({ live }) => {
      const count = of.get(live.id);
      if (count === undefined) return [];
      const message = `${counted(count, "exec")} of ${live.record.name} timed out in the last ${inWords(alertWindowMs)}.`;
      return [about("repeated_timeouts", live.id, count, message)];
    });
  }

  #runningLong({ now, seen, elapsedMs }: Round): Reading[] {
    const { alertRunningMs } = this.#context.numbers;
    if (alertRunningMs === 0) return [one("running_long", 0, "This alert is switched off.")];
    const awake = seen.filter(({ status }) => AWAKE.has(status));
    const ages = this.#awake.advance(
      awake.map(({ live: { id, record } }) => ({
        key: id,
        mark: `${record.generation} ${record.transitionedAt}`,
        fromMs: Math.max(0, now - record.transitionedAt),
      })),
      elapsedMs,
    );
    const long = awake.filter(({ live }) => (ages.get(live.id) ?? 0) > alertRunningMs);
    const names = long.map(({ live }) => live.record.name);
    const message = `${counted(long.length, "sandbox")} awake for more than ${inWords(alertRunningMs)}${listed(names)}.`;
    return [one("running_long", long.length, message)];
  }

  #stuck({ seen, elapsedMs }: Round): Reading[] {
    const transient = seen.filter(({ status }) => TRANSIENT.has(status));
    // All transient statuses are treated as one state: a sandbox that goes from degraded to restarting has not served
    // in between.
    const present = transient.map(({ live: { id } }) => ({
      key: id,
      mark: "transient",
      fromMs: this.#resumed.get(id) ?? 0,
    }));
    const ages = this.#transient.advance(present, elapsedMs);
    this.#resumed = new Map();
    return transient.map(({ live, status, cause }) => {
      const ms = ages.get(live.id) ?? 0;
      const why = cause === null ? "" : `: ${cause.message}`;
      return about("stuck", live.id, ms, `${live.record.name} has been ${status} for ${inWords(ms)}${why}`);
    });
  }

  /**
   * An instance that the last audit found lingering is counted only while its sandbox has a lease. The lease ends when
   * the reaper has stopped the instance.
   */
  #leak(seen: readonly Seen[]): Reading[] {
    const findings = this.#parts.audit.last?.findings ?? [];
    const leased = new Set<string>(
      seen.filter(({ live }) => live.record.lease.state !== "none").map(({ live }) => live.id),
    );
    const lingering = findings.filter(
      ({ kind, sandboxId = "" }) => kind === "lingering" && leased.has(sandboxId),
    );
    const drives = findings.filter(({ kind, driveId }) => kind === "orphan" && driveId !== undefined);
    const count = this.#parts.orphans.count + lingering.length + drives.length;
    const message = `Orphaned resources of ${counted(count, "sandbox or drive", "sandboxes or drives")} found; run 'holdfast audit'.`;
    return [one("leak", count, message)];
  }

  #cleanupNotRunning(elapsedMs: number): Reading[] {
    const layers = this.#parts.sweeps.health();
    const present = layers.map(({ layer, lastAt }) => ({ key: layer, mark: String(lastAt) }));
    const ages = this.#late.sweeps.advance(present, elapsedMs);
    return layers.map(({ layer, everyMs }) => {
      const ms = ages.get(layer) ?? 0;
      const message = `The cleaning layer ${layer} last ran ${inWords(ms)} ago; it is due every ${inWords(everyMs)}.`;
      return which("cleanup_not_running", layer, ms, message);
    });
  }

  #auditIncomplete(): Reading[] {
    const last = this.#parts.audit.last;
    if (last === null) return [];
    const message = "The last audit was incomplete and removed nothing.";
    return last.complete ? [] : [one("audit_incomplete", 1, message)];
  }

  /** Reads all records, so it runs only if the last audit found an unreadable one. */
  async #unreadable(): Promise<Reading[]> {
    const findings = this.#parts.audit.last?.findings ?? [];
    if (!findings.some(({ kind, driveId }) => kind === "unreadable" && driveId === undefined)) return [];
    const ids = await this.#context.store.unreadable();
    return ids.map((id) =>
      about("lease_quarantined", id, 1, `The record of ${id} can't be read. Delete the sandbox by its id.`),
    );
  }

  #capacity({ capacity, seen }: Round): Reading[] {
    const { maxSandboxes } = this.#context.numbers;
    const places = seen.filter(({ live }) => takesPlace(live.record)).length;
    const used = (total: number | undefined, free: number | undefined) =>
      total === undefined || free === undefined ? null : share(total - free, total);
    const { diskTotalBytes, diskFreeBytes, memoryTotalBytes, memoryFreeBytes } = capacity ?? {};
    return [
      inUse("disk", "the disk", used(diskTotalBytes, diskFreeBytes)),
      inUse("memory", "the host's memory", used(memoryTotalBytes, memoryFreeBytes)),
      inUse("sandboxes", `the ${maxSandboxes} places for sandboxes`, share(places, maxSandboxes)),
    ];
  }

  #launchesSuspended(): Reading[] {
    const state = this.#parts.admission.launches;
    if (state.name === "closed") return [];
    const message = `Launches are suspended after ${counted(state.failures, "failure")} in a row: ${state.cause.message}`;
    return [one("launches_suspended", 1, message)];
  }
}

/** Maximum length of a message: quoted host errors can have any length. */
const MESSAGE_MAX = 1_000;

const one = (kind: AlertKind, value: number, message: string): Reading => ({
  kind,
  subject: null,
  sandboxId: null,
  value,
  message: message.slice(0, MESSAGE_MAX),
});

const about = (kind: AlertKind, sandboxId: SandboxId, value: number, message: string): Reading => ({
  ...one(kind, value, message),
  subject: sandboxId,
  sandboxId,
});

const which = (kind: AlertKind, subject: string, value: number | null, message: string): Reading => ({
  ...one(kind, 0, message),
  subject,
  value,
});

const inUse = (subject: string, what: string, percent: number | null): Reading =>
  which(
    "capacity",
    subject,
    percent,
    percent === null ? `The usage of ${what} is not known.` : `${percent} % of ${what} is in use.`,
  );

const countActive = (seen: readonly Seen[]): number => seen.filter(({ status }) => ACTIVE.has(status)).length;

const activeMessage = (seen: readonly Seen[]): string => `${counted(countActive(seen), "sandbox")} active.`;

/**
 * Returns a reading if the sandbox has failed and still holds its name, which shows that it had served before. A
 * sandbox that failed during its creation gets no reading, because its creator got the error.
 */
function failedOne({ live, cause }: Seen): Reading[] {
  const { id, name, nameHeld, phase } = live.record;
  if (phase.name !== "failed" || !nameHeld) return [];
  const kept = iso(phase.keptUntil);
  const { are } = filesLeft(live.record, live.health);
  const what = are === "kept" ? "Its files are" : are === "unknown" ? "Its record is" : "The rest of it is";
  const message = `${name} failed: ${cause?.message ?? "cause unknown."} ${what} kept until ${kept}.`;
  return [about("sandbox_failed", id, 1, message)];
}

function exhausted({ live }: Seen): Reading[] {
  const { id, name, lease } = live.record;
  if (lease.state !== "exhausted") return [];
  const message = `All ${lease.attempts} attempts to stop ${name} failed: ${lease.lastError ?? "cause unknown"}. Attempts continue at longer intervals.`;
  return [about("lease_exhausted", id, 1, message)];
}

function quarantined({ live }: Seen): Reading[] {
  const { id, name, lease } = live.record;
  if (lease.state !== "quarantined") return [];
  return [
    about(
      "lease_quarantined",
      id,
      1,
      `The lease of ${name} can't be read. The sandbox is left alone until it is deleted.`,
    ),
  ];
}

const failingLayer = ({ layer, rounds, why }: ReturnType<Sweeps["failing"]>[number]): Reading =>
  which(
    "cleanup_failing",
    layer satisfies SweepLayer,
    rounds,
    `The cleaning layer ${layer} failed ${counted(rounds, "time")} in a row: ${why ?? "cause unknown"}`,
  );

const ageOf = (ages: StateAges, mark: string, elapsedMs: number): number =>
  ages.advance([{ key: "", mark }], elapsedMs).get("") ?? 0;

const share = (part: number, whole: number): number => (whole > 0 ? rounded((100 * part) / whole) : 100);
const rounded = (value: number): number => Math.round(value * 10) / 10;

const listed = (names: readonly string[]): string => (names.length === 0 ? "" : `: ${listNames(names)}`);

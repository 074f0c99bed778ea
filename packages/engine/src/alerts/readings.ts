import {
  ALERT_KINDS,
  type AlertKind,
  causeOf,
  type SandboxId,
  type Status,
  type SweepLayer,
} from "@holdfast/contract";
import { type Admission, takesPlace } from "./admission.ts";
import { Ages } from "./ages.ts";
import type { Reading, Readings } from "./alert-rules.ts";
import type { Audit } from "./audit.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import type { Observer } from "./observer.ts";
import type { Orphans } from "./orphans.ts";
import type { Capacity } from "./ports.ts";
import type { AlertRecord } from "./records.ts";
import type { Judgement } from "./status.ts";
import type { Sweeps } from "./sweeps.ts";
import type { TimeoutWindow } from "./timeout-window.ts";
import type { World } from "./world.ts";

export interface ReadingParts {
  cells(): Iterable<Cell>;
  sweeps: Pick<Sweeps, "health" | "failing">;
  audit: Pick<Audit, "last">;
  admission: Pick<Admission, "measure" | "launches">;
  orphans: Pick<Orphans, "count">;
  observer: Pick<Observer, "lastPassAt">;
  timeouts: TimeoutWindow;
  /** Messages that were given up. */
  deadDeliveries(): Promise<number>;
}

/** Those that somebody may have to look after: whatever runs, or is on its way there or from there. */
const ACTIVE = new Set<Status>(["ready", "degraded", "paused", "waking", "suspending"]);
const AWAKE = new Set<Status>(["ready", "degraded"]);
/** Where nobody stays on purpose. */
const PASSING = new Set<Status>(["degraded", "stopping", "creating", "suspending", "waking"]);

/** A sandbox as it is in this round. */
interface Seen extends Judgement {
  cell: Cell;
}

interface Round {
  now: number;
  livedMs: number;
  seen: readonly Seen[];
  /** Null where the host could not be measured. */
  capacity: Capacity | null;
}

type Reader = (round: Round) => readonly Reading[] | Promise<readonly Reading[]>;

/**
 * The figures that alerts are about, taken together every few seconds from what the engine has in memory anyway. Each kind
 * is read by itself: what can't be read is unknown in this round, is logged, and keeps nobody else's from being read.
 */
export class AlertReadings {
  readonly #world: World;
  readonly #parts: ReadingParts;
  readonly #late = { sweeps: new Ages(), audit: new Ages(), observation: new Ages() };
  readonly #passing = new Ages();
  readonly #awake = new Ages();
  /** How long those were stuck of which an earlier server has told. */
  #resumed: ReadonlyMap<SandboxId, number> = new Map();

  constructor(world: World, parts: ReadingParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** What fired before the server was restarted goes on from where it was, and does not fire again. */
  resume(firing: readonly AlertRecord[]): void {
    const stuck = firing.filter(({ kind }) => kind === "stuck");
    this.#resumed = new Map(
      stuck.flatMap(({ sandboxId, value }) => (sandboxId === null ? [] : [[sandboxId, value] as const])),
    );
  }

  async take(livedMs: number): Promise<Readings> {
    const { clock, log } = this.#world;
    const capacity = await this.#parts.admission.measure().catch((error: unknown) => {
      log.warn({ cause: causeOf(error) }, "the host could not be measured");
      return null;
    });
    const seen = [...this.#parts.cells()].map((cell) => ({ cell, ...cell.judge() }));
    const round = { now: clock.now(), livedMs, seen, capacity };
    const read = ALERT_KINDS.map(async (kind) => [kind, await this.#read(kind, round)] as const);
    return Object.fromEntries(await Promise.all(read));
  }

  async #read(kind: AlertKind, round: Round): Promise<readonly Reading[] | null> {
    const { clock, numbers, stopping, log } = this.#world;
    const limit = { ms: numbers.measureMs, what: "reading a figure", signal: stopping };
    try {
      return await within(clock, limit, async () => this.#readers[kind](round));
    } catch (error) {
      if (!stopping.aborted)
        log.warn({ alertKind: kind, cause: causeOf(error) }, "a figure could not be read");
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
    cleanup_not_running: ({ livedMs }) => this.#cleanupNotRunning(livedMs),
    cleanup_failing: () => this.#parts.sweeps.failing().map(failingLayer),
    audit_overdue: ({ livedMs }) => {
      const mark = String(this.#parts.audit.last?.at);
      const ms = ageOf(this.#late.audit, mark, livedMs);
      return [one("audit_overdue", ms, `The last audit was made ${inWords(ms)} ago.`)];
    },
    audit_incomplete: () => this.#auditIncomplete(),
    observation_overdue: ({ livedMs }) => {
      const mark = String(this.#parts.observer.lastPassAt);
      const ms = ageOf(this.#late.observation, mark, livedMs);
      return [one("observation_overdue", ms, `Instances were last observed ${inWords(ms)} ago.`)];
    },
    sandbox_failed: ({ seen }) => seen.flatMap(failedOne),
    lease_exhausted: ({ seen }) => seen.flatMap(exhausted),
    lease_quarantined: async ({ seen }) => [...seen.flatMap(quarantined), ...(await this.#unreadable())],
    capacity: (round) => this.#capacity(round),
    capacity_unmeasured: ({ capacity }) =>
      capacity === null
        ? [one("capacity_unmeasured", 1, "Free disk and memory can't be measured, so nothing is launched.")]
        : [],
    launches_suspended: () => this.#launchesSuspended(),
    delivery_failing: async () => {
      // Where there is no webhook any more nobody waits for them.
      const dead = this.#world.notifier === null ? 0 : await this.#parts.deadDeliveries();
      return [
        one("delivery_failing", dead, `${counted(dead, "message")} to the webhook could not be delivered.`),
      ];
    },
  };

  /** A share of very few says nothing. */
  #timeoutRate(now: number): Reading[] {
    const { alertMinExecs, alertWindowMs } = this.#world.numbers;
    const { ended, timedOut } = this.#parts.timeouts.read(now);
    if (ended === 0 || ended < alertMinExecs) return [];
    const percent = rounded((100 * timedOut) / ended);
    const message = `${percent} % of the ${ended} execs that ended in the last ${inWords(alertWindowMs)} timed out.`;
    return [one("timeout_rate", percent, message)];
  }

  #repeatedTimeouts({ now, seen }: Round): Reading[] {
    const { alertWindowMs } = this.#world.numbers;
    const { of } = this.#parts.timeouts.read(now);
    return seen.flatMap(({ cell }) => {
      const count = of.get(cell.id);
      if (count === undefined) return [];
      const message = `${counted(count, "exec")} of ${cell.record.name} timed out in the last ${inWords(alertWindowMs)}.`;
      return [about("repeated_timeouts", cell.id, count, message)];
    });
  }

  #runningLong({ now, seen, livedMs }: Round): Reading[] {
    const { alertRunningMs } = this.#world.numbers;
    const awake = seen.filter(({ status }) => AWAKE.has(status));
    const ages = this.#awake.advance(
      awake.map(({ cell: { id, record } }) => ({
        key: id,
        mark: `${record.generation} ${record.transitionedAt}`,
        fromMs: Math.max(0, now - record.transitionedAt),
      })),
      livedMs,
    );
    const long = awake.filter(({ cell }) => (ages.get(cell.id) ?? 0) > alertRunningMs);
    const names = long.map(({ cell }) => cell.record.name);
    const message = `${counted(long.length, "sandbox")} awake for more than ${inWords(alertRunningMs)}${listed(names)}.`;
    return [one("running_long", long.length, message)];
  }

  #stuck({ seen, livedMs }: Round): Reading[] {
    const passing = seen.filter(({ status }) => PASSING.has(status));
    // One that is degraded, ended and started again has not served all the while.
    const present = passing.map(({ cell: { id } }) => ({
      key: id,
      mark: "passing",
      fromMs: this.#resumed.get(id) ?? 0,
    }));
    const ages = this.#passing.advance(present, livedMs);
    this.#resumed = new Map();
    return passing.map(({ cell, status, cause }) => {
      const ms = ages.get(cell.id) ?? 0;
      const why = cause === null ? "" : `: ${cause.message}`;
      return about("stuck", cell.id, ms, `${cell.record.name} has been ${status} for ${inWords(ms)}${why}`);
    });
  }

  /** What lingered is being ended by whoever found it, and is no leak any more once that is done. */
  #leak(seen: readonly Seen[]): Reading[] {
    const findings = this.#parts.audit.last?.findings ?? [];
    const leased = new Set<string>(
      seen.filter(({ cell }) => cell.record.lease.state !== "none").map(({ cell }) => cell.id),
    );
    const lingering = findings.filter(
      ({ kind, sandboxId = "" }) => kind === "lingering" && leased.has(sandboxId),
    );
    const drives = findings.filter(({ kind, driveId }) => kind === "orphan" && driveId !== undefined);
    const count = this.#parts.orphans.count + lingering.length + drives.length;
    const message = `Found of ${counted(count, "sandbox or drive", "sandboxes or drives")} what no record accounts for; 'holdfast audit' lists it.`;
    return [one("leak", count, message)];
  }

  #cleanupNotRunning(livedMs: number): Reading[] {
    const layers = this.#parts.sweeps.health();
    const present = layers.map(({ layer, lastAt }) => ({ key: layer, mark: String(lastAt) }));
    const ages = this.#late.sweeps.advance(present, livedMs);
    return layers.map(({ layer, everyMs }) => {
      const ms = ages.get(layer) ?? 0;
      const message = `The layer ${layer} of cleaning last ran ${inWords(ms)} ago; it is due every ${inWords(everyMs)}.`;
      return which("cleanup_not_running", layer, ms, message);
    });
  }

  #auditIncomplete(): Reading[] {
    const last = this.#parts.audit.last;
    if (last === null) return [];
    const message = "The last audit could not see everything, and removed nothing.";
    return last.complete ? [] : [one("audit_incomplete", 1, message)];
  }

  /** All records are read for it, so only where the last audit has found one. */
  async #unreadable(): Promise<Reading[]> {
    const findings = this.#parts.audit.last?.findings ?? [];
    if (!findings.some(({ kind, driveId }) => kind === "unreadable" && driveId === undefined)) return [];
    const ids = await this.#world.store.unreadable();
    return ids.map((id) =>
      about("lease_quarantined", id, 1, `The record of ${id} can't be read. Delete it by its id.`),
    );
  }

  #capacity({ capacity, seen }: Round): Reading[] {
    const { maxSandboxes } = this.#world.numbers;
    const places = seen.filter(({ cell }) => takesPlace(cell.record)).length;
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
    if (state.name === "open") return [];
    const message = `Launches are suspended after ${counted(state.failures, "failure")} in a row: ${state.cause.message}`;
    return [one("launches_suspended", 1, message)];
  }
}

/** Errors of the host, which some quote, have no bound of their own. */
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
    percent === null ? `How much of ${what} is in use is not known.` : `${percent} % of ${what} is in use.`,
  );

const countActive = (seen: readonly Seen[]): number => seen.filter(({ status }) => ACTIVE.has(status)).length;

const activeMessage = (seen: readonly Seen[]): string => `${counted(countActive(seen), "sandbox")} active.`;

/** One that served and will not by itself: its creator has heard of no other that failed. */
function failedOne({ cell, cause }: Seen): Reading[] {
  const { id, name, nameHeld, phase } = cell.record;
  if (phase.name !== "failed" || !nameHeld) return [];
  const kept = new Date(phase.keptUntil).toISOString();
  const message = `${name} failed: ${cause?.message ?? "unknown why"} Its files are kept until ${kept}.`;
  return [about("sandbox_failed", id, 1, message)];
}

function exhausted({ cell }: Seen): Reading[] {
  const { id, name, lease } = cell.record;
  if (lease.state !== "exhausted") return [];
  const message = `All ${lease.attempts} tries at stopping ${name} failed: ${lease.lastError ?? "unknown why"}. It is looked at again and again.`;
  return [about("lease_exhausted", id, 1, message)];
}

function quarantined({ cell }: Seen): Reading[] {
  const { id, name, lease } = cell.record;
  if (lease.state !== "quarantined") return [];
  return [
    about(
      "lease_quarantined",
      id,
      1,
      `The lease of ${name} can't be read. Nothing is done to it until it is deleted.`,
    ),
  ];
}

const failingLayer = ({ layer, rounds, why }: ReturnType<Sweeps["failing"]>[number]): Reading =>
  which(
    "cleanup_failing",
    layer satisfies SweepLayer,
    rounds,
    `The layer ${layer} of cleaning has failed ${counted(rounds, "time")} in a row: ${why ?? "unknown why"}`,
  );

const ageOf = (ages: Ages, mark: string, livedMs: number): number =>
  ages.advance([{ key: "", mark }], livedMs).get("") ?? 0;

const share = (part: number, whole: number): number => (whole > 0 ? rounded((100 * part) / whole) : 100);
const rounded = (value: number): number => Math.round(value * 10) / 10;

const plural = (word: string): string => (/(x|s)$/.test(word) ? `${word}es` : `${word}s`);
const counted = (count: number, word: string, many = plural(word)): string =>
  `${count} ${count === 1 ? word : many}`;

const LISTED = 5;
const listed = (names: readonly string[]): string => {
  if (names.length === 0) return "";
  const more = names.length > LISTED ? ", …" : "";
  return `: ${names.slice(0, LISTED).join(", ")}${more}`;
};

const UNITS: readonly [ms: number, word: string][] = [
  [86_400_000, "day"],
  [3_600_000, "hour"],
  [60_000, "minute"],
  [1_000, "second"],
];

/** For people: in the largest unit of which there are at least two. */
export function inWords(ms: number): string {
  const [unitMs, word] = UNITS.find(([unit]) => ms >= 2 * unit) ?? [1_000, "second"];
  return counted(Math.round(ms / unitMs), word);
}

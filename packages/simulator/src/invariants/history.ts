import type { Exec, ExecId, Sandbox, SandboxId } from "@holdfast/contract";
import type { ExecRecord, KeeperExec } from "@holdfast/engine";
import { DriveHistory } from "./drive-invariants.ts";
import { WakeHistory } from "./heal-invariants.ts";
import { SleepHistory } from "./sleep-invariants.ts";

/**
 * Identifies one exec. Its id is not enough, because an id can be used again after the record of its exec was removed.
 */
type Life = string;
const lifeOf = ({ id, createdAt }: Pick<ExecRecord, "id" | "createdAt">): Life => `${id}@${createdAt}`;

/** The part of an exec's end that must never change. */
interface ReportedEnd {
  status: Exec["status"];
  exitCode: number | null;
  signal: string | null;
}

/** The first reported end of an exec, and when it was reported. */
interface FirstReport {
  reported: ReportedEnd;
  at: number;
}

/** Facts about the past, which can't be derived from the present state. */
export class History {
  /** Commands that ran, and how they actually ended in the simulated world. */
  readonly #runs = new Map<Life, { count: number; end: KeeperExec | null }>();
  readonly #ends = new Map<Life, FirstReport>();
  /** Execs whose journal could not be read when it was needed to find the exec's end. */
  readonly unread = new Set<ExecId>();
  /** Time at which the record of a sandbox was first stored. */
  readonly insertedAt = new Map<SandboxId, number>();
  readonly madeUnderKey = new Map<string, { sandbox: Sandbox; request: string; at: number }>();
  /** Sandboxes that a fault created without a record. */
  readonly strays = new Set<SandboxId>();
  /** Ids of execs that a caller asked to end, and ids or names of sandboxes that a caller asked to delete. */
  readonly unwanted = new Set<string>();
  readonly sleep = new SleepHistory();
  readonly drives = new DriveHistory();
  readonly wakes = new WakeHistory();
  readonly deleting = new Set<SandboxId>();
  readonly keptUntil = new Map<SandboxId, number>();
  emergencyAt = Number.NEGATIVE_INFINITY;
  readonly provenOnce = new Set<SandboxId>();
  /** Whether the disk is so full that records of execs may be removed early. */
  readonly isThrifty: boolean;
  /**
   * Whether a part of Holdfast itself failed, and not only a sandbox. Only then may a caller get the error `internal`.
   */
  oursHasFailed = false;

  constructor({ isThrifty }: { isThrifty: boolean }) {
    this.isThrifty = isThrifty;
  }

  ran(record: ExecRecord): number {
    const run = this.#runs.get(lifeOf(record)) ?? { count: 0, end: null };
    run.count += 1;
    this.#runs.set(lifeOf(record), run);
    return run.count;
  }

  /**
   * Notes that an exec continues in a fork. `end` is the exec's end if the exec had ended before the checkpoint was
   * taken, but its end was not recorded yet; otherwise null.
   */
  continues(record: ExecRecord, end: KeeperExec | null): void {
    this.#runs.set(lifeOf(record), { count: 1, end });
  }

  runOf(record: ExecRecord): { count: number; end: KeeperExec | null } | undefined {
    return this.#runs.get(lifeOf(record));
  }

  reallyEnded(record: ExecRecord, end: KeeperExec): void {
    const run = this.#runs.get(lifeOf(record));
    if (run !== undefined) run.end ??= end;
  }

  /** Returns the time at which the exec's end was first reported; infinity if it was never reported. */
  reportedAt(life: Pick<ExecRecord, "id" | "createdAt">): number {
    return this.#ends.get(lifeOf(life))?.at ?? Number.POSITIVE_INFINITY;
  }

  /** Returns the end that was first reported for an exec. Every later report must be the same. */
  firstReported(life: Pick<ExecRecord, "id" | "createdAt">, reported: ReportedEnd, at: number): ReportedEnd {
    const first = this.#ends.get(lifeOf(life));
    if (first !== undefined) return first.reported;
    this.#ends.set(lifeOf(life), { reported, at });
    return reported;
  }
}

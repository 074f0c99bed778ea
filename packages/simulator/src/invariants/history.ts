import type { Exec, ExecId, Sandbox, SandboxId } from "@holdfast/contract";
import type { ExecRecord, KeeperExec } from "@holdfast/engine";
import { DriveHistory } from "./drive-invariants.ts";
import { SleepHistory } from "./sleep-invariants.ts";

/** One life of an exec id: it becomes free again when its exec is forgotten. */
type Life = string;
const lifeOf = ({ id, createdAt }: Pick<ExecRecord, "id" | "createdAt">): Life => `${id}@${createdAt}`;

/** The end of an exec, as far as it must never change. */
export interface Told {
  status: Exec["status"];
  exitCode: number | null;
  signal: string | null;
}

/** The first that was said of an end, and when. */
interface FirstTold {
  told: Told;
  at: number;
}

/** What has happened so far that the present state no longer shows. */
export class History {
  /** Commands that ran, and how they really ended. */
  readonly #runs = new Map<Life, { count: number; end: KeeperExec | null }>();
  readonly #ends = new Map<Life, FirstTold>();
  /** Execs whose journal could not be read when somebody wanted to know its end. */
  readonly unread = new Set<ExecId>();
  /** When the record of a sandbox was first stored. */
  readonly insertedAt = new Map<SandboxId, number>();
  readonly madeUnderKey = new Map<string, { sandbox: Sandbox; request: string; at: number }>();
  /** What appeared by itself, and is nobody's. */
  readonly strays = new Set<SandboxId>();
  /** Execs that a caller wanted to be ended, and sandboxes, by id or name, that one wanted to be deleted. */
  readonly unwanted = new Set<string>();
  readonly sleep = new SleepHistory();
  readonly drives = new DriveHistory();
  readonly deleting = new Set<SandboxId>();
  readonly keptUntil = new Map<SandboxId, number>();
  emergencyAt = Number.NEGATIVE_INFINITY;
  readonly provenOnce = new Set<SandboxId>();
  /** Whether so little may be kept that execs are forgotten before their time. */
  readonly isThrifty: boolean;
  /** Whether something failed that is Holdfast's own, and not a sandbox's: only then may a caller be told `internal`. */
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

  /** It goes on in a fork, for the first time or anew: how it ends is open, unless it had ended unheard of. */
  goesOn(record: ExecRecord, end: KeeperExec | null): void {
    this.#runs.set(lifeOf(record), { count: 1, end });
  }

  runOf(record: ExecRecord): { count: number; end: KeeperExec | null } | undefined {
    return this.#runs.get(lifeOf(record));
  }

  reallyEnded(record: ExecRecord, end: KeeperExec): void {
    const run = this.#runs.get(lifeOf(record));
    if (run !== undefined) run.end ??= end;
  }

  /** When its end was first told; infinitely late where it was not yet. */
  toldAt(life: Pick<ExecRecord, "id" | "createdAt">): number {
    return this.#ends.get(lifeOf(life))?.at ?? Number.POSITIVE_INFINITY;
  }

  /** The first that was said of its end; the same ever after, or somebody was lied to. */
  firstTold(life: Pick<ExecRecord, "id" | "createdAt">, told: Told, at: number): Told {
    const first = this.#ends.get(lifeOf(life));
    if (first !== undefined) return first.told;
    this.#ends.set(lifeOf(life), { told, at });
    return told;
  }
}

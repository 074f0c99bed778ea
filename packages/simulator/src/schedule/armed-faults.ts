import type { FaultName } from "./fault-table.ts";

/**
 * An operation during which a fault can strike: a driver or store method, a request on a link, an event of a keeper, a
 * write.
 */
export type Point =
  | "launch"
  | "stop"
  | "destroy"
  | "observe"
  | "recover"
  | "connect"
  | "list"
  | "capacity"
  | "freeze"
  | "thaw"
  | "measure"
  | "remount"
  | "checkpoint"
  | "restore"
  | "discard"
  | "save"
  | "unsave"
  | "fork"
  | "files"
  | "stop.asleep"
  | "mount"
  | "unmount"
  | "drive.make"
  | "drive.open"
  | "drive.observe"
  | "drive.usage"
  | "drive.destroy"
  | "drive.list"
  | "journals.read"
  | "journals.end"
  | "journals.change"
  | "link"
  | "exec.end"
  | "exec.timeout"
  | "commit"
  | "commit.asleep"
  | "commit.fork"
  | "commit.drive"
  | "effect";

/** An armed fault: it waits for the operation during which it strikes. */
export interface Armed {
  readonly kind: FaultName;
  readonly ms: number;
  readonly flag: boolean;
  /** How many more opportunities to skip before the fault strikes. */
  skip: number;
  /** The kind of request or write during which the fault strikes; null for any. */
  readonly on: string | null;
}

/** The faults of one simulation: the armed ones, and how often each kind has struck. */
export class Faults {
  readonly fired = new Map<FaultName, number>();
  readonly #armed = new Map<Point, Armed[]>();
  readonly #onFired: (kind: FaultName) => void;
  #isOver = false;

  constructor(onFired: (kind: FaultName) => void) {
    this.#onFired = onFired;
  }

  arm(point: Point, armed: Armed): void {
    if (this.#isOver) return;
    const waiting = this.#armed.get(point);
    if (waiting === undefined) this.#armed.set(point, [armed]);
    else waiting.push(armed);
  }

  /** Returns the fault that strikes at this point now, or null. Each fault strikes once. */
  take(point: Point, about: string | null = null): Armed | null {
    const waiting = this.#armed.get(point);
    if (waiting === undefined) return null;
    const at = waiting.findIndex(({ on }) => on === null || on === about);
    const fault = waiting[at];
    if (fault === undefined) return null;
    if (fault.skip > 0) {
      fault.skip -= 1;
      return null;
    }
    waiting.splice(at, 1);
    this.count(fault.kind);
    return fault;
  }

  count(kind: FaultName): void {
    this.fired.set(kind, (this.fired.get(kind) ?? 0) + 1);
    this.#onFired(kind);
  }

  /** Disarms all faults; from now on everything works. */
  stop(): void {
    this.#isOver = true;
    this.#armed.clear();
  }
}

import { type Cause, causeOf } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { hasInstance } from "./machine.ts";
import type { Observation } from "./ports.ts";
import type { World } from "./world.ts";

export interface ObserverParts {
  cells(): Iterable<Cell>;
  died(cell: Cell, generation: number, cause: Cause): Promise<void>;
  lookAtDrives(): Promise<void>;
  /** Takes figures of them, in the same pass. Never rejects. */
  measure(cells: readonly Cell[]): Promise<void>;
  /** Told how long a sleep took, as it was asked for and by the clock. */
  slept(askedMs: number, byClockMs: number): void;
}

/**
 * Looks at every running instance, idle ones too, in one pass every few seconds, without touching what runs inside.
 * This is what notices a keeper that was killed, a root or drive that was unmounted, a frozen or stopped instance: the status is
 * computed from what was seen here. A lost link asks for an early look; the pass is the truth, the hint only saves time.
 */
export class Observer {
  readonly #world: World;
  readonly #parts: ObserverParts;
  lastPassAt: number | null = null;

  constructor(world: World, parts: ObserverParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      const sleptAt = clock.now();
      await clock.sleep(numbers.observeEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      this.#parts.slept(numbers.observeEveryMs, clock.now() - sleptAt);
      const running = [...this.#parts.cells()].filter((cell) => hasInstance(cell.record));
      const { lookAtDrives, measure } = this.#parts;
      await Promise.all([this.look(running), lookAtDrives(), measure(running)]).catch((error: unknown) => {
        log.error({ cause: causeOf(error) }, "an observation pass failed");
      });
      this.lastPassAt = clock.now();
    }
  }

  /** One pass over these cells. What can't be observed is unknown, and said to be. */
  async look(cells: readonly Cell[]): Promise<void> {
    if (cells.length === 0) return;
    const before = new Map(cells.map((cell) => [cell, cell.record]));
    const seen = await this.#observe(cells);
    const missing = cells.filter((cell) => seen.get(cell.id)?.seen === "absent");
    // Absence is acted upon, so it is looked at twice.
    const again = missing.length === 0 ? seen : await this.#observe(missing);
    const taken: Promise<void>[] = [];
    for (const [cell, { generation, phase }] of before) {
      // What was seen in another phase says nothing of this one: it may have been frozen for it.
      if (cell.record.generation !== generation || cell.record.phase !== phase) continue;
      if (!hasInstance(cell.record)) continue;
      const observation = (missing.includes(cell) ? again : seen).get(cell.id);
      if (observation === undefined) continue;
      taken.push(this.#take(cell, generation, observation));
    }
    // What one of them takes long to come to terms with is no other's concern.
    const failed = (await Promise.allSettled(taken)).find(({ status }) => status === "rejected");
    if (failed?.status === "rejected") throw failed.reason;
  }

  async #observe(cells: readonly Cell[]): Promise<Map<string, Observation>> {
    const { clock, driver, numbers } = this.#world;
    const ids = cells.map((cell) => cell.id);
    const limit = { ms: numbers.observeEveryMs * 2, what: "observing", signal: this.#world.stopping };
    return within(clock, limit, (signal) => driver.observe(ids, signal)).catch((error: unknown) => {
      const unknown: Observation = { seen: "unknown", at: clock.now(), why: causeOf(error).message };
      return new Map(ids.map((id) => [id, unknown]));
    });
  }

  async #take(cell: Cell, generation: number, observation: Observation): Promise<void> {
    cell.learn({ observation: replaced(cell, observation) });
    if (observation.seen === "present" && observation.oomKills > cell.oomKills)
      await this.noteOom(cell, observation.oomKills);
    if (observation.seen === "absent") {
      const message = "The keeper (PID 1) is gone, and with it every process of the sandbox.";
      await this.#parts.died(cell, generation, { code: "keeper_died", message });
    }
  }

  /** The kernel killed something for memory: an event with the figures, once per rise of the counter. */
  async noteOom(cell: Cell, oomKills: number): Promise<void> {
    const { clock, store, log } = this.#world;
    const before = cell.oomKills;
    const kills = oomKills - before;
    if (kills <= 0) return;
    cell.oomKills = oomKills;
    cell.oomSeenAt = clock.now();
    const { id: sandboxId, generation } = cell.record;
    const limit = cell.record.spec.resources.memoryMb;
    const message = `The kernel killed ${kills} process${kills === 1 ? "" : "es"} of the sandbox: its memory limit of ${limit} MB was reached.`;
    log.warn({ sandbox: sandboxId, generation, kills }, message);
    const event = {
      at: clock.now(),
      type: "sandbox.oom",
      sandboxId,
      generation,
      message,
      data: { kills, memoryMb: limit },
    } as const;
    await store.commit({ changes: [], events: [event] }).catch((error: unknown) => {
      log.error({ sandbox: sandboxId, cause: causeOf(error) }, "an out-of-memory kill is told of later");
      cell.oomKills = Math.min(cell.oomKills, before);
    });
  }
}

/** A PID 1 other than the one that was launched is not this instance. */
function replaced(cell: Cell, observation: Observation): Observation {
  const { instance } = cell.record;
  if (observation.seen !== "present" || instance === null || observation.startTime === instance.startTime)
    return observation;
  const problem = {
    code: "instance_replaced",
    message: "The sandbox's PID 1 is not the one that was launched.",
  };
  return { ...observation, problems: [problem, ...observation.problems] };
}

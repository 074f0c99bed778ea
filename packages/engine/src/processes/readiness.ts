import { type Cause, causeOf, type ExecId } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { DeadlinePassed, soonest, within } from "./clock.ts";
import type { OpenExec } from "./open-exec.ts";
import { OutputScan } from "./output-scan.ts";
import { KeeperRefusal, type Link } from "./ports.ts";
import { type Goal, goalsOf, howItEnded } from "./process.ts";
import type { ProcessEntry } from "./process-entry.ts";
import type { Seen } from "./records.ts";
import type { World } from "./world.ts";

/** Something that has to be seen, how that is looked for, and by when. */
interface Awaited {
  goal: Goal;
  /** Null once it is seen; else why not. */
  look(link: Link, signal: AbortSignal): Promise<Cause | null>;
  late: { signal: AbortSignal; clear(): void };
}

/** What was seen of a run, without when and in which generation. */
export type Sight = { state: "ready"; how: "port" | "output" } | { state: "unready"; cause: Cause };

/**
 * Looks whether a run is ready, as a caller would find out: at first often, then every second, and slowly on after it was
 * not in time, because it may become ready all the same. Nothing is concluded while nobody can look: a sandbox that sleeps is
 * neither asked nor woken, and one without a link is looked at anew, with all its time, when that is back.
 */
export class Readiness {
  readonly #world: World;
  readonly #said: (entry: ProcessEntry, sight: Seen) => Promise<void>;

  constructor(world: World, said: (entry: ProcessEntry, sight: Seen) => Promise<void>) {
    this.#world = world;
    this.#said = said;
  }

  /** Begins to look, where there is something to look for and nobody looks yet. */
  watch(entry: ProcessEntry, exec: OpenExec): void {
    const { generation } = entry.cell.record;
    const { run } = entry.record;
    if (entry.watch?.run === run && entry.watch.generation === generation) return;
    entry.watch?.over.abort(REPLACED);
    const goals = goalsOf(entry.record, generation);
    if (goals.length === 0 || !exec.acknowledged || exec.finishing) return;
    const watch = { run, generation, over: new AbortController() };
    entry.watch = watch;
    const signal = AbortSignal.any([watch.over.signal, exec.over.signal, this.#world.stopping]);
    void this.#run(entry, exec, goals, signal)
      .catch((error: unknown) => {
        if (!signal.aborted)
          this.#world.log.warn(
            { exec: exec.record.id, cause: causeOf(error) },
            "looking for readiness failed",
          );
      })
      .finally(() => {
        if (entry.watch === watch) entry.watch = null;
      });
  }

  async #run(
    entry: ProcessEntry,
    exec: OpenExec,
    goals: readonly Goal[],
    signal: AbortSignal,
  ): Promise<void> {
    const { clock, numbers } = this.#world;
    const { cell, record } = entry;
    const { generation } = cell.record;
    const say = (sight: Sight) => {
      const at = clock.now();
      return this.#said(entry, { ...sight, run: record.run, generation, at });
    };
    const awaited = goals.map((goal) => this.#awaited(entry, exec.record.id, goal));
    let isLate = false;
    let pauseMs = numbers.readyPollMinMs;
    try {
      while (!signal.aborted) {
        const link = servingLink(cell, generation);
        if (link === null) return;
        const unmet = await unmetOf(awaited, link, signal);
        if (signal.aborted || servingLink(cell, generation) !== link) break;
        if (unmet === null) return await say({ state: "ready", how: how(record.spec.readyWhen) });
        if (unmet.isLate && !isLate) {
          isLate = true;
          await say({ state: "unready", cause: unmet.cause });
        }
        await soonest(clock, isLate ? numbers.unreadyPollMs : pauseMs, signal);
        pauseMs = Math.min(2 * pauseMs, numbers.readyPollMaxMs);
      }
    } finally {
      for (const { late } of awaited) late.clear();
    }
    const port = goals.includes(record.spec.connectBy as Goal) ? record.spec.connectBy?.port : undefined;
    if (exec.over.signal.aborted && port !== undefined && !isLate) {
      const message = `After the wake its run ${howItEnded(exec.record)} before anything answered at port ${port}.`;
      await say({ state: "unready", cause: { code: "run_ended", message } });
    }
  }

  #awaited(entry: ProcessEntry, id: ExecId, goal: Goal): Awaited {
    const late = this.#world.clock.deadline(goal.withinMs, "becoming ready");
    if ("port" in goal) {
      const { port } = goal;
      return { goal, late, look: (link, signal) => this.#tryPort(entry.cell, port, link, signal) };
    }
    const scan = new OutputScan(id, goal.output);
    const missing = {
      code: "output_missing",
      message: `${JSON.stringify(goal.output)} is not in its output.`,
    };
    const look = async (link: Link, signal: AbortSignal) =>
      (await scan.look(link, signal)) ? null : missing;
    return { goal, late, look };
  }

  /** The way that callers take; whoever listens sees a connection that is closed at once. */
  async #tryPort(cell: Cell, port: number, link: Link, signal: AbortSignal): Promise<Cause | null> {
    const { clock, driver, numbers } = this.#world;
    const { instance } = cell.record;
    if (instance === null) return { code: "port_unreachable", message: "There is no instance." };
    const limit = { ms: numbers.readyDialMs, what: `connecting to port ${port}`, signal };
    try {
      const { bootId, bytes } = await within(clock, limit, (inner) => driver.dial(instance, port, inner));
      bytes.on("error", () => undefined);
      bytes.destroy();
      if (bootId === link.keeper.bootId) return null;
      return { code: "port_unreachable", message: "Another process answers in the keeper's place." };
    } catch (error) {
      return portCause(error, port);
    }
  }
}

const REPLACED = new Error("Another run is looked at.");

const how = (readyWhen: Goal | null): "port" | "output" =>
  readyWhen !== null && "output" in readyWhen ? "output" : "port";

/** The link of a sandbox that serves in this generation. */
const servingLink = ({ record, links }: Cell, generation: number): Link | null =>
  record.phase.name === "running" && record.generation === generation ? (links?.current ?? null) : null;

/** What has yet to be seen, of several the one that is late: each has its own time. */
async function unmetOf(
  awaited: readonly Awaited[],
  link: Link,
  signal: AbortSignal,
): Promise<{ cause: Cause; isLate: boolean } | null> {
  let first: { cause: Cause; isLate: boolean } | null = null;
  for (const { look, late } of awaited) {
    const cause = await look(link, signal).catch((error: unknown) => causeOf(error));
    if (cause !== null && late.signal.aborted) return { cause, isLate: true };
    if (cause !== null) first ??= { cause, isLate: false };
  }
  return first;
}

function portCause(error: unknown, port: number): Cause {
  const errno = error instanceof KeeperRefusal ? error.errno : null;
  if (errno === "ECONNREFUSED") return { code: "port_closed", message: `Nothing listens at port ${port}.` };
  if (errno === "ETIMEDOUT" || error instanceof DeadlinePassed)
    return { code: "port_silent", message: `What listens at port ${port} takes nobody.` };
  return { code: "port_unreachable", message: `Port ${port} can't be reached: ${causeOf(error).message}` };
}

import { type Cause, causeOf, type ExecId } from "@holdfast/contract";
import { DeadlinePassed, soonest, within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import type { ProcessEntry } from "../live/process-entry.ts";
import { type Goal, goalsOf, howItEnded } from "../model/process-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import { KeeperRefusal, type Link, requireCapability } from "../ports/index.ts";
import type { Seen } from "../ports/records.ts";
import { OutputScan } from "./output-scan.ts";

/** A readiness condition with its check and its deadline. */
interface Awaited {
  goal: Goal;
  /** Checks the condition. Returns null if it is met, otherwise the reason why it is not met. */
  check(link: Link, signal: AbortSignal): Promise<Cause | null>;
  late: { signal: AbortSignal; clear(): void };
}

/** The readiness check of one run in one generation, while it runs. */
interface Watch {
  readonly run: number;
  readonly generation: number;
  readonly over: AbortController;
}

/** The result of a run's readiness checks, without time and generation. */
type Result = { state: "ready"; how: "port" | "output" } | { state: "unready"; cause: Cause };

/**
 * Checks whether a run is ready: whether its port accepts a connection, or its output contains a text. The checks are
 * frequent at first and then rarer. A run that missed its deadline is still checked, at long intervals, because it may
 * become ready later. If no check is possible, there is no result: a sandbox in standby is neither asked nor woken.
 * After a lost link the checks start again, with a new deadline of full length.
 */
export class Readiness {
  readonly #context: EngineContext;
  readonly #watches = new WeakMap<ProcessEntry, Watch>();
  readonly #store: (entry: ProcessEntry, seen: Seen) => Promise<void>;

  constructor(context: EngineContext, store: (entry: ProcessEntry, seen: Seen) => Promise<void>) {
    this.#context = context;
    this.#store = store;
  }

  /** Starts the checks if a condition is unmet and no check is running. */
  watch(entry: ProcessEntry, exec: OpenExec): void {
    const { generation } = entry.live.record;
    const { run } = entry.record;
    const before = this.#watches.get(entry);
    if (before?.run === run && before.generation === generation) return;
    before?.over.abort(REPLACED);
    const goals = goalsOf(entry.record, generation);
    if (goals.length === 0 || !exec.isRunning) return;
    const watch = { run, generation, over: new AbortController() };
    this.#watches.set(entry, watch);
    const signal = AbortSignal.any([watch.over.signal, exec.over.signal, this.#context.stopping]);
    void this.#run(entry, exec, goals, signal)
      .catch((error: unknown) => {
        if (!signal.aborted)
          this.#context.log.warn(
            { exec: exec.record.id, cause: causeOf(error) },
            "failed to check the readiness of a process",
          );
      })
      .finally(() => {
        if (this.#watches.get(entry) === watch) this.#watches.delete(entry);
      });
  }

  async #run(
    entry: ProcessEntry,
    exec: OpenExec,
    goals: readonly Goal[],
    signal: AbortSignal,
  ): Promise<void> {
    const { clock, numbers } = this.#context;
    const { live, record } = entry;
    const { generation } = live.record;
    const store = (result: Result) => {
      const at = clock.now();
      return this.#store(entry, { ...result, run: record.run, generation, at });
    };
    const awaited = goals.map((goal) => this.#awaited(entry, exec.record.id, goal));
    let isLate = false;
    let pauseMs = numbers.readyPollMinMs;
    try {
      while (!signal.aborted) {
        const link = servingLink(live, generation);
        if (link === null) return;
        const unmet = await unmetOf(awaited, link, signal);
        if (signal.aborted || servingLink(live, generation) !== link) break;
        if (unmet === null) return await store({ state: "ready", how: how(record.spec.readyWhen) });
        if (unmet.isLate && !isLate) {
          isLate = true;
          await store({ state: "unready", cause: unmet.cause });
        }
        await soonest(clock, isLate ? numbers.unreadyPollMs : pauseMs, signal);
        pauseMs = Math.min(2 * pauseMs, numbers.readyPollMaxMs);
      }
    } finally {
      for (const { late } of awaited) late.clear();
    }
    const port = goals.includes(record.spec.connectBy as Goal) ? record.spec.connectBy?.port : undefined;
    if (exec.over.isSet && port !== undefined && !isLate) {
      const message = `After the wake its run ${howItEnded(exec.record)} before anything answered at port ${port}.`;
      await store({ state: "unready", cause: { code: "run_ended", message } });
    }
  }

  #awaited(entry: ProcessEntry, id: ExecId, goal: Goal): Awaited {
    const late = this.#context.clock.deadline(goal.withinMs, "becoming ready");
    if ("port" in goal) {
      const { port } = goal;
      return { goal, late, check: (link, signal) => this.#tryPort(entry.live, port, link, signal) };
    }
    const scan = new OutputScan(id, goal.output);
    const missing = {
      code: "output_missing",
      message: `${JSON.stringify(goal.output)} is not in its output.`,
    };
    const check = async (link: Link, signal: AbortSignal) =>
      (await scan.check(link, signal)) ? null : missing;
    return { goal, late, check };
  }

  /** Connects to the port as a caller would, and closes the connection at once. */
  async #tryPort(live: LiveSandbox, port: number, link: Link, signal: AbortSignal): Promise<Cause | null> {
    const { clock, driver, numbers } = this.#context;
    const { instance } = live.record;
    if (instance === null) return { code: "port_unreachable", message: "There is no instance." };
    const limit = { ms: numbers.readyDialMs, what: `connecting to port ${port}`, signal };
    try {
      const { bootId, bytes } = await within(clock, limit, (inner) =>
        requireCapability(driver, "ports").dial(instance, port, inner),
      );
      bytes.on("error", () => undefined);
      bytes.destroy();
      if (bootId === link.keeper.bootId) return null;
      return { code: "port_unreachable", message: "Another process answers in the keeper's place." };
    } catch (error) {
      return portCause(error, port);
    }
  }
}

const REPLACED = new Error("The readiness of another run is checked.");

const how = (readyWhen: Goal | null): "port" | "output" =>
  readyWhen !== null && "output" in readyWhen ? "output" : "port";

/** Returns the link if the sandbox runs in this generation; otherwise null. */
const servingLink = ({ record, link }: LiveSandbox, generation: number): Link | null =>
  record.phase.name === "running" && record.generation === generation ? link : null;

/**
 * Runs the checks. Returns null if all conditions are met. Otherwise returns an unmet condition: preferably one that
 * missed its own deadline, else the first one.
 */
async function unmetOf(
  awaited: readonly Awaited[],
  link: Link,
  signal: AbortSignal,
): Promise<{ cause: Cause; isLate: boolean } | null> {
  let first: { cause: Cause; isLate: boolean } | null = null;
  for (const { check, late } of awaited) {
    const cause = await check(link, signal).catch((error: unknown) => causeOf(error));
    if (cause !== null && late.signal.aborted) return { cause, isLate: true };
    if (cause !== null) first ??= { cause, isLate: false };
  }
  return first;
}

function portCause(error: unknown, port: number): Cause {
  const errno = error instanceof KeeperRefusal ? error.errno : null;
  if (errno === "ECONNREFUSED") return { code: "port_closed", message: `Nothing listens at port ${port}.` };
  if (errno === "ETIMEDOUT" || error instanceof DeadlinePassed)
    return { code: "port_silent", message: `The listener at port ${port} accepts no connection.` };
  return { code: "port_unreachable", message: `Port ${port} can't be reached: ${causeOf(error).message}` };
}

import type { Fact } from "../world/facts.ts";
import { journalOf, otherName, processOf, runIn } from "./exec-ids.ts";
import type { Invariant, Scene } from "./invariant.ts";

const oneRun: Invariant = {
  name: "one-run",
  promise: "At most one run of a process is alive.",
  standing({ host }) {
    for (const { keeper } of host.instances) {
      const alive = new Set<string>();
      for (const { order, state } of keeper.execs.values()) {
        const process = state === "running" ? runIn(order.id)?.process : undefined;
        if (process === undefined) continue;
        if (alive.has(process)) return `two runs of ${process} are alive`;
        alive.add(process);
      }
    }
    return null;
  },
};

function begunForNothing(
  { mirror }: Scene,
  { sandboxId, id }: Extract<Fact, { type: "command" }>,
): string | null {
  // An unreadable record can't show which processes the sandbox has, so nothing is checked.
  if (mirror.unreadable.has(sandboxId)) return null;
  const outside = otherName(mirror, sandboxId, id);
  const process = processOf(mirror, sandboxId, id);
  if (process === undefined) return `${id} begins in ${sandboxId}, and no process on record has that run`;
  if (process.end !== null) return `${outside} begins, and its process is ${process.end.state}`;
  return mirror.execs.has(outside) ? `${outside} begins, and has begun before` : null;
}

const overMeansOver: Invariant = {
  name: "over-means-over",
  promise: "A run that a keeper starts by itself is the next run of a process that has not ended.",
  witnessed(scene, fact) {
    if (fact.type !== "command" || fact.why !== "next") return null;
    return begunForNothing(scene, fact);
  },
};

/** Checks the records of runs. Also notes in the history how each recorded run actually ended. */
const runsRecorded: Invariant = {
  name: "runs-recorded",
  promise: "Runs are recorded in order, each once, as their keeper started them.",
  witnessed(scene, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "exec.insert") return null;
    const { mirror, history } = scene;
    const { record } = fact.change;
    const run = runIn(record.id);
    // Runs that continue in a fork are not checked: they are recorded before the fork is launched.
    const isForked = mirror.sandboxes
      .get(record.sandboxId)
      ?.forkedFrom?.execs.some(({ id }) => id === record.id);
    if (run === null || isForked) return null;
    const journal = journalOf(scene, record);
    // A run without a journal has not begun: the engine has recorded it and is about to start it, so the record must
    // have no start time. A run that has begun has a journal. Its record may still have no start time, if the run was
    // lost with its memory before a server saw it.
    if (journal === undefined)
      return record.startedAt === null ? null : `${record.id} is on record and was never begun`;
    history.continues(record, journal.exit === null ? null : { ...journal.exit });
    const process = mirror.processes.get(run.process);
    return process !== undefined && process.run >= run.run
      ? null
      : `${record.id} is on record before its process has it`;
  },
};

/** Promises about named processes. */
export const PROCESS_INVARIANTS: readonly Invariant[] = [oneRun, overMeansOver, runsRecorded];

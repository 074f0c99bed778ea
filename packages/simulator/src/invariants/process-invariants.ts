import type { Fact } from "./facts.ts";
import type { Invariant, Scene } from "./invariants.ts";
import { otherName, processOf, runIn } from "./names.ts";

const oneRun: Invariant = {
  name: "one-run",
  promise: "Of a process at most one run is alive.",
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
  // Nobody knows what a record says that can't be read.
  if (mirror.unreadable.has(sandboxId)) return null;
  const outside = otherName(mirror, sandboxId, id);
  const process = processOf(mirror, sandboxId, id);
  if (process === undefined) return `${id} begins in ${sandboxId}, and no process on record has that run`;
  if (process.end !== null) return `${outside} begins, and its process is ${process.end.state}`;
  return mirror.execs.has(outside) ? `${outside} begins, and has begun before` : null;
}

const overMeansOver: Invariant = {
  name: "over-means-over",
  promise: "What a keeper begins by itself is the next run of a process that is not over.",
  witnessed(scene, fact) {
    if (fact.type !== "command" || fact.why !== "next") return null;
    return begunForNothing(scene, fact);
  },
};

/** What really became of a run that its keeper began, when it is put on record. */
const runsRecorded: Invariant = {
  name: "runs-recorded",
  promise: "Runs are put on record in their order, each once, as what their keeper has begun.",
  witnessed({ mirror, history, host }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "exec.insert") return null;
    const { record } = fact.change;
    const run = runIn(record.id);
    // What a fork begins with is there when that is launched.
    const isForked = mirror.sandboxes
      .get(record.sandboxId)
      ?.forkedFrom?.execs.some(({ id }) => id === record.id);
    if (run === null || record.startedAt === null || isForked) return null;
    const inside = otherName(mirror, record.sandboxId, record.id);
    const journal = host.directories.get(record.sandboxId)?.journals.get(inside);
    if (journal === undefined) return `${record.id} is on record and was never begun`;
    history.goesOn(record, journal.exit === null ? null : { ...journal.exit });
    const process = mirror.processes.get(run.process);
    return process !== undefined && process.run >= run.run
      ? null
      : `${record.id} is on record before its process has it`;
  },
};

/** Promises about named processes. */
export const PROCESS_INVARIANTS: readonly Invariant[] = [oneRun, overMeansOver, runsRecorded];

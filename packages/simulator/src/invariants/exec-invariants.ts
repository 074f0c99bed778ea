import { type Exec, type ExecId, HoldfastError, isTerminal, type SandboxId } from "@holdfast/contract";
import type { ExecRecord } from "@holdfast/engine";
import type { Mirror } from "../world/mirror.ts";
import { journalOf, otherName, runIn } from "./exec-ids.ts";
import type { History } from "./history.ts";
import type { Invariant, Scene } from "./invariant.ts";

import { first, short, text } from "./wording.ts";

const ranOnce: Invariant = {
  name: "ran-once",
  promise: "A command runs at most once, and never without an open record.",
  witnessed({ mirror, history }, fact) {
    // Runs that keepers start without a request, the next runs of supervised processes, are not checked by this
    // invariant. Other invariants check them.
    if (fact.type !== "command" || fact.isProof || fact.why === "next") return null;
    const id = otherName(mirror, fact.sandboxId, fact.id);
    const record = mirror.execs.get(id);
    if (record === undefined) return `${id} runs and no record knows of it`;
    if (record.endedAt !== null) return `${id} runs after it was reported as ${record.status}`;
    return history.ran(record) > 1 ? `${id} ran twice` : null;
  },
};

const endOf = ({ status, exitCode, signal }: Pick<Exec, "status" | "exitCode" | "signal">) => ({
  status,
  exitCode,
  signal,
});
const oneOutcome: Invariant = {
  name: "one-outcome",
  promise: "An exec has one outcome, and every caller gets the same.",
  witnessed({ history, mirror, time }, fact) {
    if (fact.type === "reported-exec") {
      const life = { id: fact.exec.id as ExecId, createdAt: Date.parse(fact.exec.createdAt) };
      const reported = endOf(fact.exec);
      if (!isTerminal(reported.status))
        return history.reportedAt(life) >= fact.askedAt
          ? null
          : `${life.id} is reported as ${reported.status} after its end`;
      const before = history.firstReported(life, reported, time.elapsed);
      if (text(reported) !== text(before))
        return `${life.id} ended as ${text(before)} and as ${text(reported)}`;
      const stored = mirror.execs.get(life.id);
      if (stored?.createdAt === life.createdAt && stored.endedAt === null)
        return `${life.id} was reported as ended, but its end is not stored`;
    }
    if (fact.type === "stored" && fact.change.kind === "exec.end") {
      const { record } = fact.change;
      const before = history.firstReported(record, endOf(record), time.elapsed);
      if (text(before) !== text(endOf(record)))
        return `${record.id} ended as ${text(before)} and as ${text(endOf(record))}`;
    }
    return null;
  },
};

/**
 * Returns whether an exec's id in the keeper is unknown to the server: the id differs from the recorded one, and the
 * fork's record, which alone contains it, is unreadable.
 */
const isNameless = ({ mirror }: Scene, { sandboxId, id }: ExecRecord): boolean =>
  mirror.unreadable.has(sandboxId) && otherName(mirror, sandboxId, id) !== id;

function untrue(scene: Scene, record: ExecRecord): string | null {
  const { history } = scene;
  const run = history.runOf(record);
  const { id, status, dispatched } = record;
  if (dispatched === "no" && run !== undefined) return `${id} ran, but was reported as never dispatched`;
  const end = run?.end ?? null;
  const wasSeen = status === "exited" || status === "timed_out";
  // If the keeper does not enforce a timeout, the engine cancels the exec at its timeout. Then the record says
  // `timed_out` and the keeper says `cancelled`, and both are right.
  const isBackstop = status === "timed_out" && end?.state === "cancelled" && record.spec.timeoutMs !== null;
  if (wasSeen && end?.state !== status && !isBackstop) return `${id} was reported as ${status}, but was not`;
  if (status === "exited" && end !== null && end.signal === 0 && end.exitCode !== record.exitCode)
    return `${id} exited with ${end.exitCode}, but was reported with ${record.exitCode}`;
  const exit = journalOf(scene, record)?.exit ?? null;
  const isUnseen = status === "lost" || (status === "cancelled" && exit?.state !== "cancelled");
  if (isUnseen && exit !== null && !history.unread.has(id) && !isNameless(scene, record))
    return `${id} was reported as ${status}, but its journal says ${exit.state}`;
  return null;
}

const trueOutcome: Invariant = {
  name: "true-outcome",
  promise: "An outcome is what happened: no exit is invented, and no exit on disk is reported as lost.",
  witnessed(scene, fact) {
    if (fact.type === "journal-unread")
      scene.history.unread.add(otherName(scene.mirror, fact.sandboxId, fact.id));
    if (fact.type === "command-ended") {
      const record = scene.mirror.execs.get(otherName(scene.mirror, fact.sandboxId, fact.exec.id));
      if (record?.sandboxId === fact.sandboxId) scene.history.reallyEnded(record, fact.exec);
    }
    if (fact.type !== "stored" || fact.change.kind !== "exec.end") return null;
    return untrue(scene, fact.change.record);
  },
};

const trueOutput: Invariant = {
  name: "true-output",
  promise: "Output is what the command printed, in order; missing output is reported as such.",
  witnessed(scene, fact) {
    if (fact.type !== "reported-exec" || fact.exec.stdout === undefined) return null;
    const { exec } = fact;
    const journal = journalOf(scene, exec);
    if (journal === undefined || journal.torn) return null;
    const reported = exec.stdout ?? "";
    if (!journal.text.startsWith(reported))
      return `${exec.id} printed ${text(journal.text)}, reported as ${text(reported)}`;
    if (isTerminal(exec.status) && !exec.truncated && reported !== journal.text)
      return `${exec.id} was reported as complete with ${text(reported)}, but printed ${text(journal.text)}`;
    return null;
  },
};

const times = (whole: string, part: string): number => whole.split(part).length - 1;

const stdinOnce: Invariant = {
  name: "stdin-once",
  promise: "Input arrives at most once, and exactly once if that was confirmed to the caller.",
  standing({ host }) {
    return first(host.instances, ({ keeper }) =>
      first(keeper.execs.values(), ({ order, stdin }) => {
        const pieces = stdin.match(/<\d+>/g) ?? [];
        return new Set(pieces).size === pieces.length ? null : `stdin of ${order.id} is ${text(stdin)}`;
      }),
    );
  },
  witnessed({ host, mirror }, fact) {
    if (fact.type !== "typed") return null;
    const record = mirror.execs.get(fact.id);
    const inside = record && otherName(mirror, record.sandboxId, fact.id);
    const exec = inside && host.instanceOf(record.sandboxId)?.keeper.execs.get(inside);
    // An exec that has ended accepts all input and reads none of it, so there is nothing to compare.
    if (exec?.state !== "running" || exec.stdinOver || times(exec.stdin, fact.text) === 1) return null;
    return `${fact.text} was accepted, and stdin of ${fact.id} is ${text(exec.stdin)}`;
  },
};

const endedForAReason: Invariant = {
  name: "ended-for-a-reason",
  promise: "A command is ended only on request, or after it has lived longer than its timeout.",
  witnessed({ history, mirror }, fact) {
    if (fact.type === "unwanted") history.unwanted.add(fact.id);
    if (fact.type !== "cancelled") return null;
    const id = otherName(mirror, fact.sandboxId, fact.id);
    if (history.unwanted.has(id) || isUnwantedRun(history, mirror, fact.sandboxId, id)) return null;
    if (fact.timeoutMs > 0 && fact.livedMs >= fact.timeoutMs) return null;
    return `${id} was ended after ${fact.livedMs} ms, with a timeout of ${fact.timeoutMs} ms`;
  },
};

/** Returns whether the exec is a run of a process that a caller asked to stop or restart. */
function isUnwantedRun(
  { unwanted }: History,
  { processes, sandboxes }: Mirror,
  sandboxId: SandboxId,
  id: ExecId,
): boolean {
  const run = runIn(id);
  const name = run === null ? undefined : processes.get(run.process)?.name;
  return unwanted.has(`${sandboxId}/${name}`) || unwanted.has(`${sandboxes.get(sandboxId)?.name}/${name}`);
}

const keptLongEnough: Invariant = {
  name: "kept-long-enough",
  promise: "Reported objects can be found: an exec for its retention time after its end, a sandbox forever.",
  witnessed({ mirror, time, numbers, history }, fact) {
    if (fact.type === "refused" && fact.ref !== null && fact.error instanceof HoldfastError) {
      const { code } = fact.error;
      if (code === "exec_not_found" && mirror.execs.has(fact.ref as ExecId))
        return `${fact.ref} was not found`;
      if (code === "sandbox_not_found" && mirror.sandboxes.has(fact.ref as SandboxId))
        return `${fact.ref} was not found`;
    }
    if (fact.type !== "forgotten" || history.isThrifty) return null;
    const { id, endedAt } = fact.record;
    const keptMs = time.now() - (endedAt ?? time.now());
    return keptMs < numbers.execRetentionMs ? `${id} was forgotten ${keptMs} ms after its end` : null;
  },
};

const COUNTED: ReadonlySet<string> = new Set([
  "queued",
  "launching",
  "running",
  "paused",
  "suspending",
  "standby",
  "waking",
]);

const limitsKept: Invariant = {
  name: "limits-kept",
  promise: "There are never more sandboxes, or concurrent commands in a sandbox, than the limits allow.",
  standing({ mirror, host, numbers }) {
    const live = mirror.readable().filter(({ phase }) => COUNTED.has(phase.name));
    if (live.length > numbers.maxSandboxes) return `there are ${live.length} sandboxes`;
    for (const [owner, own] of Map.groupBy(live, (record) => record.owner))
      if (owner !== null && own.length > numbers.maxSandboxesPerKey)
        return `${owner} has ${own.length} sandboxes`;
    return first(host.instances, ({ keeper, sandboxId }) => {
      const running = [...keeper.execs.values()].filter(
        // Only first runs count, because a keeper starts the later runs of a supervised process without asking the
        // server.
        ({ state, command, order }) =>
          state === "running" && command.kind !== "prove" && (runIn(order.id)?.run ?? 1) === 1,
      );
      return running.length > numbers.execsPerSandbox
        ? `${running.length} commands run in ${short(sandboxId)}`
        : null;
    });
  },
};

export const EXEC_INVARIANTS: readonly Invariant[] = [
  ranOnce,
  oneOutcome,
  trueOutcome,
  trueOutput,
  stdinOnce,
  endedForAReason,
  keptLongEnough,
  limitsKept,
];

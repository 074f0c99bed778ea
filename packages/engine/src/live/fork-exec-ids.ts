import type { ExecId, SandboxId } from "@holdfast/contract";
import type { Journals, KeeperExec, Link } from "./ports.ts";
import { runId, runOf } from "./process.ts";
import type { SandboxRecord } from "./records.ts";

/** What the execs of one sandbox are called by its keeper, and the other way round. */
export interface ExecNames {
  inside(id: ExecId): ExecId;
  outside(id: ExecId): ExecId;
}

/**
 * A fork has execs that its keeper remembers by the ids of another sandbox. Outside they have ids of their own; this is the
 * only place where both are known. Null where there is nothing to translate, as in every sandbox that is no fork.
 *
 * The two names change places: callers choose ids, and one that the keeper has for another exec may be free outside. Runs of a
 * process are translated by its name, because its keeper goes on counting.
 */
export function execNames({ forkedFrom }: Pick<SandboxRecord, "forkedFrom">): ExecNames | null {
  if (forkedFrom === null || forkedFrom.execs.length + forkedFrom.processes.length === 0) return null;
  const others = bothWays(forkedFrom.execs);
  const otherProcesses = bothWays(forkedFrom.processes);
  const other = (id: ExecId): ExecId => {
    const run = runOf(id);
    const process = run === null ? undefined : otherProcesses.get(run.process);
    return run === null || process === undefined ? (others.get(id) ?? id) : runId(process, run.run);
  };
  return { inside: other, outside: other };
}

const bothWays = <Id extends string>(names: readonly { id: Id; keeperId: Id }[]): Map<Id, Id> =>
  new Map(names.flatMap(({ id, keeperId }) => [[id, keeperId] as const, [keeperId, id] as const]));

/** A link on which execs go by the names that they have outside. */
export function renamedLink(link: Link, names: ExecNames): Link {
  const renamed = (exec: KeeperExec): KeeperExec => ({ ...exec, id: names.outside(exec.id) });
  const { inside } = names;
  return {
    keeper: link.keeper,
    closed: link.closed,
    get lastHeardAt() {
      return link.lastHeardAt;
    },
    files: link.files,
    ping: (signal) => link.ping(signal),
    startExec: async (order, signal) => {
      const { existed, exec } = await link.startExec({ ...order, id: inside(order.id) }, signal);
      return { existed, exec: renamed(exec) };
    },
    readExec: (id, from, signal) => link.readExec(inside(id), from, signal),
    writeStdin: (id, chunk, signal) => link.writeStdin(inside(id), chunk, signal),
    signalExec: (id, number, signal) => link.signalExec(inside(id), number, signal),
    cancelExec: (id, signal) => link.cancelExec(inside(id), signal),
    listExecs: async (signal) => (await link.listExecs(signal)).map(renamed),
    forgetExec: (id, options, signal) => link.forgetExec(inside(id), options, signal),
    resizeExec: (id, size, signal) => link.resizeExec(inside(id), size, signal),
    onExecEnd: (listener) => link.onExecEnd((exec) => listener(renamed(exec))),
    keepExec: async (order, policy, signal) => {
      const { existed, exec } = await link.keepExec({ ...order, id: inside(order.id) }, policy, signal);
      return { existed, exec: renamed(exec) };
    },
    listKept: async (signal) =>
      (await link.listKept(signal)).map((kept) => ({ ...kept, execId: names.outside(kept.execId) })),
    onExecStart: (listener) => link.onExecStart((exec) => listener(renamed(exec))),
    probe: (signal) => link.probe(signal),
    processes: async (signal) =>
      (await link.processes(signal)).map((each) => ({
        ...each,
        execId: names.outside(each.execId as ExecId),
      })),
    close: () => link.close(),
  };
}

/** Journals that are asked for by the names that execs have outside. */
export function renamedJournals(
  journals: Journals,
  namesOf: (id: SandboxId) => Promise<ExecNames | null>,
): Journals {
  const inside = async (sandboxId: SandboxId, id: ExecId) => (await namesOf(sandboxId))?.inside(id) ?? id;
  return {
    read: async (sandboxId, id, from, signal) =>
      journals.read(sandboxId, await inside(sandboxId, id), from, signal),
    end: async (sandboxId, id, signal) => {
      const found = await journals.end(sandboxId, await inside(sandboxId, id), signal);
      return found?.exec ? { ...found, exec: { ...found.exec, id } } : found;
    },
    remove: async (sandboxId, ids, signal) => {
      const names = await namesOf(sandboxId);
      return journals.remove(sandboxId, names === null ? ids : ids.map(names.inside), signal);
    },
    keep: (sandboxId, signal) => journals.keep(sandboxId, signal),
    kept: (signal) => journals.kept(signal),
    drop: (sandboxId, signal) => journals.drop(sandboxId, signal),
  };
}

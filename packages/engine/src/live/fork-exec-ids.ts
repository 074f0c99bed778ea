import type { ExecId, SandboxId } from "@holdfast/contract";
import { runId, runOf } from "../model/process-machine.ts";
import type { JournalsAfterDeath, KeeperExec, Link } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";

/**
 * Translates an exec id of the API to the one that the fork's keeper uses, and back: both directions are the same swap.
 */
export interface ForkExecIds {
  translate(id: ExecId): ExecId;
}

/**
 * Returns the translation of a fork's exec ids; null if there is nothing to translate, as in every sandbox that is not
 * a fork. The keeper of a fork knows the restored execs by the ids of the source sandbox, while the API gives them new
 * ids. Each pair of ids is swapped, because callers choose ids and may give a new exec an id that the keeper already
 * uses for a restored one. Runs of a process are translated by the process's id, because the keeper keeps counting its
 * runs.
 */
export function forkExecIds({ forkedFrom }: Pick<SandboxRecord, "forkedFrom">): ForkExecIds | null {
  if (forkedFrom === null || forkedFrom.execs.length + forkedFrom.processes.length === 0) return null;
  const others = bothWays(forkedFrom.execs);
  const otherProcesses = bothWays(forkedFrom.processes);
  const translate = (id: ExecId): ExecId => {
    const run = runOf(id);
    const process = run === null ? undefined : otherProcesses.get(run.process);
    return run === null || process === undefined ? (others.get(id) ?? id) : runId(process, run.run);
  };
  return { translate };
}

const bothWays = <Id extends string>(names: readonly { id: Id; keeperId: Id }[]): Map<Id, Id> =>
  new Map(names.flatMap(({ id, keeperId }) => [[id, keeperId] as const, [keeperId, id] as const]));

/** Wraps a fork's link so that its callers use the ids of the API instead of those of the keeper. */
export function renamedLink(link: Link, { translate }: ForkExecIds): Link {
  const renamed = (exec: KeeperExec): KeeperExec => ({ ...exec, id: translate(exec.id) });
  return {
    keeper: link.keeper,
    closed: link.closed,
    get lastReceivedAt() {
      return link.lastReceivedAt;
    },
    files: link.files,
    ping: (signal) => link.ping(signal),
    setDeadline: (remainingMs, signal) => link.setDeadline(remainingMs, signal),
    startExec: async (order, signal) => {
      const { existed, exec } = await link.startExec({ ...order, id: translate(order.id) }, signal);
      return { existed, exec: renamed(exec) };
    },
    readExec: (id, from, signal) => link.readExec(translate(id), from, signal),
    holdExec: (id, hold, signal) => link.holdExec(translate(id), hold, signal),
    writeStdin: (id, chunk, signal) => link.writeStdin(translate(id), chunk, signal),
    signalExec: (id, number, signal) => link.signalExec(translate(id), number, signal),
    cancelExec: (id, signal) => link.cancelExec(translate(id), signal),
    listExecs: async (signal) => (await link.listExecs(signal)).map(renamed),
    forgetExec: (id, options, signal) => link.forgetExec(translate(id), options, signal),
    resizeExec: (id, size, signal) => link.resizeExec(translate(id), size, signal),
    onExecEnd: (listener) => link.onExecEnd((exec) => listener(renamed(exec))),
    superviseExec: async (order, policy, signal) => {
      const { existed, exec } = await link.superviseExec(
        { ...order, id: translate(order.id) },
        policy,
        signal,
      );
      return { existed, exec: renamed(exec) };
    },
    listSupervised: async (signal) =>
      (await link.listSupervised(signal)).map((run) => ({ ...run, execId: translate(run.execId) })),
    onExecStart: (listener) => link.onExecStart((exec) => listener(renamed(exec))),
    probe: (signal) => link.probe(signal),
    processes: async (signal) =>
      (await link.processes(signal)).map((each) => ({
        ...each,
        execId: translate(each.execId as ExecId),
      })),
    close: () => link.close(),
  };
}

/** Wraps a fork's journals so that their callers use the ids of the API instead of those of the keeper. */
export function renamedJournals(
  journals: JournalsAfterDeath,
  registry: { forkExecIds(id: SandboxId): Promise<ForkExecIds | null> },
): JournalsAfterDeath {
  const keeperId = async (sandboxId: SandboxId, id: ExecId) =>
    (await registry.forkExecIds(sandboxId))?.translate(id) ?? id;
  return {
    read: async (sandboxId, id, from, signal) =>
      journals.read(sandboxId, await keeperId(sandboxId, id), from, signal),
    end: async (sandboxId, id, signal) => {
      const found = await journals.end(sandboxId, await keeperId(sandboxId, id), signal);
      return found?.exec ? { ...found, exec: { ...found.exec, id } } : found;
    },
    remove: async (sandboxId, ids, signal) => {
      const names = await registry.forkExecIds(sandboxId);
      return journals.remove(sandboxId, names === null ? ids : ids.map(names.translate), signal);
    },
    archive: (sandboxId, signal) => journals.archive(sandboxId, signal),
    archived: (signal) => journals.archived(signal),
    drop: (sandboxId, signal) => journals.drop(sandboxId, signal),
  };
}

import { PROOF_EXEC_PREFIX } from "../launch/prover.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { isCurrentRun } from "../live/run-ids.ts";
import type { KeeperExec, Link } from "../ports/index.ts";
import type { ExecDispatch } from "./exec-dispatch.ts";
import type { ExecFinish } from "./exec-finish.ts";
import type { ExecQueue } from "./exec-queue.ts";
import type { Retention } from "./exec-retention.ts";
import { isOfOtherMemory, type OpenExecs } from "./open-execs.ts";

interface ReconcileParts {
  open: OpenExecs;
  finish: ExecFinish;
  dispatch: ExecDispatch;
  queue: ExecQueue;
  retention: Retention;
  events: EngineEvents;
}

/** Compares the open execs of a sandbox with the execs that its keeper lists. The keeper's list is authoritative. */
export class ExecReconcile {
  readonly #parts: ReconcileParts;

  constructor(parts: ReconcileParts) {
    this.#parts = parts;
  }

  /**
   * Runs on every new link. Ends the execs that ended while the link was down. Sends again the start requests that
   * never arrived. Ends as lost the execs that the keeper had received but no longer knows.
   */
  async reconcile(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    const { open, finish, dispatch, queue, events } = this.#parts;
    const listed = await link.listExecs(signal);
    const known = new Map(listed.map((exec) => [exec.id, exec]));
    await events.execsListed.run(live, listed, link, signal);
    for (const exec of [...live.openExecs].filter(({ isStored }) => isStored)) {
      const there = known.get(exec.record.id);
      if (there !== undefined) dispatch.acknowledge(exec, there);
      else if (isOfOtherMemory(exec.record, live) || exec.hasArrived) void finish.lose(exec);
      else if (exec.isQueued || exec.isDispatching) continue;
      else if (exec.record.status === "queued") open.enqueue(exec);
      else void dispatch.send(exec, null);
    }
    queue.advance(live);
    const others = listed.filter(({ id }) => open.get(id)?.live !== live);
    await this.#sortOthers(live, others, link, signal);
  }

  /**
   * Compares the execs that the keeper has acknowledged with the keeper's list. Normally the keeper reports the end of
   * each exec by itself, but such a report can be lost even if the link stays up. So the list is authoritative, and the
   * reports only save time.
   */
  async compare(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    const { finish, dispatch, events } = this.#parts;
    const sure = [...live.openExecs].filter(({ isRunning }) => isRunning);
    if (sure.length === 0 && !live.hasLiveProcess) return;
    const listed = await link.listExecs(signal);
    const known = new Map(listed.map((exec) => [exec.id, exec]));
    await events.execsListed.run(live, listed, link, signal);
    for (const exec of sure) {
      const there = known.get(exec.record.id);
      if (there !== undefined) dispatch.acknowledge(exec, there);
      else if (live.link === link) void finish.lose(exec);
    }
  }

  /**
   * Handles the listed execs that are not open in the ledger. Proof execs that have ended are deleted. Execs that a
   * fork took over from its source sandbox are deleted if they have ended, and cancelled if they still run. All other
   * ended execs are passed to retention.
   */
  async #sortOthers(
    live: LiveSandbox,
    execs: readonly KeeperExec[],
    link: Link,
    signal: AbortSignal,
  ): Promise<void> {
    const { retention } = this.#parts;
    const isProof = ({ id }: KeeperExec) => id.startsWith(PROOF_EXEC_PREFIX);
    const named = execs.filter((exec) => !isProof(exec));
    const foreign = await retention.foreignExecs(
      live,
      named.map(({ id }) => id).filter((id) => !isCurrentRun(live, id)),
    );
    // Errors are ignored, because the keeper lists the exec again on the next link and the request is then repeated.
    for (const exec of execs.filter((each) => isProof(each) || foreign.has(each.id))) {
      if (exec.state !== "running")
        link.forgetExec(exec.id, { keepJournal: false }, signal).catch(() => undefined);
      else if (!isProof(exec)) link.cancelExec(exec.id, signal).catch(() => undefined);
    }
    const kept = named
      .filter(({ id, state }) => state !== "running" && !foreign.has(id))
      .sort((a, b) => a.endedAt - b.endedAt);
    retention.inKeeper(
      live,
      kept.map(({ id }) => id),
    );
  }
}

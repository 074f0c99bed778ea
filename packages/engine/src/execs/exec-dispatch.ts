import { causeOf } from "@holdfast/contract";
import type { OpenExec } from "../live/open-exec.ts";
import { restartPolicyOf } from "../live/run-ids.ts";
import { outcomeOf, unseenEnd } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import { type ExecOrder, type KeeperExec, KeeperRefusal, type Link, LinkLost } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { ExecFinish } from "./exec-finish.ts";
import { isOfOtherMemory, type OpenExecs } from "./open-execs.ts";
import type { OutputHolds } from "./output-holds.ts";

/** Pause before a start request is sent again over a link that is still up. */
const RESEND_PAUSE_MS = 200;

/**
 * Sends start requests for execs to the keeper and records its answers. A start is sent again only if the keeper still
 * has the same memory: that keeper knows by the exec's id whether it has run the exec, so a lost answer never makes a
 * command run twice.
 */
export class ExecDispatch {
  readonly #context: EngineContext;
  readonly #open: OpenExecs;
  readonly #finish: ExecFinish;
  readonly #holds: OutputHolds;

  constructor(context: EngineContext, open: OpenExecs, finish: ExecFinish, holds: OutputHolds) {
    this.#context = context;
    this.#open = open;
    this.#finish = finish;
    this.#holds = holds;
  }

  /** Sends the start request until a keeper of the exec's generation answers or the exec has ended. */
  send(exec: OpenExec, first: Link | null): Promise<void> {
    return exec.whileDispatching(() => this.#sendUntilAnswered(exec, first));
  }

  async #sendUntilAnswered(exec: OpenExec, first: Link | null): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    let link = first;
    while (!stopping.aborted && !exec.isEnding && !exec.isAcknowledged) {
      try {
        link ??= await exec.live.waitForLink(numbers.createDeadlineMs, stopping);
        if (link === null || exec.isEnding || exec.isAcknowledged) return;
        if (isOfOtherMemory(exec.record, exec.live)) return;
        const answer = await this.#request(exec, link, stopping);
        this.acknowledge(exec, answer.exec);
        return;
      } catch (error) {
        const isRefusal = error instanceof KeeperRefusal;
        if (isRefusal && !(exec.mayHaveBeenSent && link !== null && (await this.#mayHaveArrived(exec, link))))
          return await this.#refused(exec, error);
        exec.markMaybeSent();
        if (exec.live.refusal() !== null) return;
        // A lost link needs no pause: `waitForLink` waits for the next link.
        const wasLost = link !== null && error instanceof LinkLost;
        link = null;
        if (wasLost) continue;
        log.debug({ exec: exec.record.id, cause: causeOf(error) }, "sending a start again");
        await clock.sleep(RESEND_PAUSE_MS, stopping).catch(() => undefined);
      }
    }
  }

  /** Records the keeper's report on an exec: that it runs, or how it ended. */
  acknowledge(exec: OpenExec, known: KeeperExec): void {
    this.#open.dequeue(exec);
    if (exec.markAcknowledged(known.startedAt)) {
      exec.live.changed();
      if (known.state === "running") this.#giveStdin(exec);
    }
    if (known.state === "running") return;
    const state = exec.isOverdue && known.state === "cancelled" ? "timed_out" : known.state;
    void this.#finish.finish(exec, outcomeOf({ ...known, state }));
  }

  #request(exec: OpenExec, link: Link, signal: AbortSignal) {
    const policy = restartPolicyOf(exec.live, exec.record.id);
    const order = this.#order(exec.record);
    const answer =
      policy === null ? link.startExec(order, signal) : link.superviseExec(order, policy, signal);
    this.#holds.started(exec, link);
    return answer;
  }

  /**
   * Whether the keeper may have received an earlier start request whose answer was lost. If so, a refusal of the
   * current request says nothing about the earlier one. Also returns true if the keeper can't be asked, so that the
   * request is sent again.
   */
  async #mayHaveArrived(exec: OpenExec, link: Link): Promise<boolean> {
    try {
      const known = (await link.listExecs(this.#context.stopping)).find(({ id }) => id === exec.record.id);
      if (known !== undefined) this.acknowledge(exec, known);
      return known !== undefined;
    } catch {
      return true;
    }
  }

  #order(record: ExecRecord): ExecOrder {
    const { id, spec, digest } = record;
    const { argv, env, cwd, user, tty } = spec;
    const journalCapBytes = this.#context.numbers.journalCapBytes;
    return {
      id,
      argv,
      env,
      cwd,
      user,
      timeoutMs: spec.timeoutMs ?? 0,
      stdin: spec.stdin !== null,
      tty,
      journalCapBytes,
      digest,
    };
  }

  /**
   * Ends an exec whose start request the keeper refused. `exec_conflict` means that the id is in use, for example by a
   * journal on disk. If an earlier request for this exec may have been sent, the id is in use by this exec itself: it
   * ran, and it ends as lost. In all other cases the exec was never started, and it ends as refused.
   */
  async #refused(exec: OpenExec, refusal: KeeperRefusal): Promise<void> {
    if (exec.mayHaveBeenSent && refusal.reason === "exec_conflict") return this.#finish.lose(exec);
    const cause = { code: refusal.errno ?? refusal.reason, message: refusal.message };
    await this.#finish.finish(exec, unseenEnd("refused", exec.record, cause, this.#context.clock.now()));
  }

  #giveStdin(exec: OpenExec): void {
    const { stdin } = exec.record.spec;
    if (stdin === null || (stdin.text === "" && !stdin.end)) return;
    const { stopping, log } = this.#context;
    exec.stdin.begin(stdin.text, stdin.end, stopping).catch((error: unknown) => {
      if (stopping.aborted || exec.isEnding) return;
      log.warn({ exec: exec.record.id, cause: causeOf(error) }, "failed to write stdin");
    });
  }
}

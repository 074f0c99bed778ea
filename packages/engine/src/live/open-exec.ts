import type { Stage } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";
import { StdinFeed } from "./stdin-feed.ts";

/** An exec without an outcome. */
export interface OpenExec {
  record: ExecRecord;
  readonly live: LiveSandbox;
  readonly stdin: StdinFeed;
  /** Whether the record is stored. Until then neither the keeper nor any caller may see the exec. */
  stored: boolean;
  /** Whether the exec waits in the queue. */
  queued: boolean;
  /** Whether the keeper has acknowledged the exec. */
  acknowledged: boolean;
  /**
   * Whether the exec's journal was found, which proves that the keeper received it. Set for execs that an earlier
   * server started in a sandbox that is now in standby.
   */
  arrived: boolean;
  /** Whether this server or an earlier one sent a start request that has no answer but may have reached the keeper. */
  sent: boolean;
  /** Whether a start request is being sent. Only the loop that sends it decides whether to send it again. */
  dispatching: boolean;
  finishing: boolean;
  /** Whether the caller learns of the exec when it begins, and is expected to read its output from the start. */
  expectsReader: boolean;
  /** Whether the server has requested the end of the exec, because the keeper did not enforce its timeout. */
  overdue: boolean;
  /** How long the exec was observed running over one link. */
  seen: { link: Link; ms: number } | null;
  /** Aborted once the record is stored or the commit failed. */
  readonly storing: AbortController;
  /** Aborted when the keeper has received the exec, or when the exec has ended before that. */
  readonly begun: AbortController;
  /** Aborted when the exec has an outcome, or when it turns out not to exist because it could not be stored. */
  readonly over: AbortController;
}

/**
 * The abort reason of the three signals above. It is created once, because creating an error is expensive and every
 * exec uses three signals.
 */
export const REACHED = new Error("The exec has come that far.");

export function openExec(context: EngineContext, live: LiveSandbox, record: ExecRecord): OpenExec {
  return {
    record,
    live,
    stdin: new StdinFeed(context, live, record.id),
    stored: false,
    queued: false,
    acknowledged: false,
    arrived: false,
    sent: false,
    dispatching: false,
    finishing: false,
    expectsReader: false,
    overdue: false,
    seen: null,
    storing: new AbortController(),
    begun: new AbortController(),
    over: new AbortController(),
  };
}

/** Whether the exec's start request has yet to reach a keeper, for which the sandbox must be awake. */
export const isAwaited = ({ queued, acknowledged, arrived, finishing }: OpenExec): boolean =>
  !queued && !acknowledged && !arrived && !finishing;

export function stageOf({ queued, acknowledged, arrived }: OpenExec): Stage {
  if (queued) return "queued";
  return acknowledged || arrived ? "running" : "starting";
}

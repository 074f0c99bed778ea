import type { Cell } from "./cell.ts";
import type { Stage } from "./exec.ts";
import type { Link } from "./ports.ts";
import type { ExecRecord } from "./records.ts";
import { StdinFeed } from "./stdin-feed.ts";
import type { World } from "./world.ts";

/** An exec without an outcome. */
export interface OpenExec {
  record: ExecRecord;
  readonly cell: Cell;
  readonly stdin: StdinFeed;
  /** Its record is in the store; before that nobody may hear of it, the keeper least of all. */
  stored: boolean;
  /** Waits for its turn. */
  queued: boolean;
  /** The keeper has said that it has it. */
  acknowledged: boolean;
  /** Its journal was found, so its keeper has had it; of one that an earlier server started in a sandbox that sleeps. */
  arrived: boolean;
  /** A start of which no answer came may have reached the keeper, sent by this server or by an earlier one. */
  sent: boolean;
  /** A start is being sent; only that loop decides whether to send again. */
  dispatching: boolean;
  finishing: boolean;
  /** The server's own clock asked for its end, because the keeper's had not. */
  overdue: boolean;
  /** For how long it was seen to run over one link. */
  seen: { link: Link; ms: number } | null;
  /** Aborted once its record is stored, or could not be. */
  readonly storing: AbortController;
  /** Aborted when the keeper has it, or when it has ended without. */
  readonly begun: AbortController;
  /** Aborted when it has an outcome, or turned out not to exist. */
  readonly over: AbortController;
}

/** Why a stage's signal is aborted. Made once: every exec passes three stages, and making a reason is what costs. */
export const REACHED = new Error("The exec has come that far.");

export function openExec(world: World, cell: Cell, record: ExecRecord): OpenExec {
  return {
    record,
    cell,
    stdin: new StdinFeed(world, cell, record.id),
    stored: false,
    queued: false,
    acknowledged: false,
    arrived: false,
    sent: false,
    dispatching: false,
    finishing: false,
    overdue: false,
    seen: null,
    storing: new AbortController(),
    begun: new AbortController(),
    over: new AbortController(),
  };
}

/** Whether its start has yet to reach a keeper: then its sandbox must not sleep on. */
export const isAwaited = ({ queued, acknowledged, arrived, finishing }: OpenExec): boolean =>
  !queued && !acknowledged && !arrived && !finishing;

export function stageOf({ queued, acknowledged, arrived }: OpenExec): Stage {
  if (queued) return "queued";
  return acknowledged || arrived ? "running" : "starting";
}

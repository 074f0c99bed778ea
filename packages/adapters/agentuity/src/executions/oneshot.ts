import { isTerminal } from "@holdfast/contract";
import type { RouteContext } from "../../context.ts";
import type { Shown } from "./shapes.ts";

/**
 * Deletes a one-shot whose command has ended, when somebody is told of that: its client counts on it and deletes nothing. The
 * output outlives the sandbox. What fails here is taken up by the next who asks, and in the end by the sandbox's age.
 */
export function endOneshot({ engine, log }: RouteContext, { sandbox, details, first }: Shown): void {
  const isOver = details.mode === "oneshot" && first !== null && isTerminal(first.status);
  if (!isOver || sandbox.status === "stopping" || sandbox.status === "terminated") return;
  // Not the caller's: it goes on when that leaves.
  const { signal } = new AbortController();
  engine.sandboxes.remove(sandbox.id, { graceMs: 0, waitMs: 0, signal }).catch((error: unknown) => {
    log.warn({ sandbox: sandbox.id, err: error }, "a one-shot sandbox was not deleted");
  });
}

import { isTerminal } from "@holdfast/contract";
import type { RouteContext } from "@holdfast/server/adapter";
import type { Shown } from "../shapes.ts";

/**
 * Deletes a one-shot sandbox when a client learns that its command has ended, because the client itself never deletes
 * such a sandbox. The output is retained after the sandbox is deleted. If the deletion fails, the next request retries
 * it. If there is no further request, the sandbox is deleted at its maximum age.
 */
export function endOneshot({ engine, log }: RouteContext, { sandbox, details, first }: Shown): void {
  const isOver = details.mode === "oneshot" && first !== null && isTerminal(first.status);
  if (!isOver || sandbox.status === "stopping" || sandbox.status === "terminated") return;
  // The caller's signal is not used, so that the deletion continues if the caller disconnects.
  const { signal } = new AbortController();
  engine.sandboxes.remove(sandbox.id, { graceMs: 0, waitMs: 0, signal }).catch((error: unknown) => {
    log.warn({ sandbox: sandbox.id, err: error }, "failed to delete a one-shot sandbox");
  });
}

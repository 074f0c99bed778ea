import { causeOf } from "@holdfast/contract";
import type { EngineContext } from "../ports/context.ts";
import type { NewEvent } from "../ports/index.ts";

/**
 * Stores an event that belongs to no other change. Never rejects: a failure is only logged, because the work that the
 * event reports is already done.
 */
export async function recordEvent(
  { store, log }: Pick<EngineContext, "store" | "log">,
  event: NewEvent,
): Promise<void> {
  const { type, sandboxId, execId, driveId } = event;
  try {
    await store.commit({ changes: [], events: [event] });
  } catch (error) {
    const about = { sandbox: sandboxId, exec: execId, drive: driveId };
    log.error({ ...about, cause: causeOf(error) }, `failed to store the ${type} event`);
  }
}

import type { Alerts } from "./alerts/alerts.ts";
import type { Audit } from "./cleanup/audit.ts";
import type { Drives } from "./drives/drives.ts";
import { recordEvent } from "./events/record-event.ts";
import type { ExecLedger } from "./execs/exec-ledger.ts";
import type { Retention } from "./execs/exec-retention.ts";
import type { Checkpoints } from "./lifecycle/checkpoints.ts";
import type { Recovery } from "./lifecycle/recovery.ts";
import { LiveSandbox } from "./live/live-sandbox.ts";
import type { SandboxRegistry } from "./live/sandbox-registry.ts";
import type { Previews } from "./network/previews.ts";
import type { EngineContext } from "./ports/context.ts";
import type { ExecRecord } from "./ports/records.ts";
import type { Processes } from "./processes/processes.ts";

export interface StartupParts {
  registry: SandboxRegistry;
  alerts: Alerts;
  previews: Previews;
  drives: Drives;
  retention: Retention;
  processes: Processes;
  ledger: ExecLedger;
  recovery: Recovery;
  checkpoints: Checkpoints;
  audit: Audit;
}

/** Resumes all work that the previous server left, in a fixed order. Returns the number of sandboxes. */
export async function startUp(context: EngineContext, parts: StartupParts): Promise<number> {
  const { registry, alerts, previews, drives, retention, processes, ledger, recovery, checkpoints, audit } =
    parts;
  await alerts.load();
  await previews.load();
  const records = await context.store.liveSandboxes();
  const allLive = records.map((record) => new LiveSandbox(context, record, { isRecovering: true }));
  for (const live of allLive) registry.add(live);
  await drives.start();
  for (const live of allLive) await retention.adopt(live);
  await processes.load();
  await adoptExecs(context, parts);
  for (const live of allLive) if (live.isAsleep) await ledger.checkAsleep(live);
  await recovery.recover(allLive);
  for (const live of allLive) void checkpoints.tidy(live);
  await recordStart(context, allLive.length);
  await audit.run("start");
  return allLive.length;
}

/**
 * Adopts open execs. An exec whose sandbox is missing is abandoned, unless the record of that sandbox is unreadable:
 * such a sandbox may still run.
 */
async function adoptExecs(
  { store }: EngineContext,
  { registry, ledger }: Pick<StartupParts, "registry" | "ledger">,
): Promise<void> {
  const ownerless: ExecRecord[] = [];
  for (const record of await store.openExecs()) {
    const live = registry.live(record.sandboxId);
    if (live === undefined) ownerless.push(record);
    else ledger.adopt(live, record);
  }
  const unreadable = new Set(ownerless.length > 0 ? await store.unreadable() : []);
  for (const record of ownerless) if (!unreadable.has(record.sandboxId)) await ledger.abandon(record);
}

function recordStart(context: EngineContext, sandboxes: number): Promise<void> {
  const message = `The server started with ${sandboxes} sandboxes.`;
  return recordEvent(context, { at: context.clock.now(), type: "server.started", message });
}

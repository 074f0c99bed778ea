import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { type InstallationId, isSandboxId } from "@holdfast/contract";
import type { Clock } from "@holdfast/engine";
import { Cgroups } from "../proc/cgroup.ts";
import { hierarchyWith, readHierarchies } from "../proc/hierarchies.ts";

const FROZEN_MS = 2_000;
const PARENT = "holdfast-";

/**
 * Freezes all sandboxes of a state directory. A server that starts on a full disk calls this before it frees some space
 * to open its database, because running sandboxes could use up that space. The database is not open yet, so sandboxes
 * are found by their directories and cgroups. Returns a function that thaws the sandboxes that were running before.
 */
export async function freezeAll(stateDir: string, clock: Clock): Promise<() => void> {
  const place = join(stateDir, "sandboxes");
  const ids = existsSync(place) ? readdirSync(place).filter(isSandboxId) : [];
  const hierarchies = readHierarchies();
  const freezer = hierarchyWith(hierarchies, "freezer");
  const parents =
    freezer === undefined ? [] : readdirSync(freezer.dir).filter((name) => name.startsWith(PARENT));
  const running = parents.flatMap((parent) => {
    const cgroups = new Cgroups(hierarchies, parent.slice(PARENT.length) as InstallationId, clock);
    return ids
      .filter((id) => cgroups.members(id).length > 0 && !cgroups.isFrozen(id))
      .map((id) => ({ cgroups, id }));
  });
  const signal = AbortSignal.timeout(FROZEN_MS);
  await Promise.allSettled(running.map(({ cgroups, id }) => cgroups.freeze(id, signal)));
  return () => {
    for (const { cgroups, id } of running) cgroups.requestThaw(id);
  };
}

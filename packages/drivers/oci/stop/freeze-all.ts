import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { type InstallationId, isSandboxId } from "@holdfast/contract";
import type { Clock } from "@holdfast/engine";
import { Cgroups, hierarchyWith, readHierarchies } from "./cgroup.ts";

const FROZEN_MS = 2_000;
const PARENT = "holdfast-";

/**
 * Freezes the sandboxes of a state directory for the moment in which a server takes room for itself on a full disk: one
 * that goes on filling it would be faster. They are found by their ids alone, because no database can be asked. Gives what
 * lets those go on that were not frozen before.
 */
export async function haltSandboxes(stateDir: string, clock: Clock): Promise<() => void> {
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
    for (const { cgroups, id } of running) cgroups.unfreeze(id);
  };
}

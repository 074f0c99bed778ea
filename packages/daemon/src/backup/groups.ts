import type { DriveId, SandboxId } from "@holdfast/contract";
import type { DriveRecord, SandboxRecord } from "@holdfast/engine";

/**
 * Sandboxes and drives that are copied at the same moment, so that the copies of the drives match those of the
 * sandboxes that write to them.
 */
export interface Group {
  sandboxes: SandboxId[];
  drives: DriveId[];
}

/** Divides sandboxes and drives into groups, so that a sandbox and all drives that it mounts are in the same group. */
export function groupsOf(
  sandboxes: readonly Pick<SandboxRecord, "id" | "mounts">[],
  drives: readonly Pick<DriveRecord, "id">[],
): Group[] {
  const group = new Map<string, Group>();
  for (const { id } of drives) group.set(id, { sandboxes: [], drives: [id] });
  for (const { id, mounts } of sandboxes) {
    const own: Group = { sandboxes: [id], drives: [] };
    group.set(id, own);
    for (const { driveId } of mounts) {
      const other = group.get(driveId);
      const mine = group.get(id) ?? own;
      if (other === undefined || other === mine) continue;
      mine.sandboxes.push(...other.sandboxes);
      mine.drives.push(...other.drives);
      for (const member of [...other.sandboxes, ...other.drives]) group.set(member, mine);
    }
  }
  return [...new Set(group.values())];
}

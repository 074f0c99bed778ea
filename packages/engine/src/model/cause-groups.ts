import type { Cause } from "@holdfast/contract";

/**
 * Causes that keep a running sandbox from serving because its instance no longer exists. Their codes, like those of the
 * groups below, come from `status.ts` and from observations.
 */
export const CAUSES_GONE: ReadonlySet<string> = new Set([
  "keeper_died",
  "keeper_missing",
  "instance_replaced",
]);
export const CAUSES_SILENT: ReadonlySet<string> = new Set(["keeper_stopped", "keeper_silent", "link_down"]);
/**
 * Causes that mean that the host lacks files or file systems which a running sandbox needs. A restart can't bring them
 * back: ending the instance would lose the data that its processes still hold, and the next instance could not start.
 */
const CAUSES_FILES: ReadonlySet<string> = new Set([
  "files_gone",
  "control_gone",
  "disk_gone",
  "host_disk_failed",
]);
export const areFilesGone = (cause: Cause | null): cause is Cause =>
  cause !== null && CAUSES_FILES.has(cause.code);

export const CAUSES_MOUNT: ReadonlySet<string> = new Set([
  "root_unmounted",
  "disk_unmounted",
  "mount_broken",
]);

/** Why a running sandbox does not serve, by what is to blame. The codes are those of `status.ts` and of observations. */
export const CAUSES_GONE: ReadonlySet<string> = new Set([
  "keeper_died",
  "keeper_missing",
  "instance_replaced",
]);
export const CAUSES_SILENT: ReadonlySet<string> = new Set(["keeper_stopped", "keeper_silent", "link_down"]);
export const CAUSES_MOUNT: ReadonlySet<string> = new Set([
  "root_unmounted",
  "disk_unmounted",
  "mount_broken",
]);

import { type DriveId, type InstallationId, isSandboxId, type SandboxId } from "@holdfast/contract";
import {
  allPids,
  isRootOutside,
  readCgroups,
  readEnvironment,
  readExecutable,
  readLiving,
  readNamespacePid,
} from "./processes.ts";

/** In the environment of a helper: whose it is. */
export const HELPER_MARK = "HOLDFAST_HELPER";

export const helperMark = (installation: InstallationId, id: SandboxId | DriveId): string =>
  `${installation}/${id}`;

export interface MarkedProcess {
  sandboxId: SandboxId;
  pid: number;
  startTime: string;
  role: "keeper" | "helper";
}

/**
 * What a marked process can be running. No other's environment is read: that waits for the process's memory, which one
 * that hangs in the kernel may never give.
 */
const PROGRAMS =
  /(^|\/)(keeper|porter|[^/]*(runc|crun)[^/]*|criu|sh|bash|dash|busybox|mke2fs)( \(deleted\))?$/;

/**
 * The processes that carry this installation's marker, wherever they are. A command in a sandbox can put any marker into
 * its environment, so only those count that no command can be: PID 1 of a namespace, and root of the host.
 */
export function findMarked(installation: InstallationId): MarkedProcess[] {
  return allPids().flatMap((pid) => {
    const marked = markOf(pid, installation);
    const stat = marked === null ? null : readLiving(pid);
    return marked === null || stat === null ? [] : [{ ...marked, pid, startTime: stat.startTime }];
  });
}

function markOf(pid: number, installation: InstallationId) {
  if (!PROGRAMS.test(readExecutable(pid) ?? "")) return null;
  const place = readNamespacePid(pid);
  if (place === null) return null;
  const outside = isRootOutside(pid);
  if (!outside && (place.depth < 2 || place.pid !== 1)) return null;
  const environment = readEnvironment(pid);
  if (environment === null) return null;
  const [owner, helped = ""] = environment.get(HELPER_MARK)?.split("/") ?? [];
  if (outside) return owner === installation && isSandboxId(helped) ? mark(helped, "helper") : null;
  const sandbox = placeOf(pid, installation) ?? environment.get("HOLDFAST_SANDBOX") ?? "";
  const ours = environment.get("HOLDFAST_INSTALLATION") === installation && isSandboxId(sandbox);
  return ours ? mark(sandbox, "keeper") : null;
}

/** By the cgroup that it is in, its own or its helper's: one that is just being restored as a fork has its name to come. */
function placeOf(pid: number, installation: InstallationId): string | null {
  const place = new RegExp(`:/holdfast-${installation}/(?:helper-)?(sbx_[a-z0-9]+)$`, "m");
  return place.exec(readCgroups(pid) ?? "")?.[1] ?? null;
}

const mark = (sandboxId: SandboxId, role: MarkedProcess["role"]) => ({ sandboxId, role });

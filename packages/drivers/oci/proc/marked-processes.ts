import { type DriveId, type InstallationId, isSandboxId, type SandboxId } from "@holdfast/contract";
import {
  allPids,
  isRootOutside,
  readCgroups,
  readEnvironment,
  readExecutable,
  readLiving,
  readNamespacePid,
} from "./proc-files.ts";

/** Environment variable of a helper process. Its value names the installation and the sandbox or drive it works for. */
export const HELPER_MARK = "HOLDFAST_HELPER";

export const helperMark = (installation: InstallationId, id: SandboxId | DriveId): string =>
  `${installation}/${id}`;

interface MarkedProcess {
  sandboxId: SandboxId;
  pid: number;
  startTime: string;
  role: "keeper" | "helper";
}

/**
 * Executables that a marked process can run. The environments of all other processes are not read: reading
 * /proc/PID/environ needs the process's memory lock, and blocks forever if the process hangs in the kernel with that
 * lock.
 */
const PROGRAMS =
  /(^|\/)(keeper|porter|[^/]*(runc|crun)[^/]*|criu|sh|bash|dash|busybox|mke2fs)( \(deleted\))?$/;

/**
 * Finds all processes on the host that carry this installation's marker. A command in a sandbox can put any marker into
 * its own environment, so only processes that can't be such a command are returned: PID 1 of a pid namespace, and
 * processes of the host's root user.
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

/**
 * Reads the sandbox id from the name of the process's cgroup. The cgroup takes precedence over the environment: during
 * the restore of a fork, the environment of the fork's keeper still names the source sandbox.
 */
function placeOf(pid: number, installation: InstallationId): string | null {
  const place = new RegExp(`:/holdfast-${installation}/(?:helper-)?(sbx_[a-z0-9]+)$`, "m");
  return place.exec(readCgroups(pid) ?? "")?.[1] ?? null;
}

const mark = (sandboxId: SandboxId, role: MarkedProcess["role"]) => ({ sandboxId, role });

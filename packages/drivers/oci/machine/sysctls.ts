import { execFile } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { promisify } from "node:util";
import type { Log } from "@holdfast/engine";

const INOTIFY_INSTANCES = "/proc/sys/fs/inotify/max_user_instances";
/**
 * Number of inotify instances that the host should allow per user. It is high, because all sandboxes share the same
 * host users.
 */
export const INOTIFY_WANTED = 8_192;

export const inotifyInstances = (): number => Number(readFileSync(INOTIFY_INSTANCES, "utf8"));

/**
 * Raises the limit on inotify instances to `INOTIFY_WANTED`; a higher limit stays. If the host refuses, sandboxes still
 * run with the lower limit, and `checkHost` reports it.
 */
export function raiseInotify(log: Log): void {
  try {
    const before = inotifyInstances();
    if (before >= INOTIFY_WANTED) return;
    writeFileSync(INOTIFY_INSTANCES, String(INOTIFY_WANTED));
    log.info({ before, after: INOTIFY_WANTED }, "raised fs.inotify.max_user_instances");
  } catch (error) {
    log.warn({ error: String(error) }, "fs.inotify.max_user_instances could not be raised");
  }
}

/**
 * Makes the kernel delete a System V shared memory segment as soon as no process uses it. Without this setting an
 * unused segment stays and counts against the sandbox's memory limit. When the limit is reached, the OOM killer ends
 * processes, but that frees no unused segment. So a few unused segments could make the OOM killer end all processes,
 * the keeper included.
 */
export const IPC_SYSCTL = { "kernel.shm_rmid_forced": "1" } as const;

const SYSCTL_MS = 5_000;
const WRITE = "echo 1 > /proc/sys/kernel/shm_rmid_forced";

/**
 * Returns whether the root user of a user namespace may set the sysctl in its own IPC namespace. Older kernels allow
 * that only to the host's root user. The runtime sets the sysctl with the rights of the namespace's root user.
 */
export async function canSetIpcInside(): Promise<boolean> {
  const argv = ["--user", "--map-root-user", "--ipc", "/bin/sh", "-c", WRITE];
  try {
    await promisify(execFile)("unshare", argv, { timeout: SYSCTL_MS });
    return true;
  } catch {
    return false;
  }
}

/**
 * Sets the sysctl in the IPC namespace of a keeper that has not run a command yet. Tries as the host's root user first,
 * which older kernels require, then as the root user of the keeper's user namespace, which newer kernels require.
 */
export async function setIpcFromOutside(pid: number, signal: AbortSignal): Promise<void> {
  const as = (...namespaces: string[]) =>
    promisify(execFile)("nsenter", [`--target=${pid}`, ...namespaces, "/bin/sh", "-c", WRITE], {
      timeout: SYSCTL_MS,
      signal,
    });
  await as("--ipc").catch(() => as("--user", "--ipc"));
}

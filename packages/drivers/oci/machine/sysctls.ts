import { execFile } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { promisify } from "node:util";
import type { Log } from "@holdfast/engine";

const INOTIFY_INSTANCES = "/proc/sys/fs/inotify/max_user_instances";
/** The kernel counts these per user of the host, and all sandboxes are the same ones. */
export const INOTIFY_WANTED = 8_192;

export const inotifyInstances = (): number => Number(readFileSync(INOTIFY_INSTANCES, "utf8"));

/** Never lowers it; a host on which it can't be changed serves as well, and `checkHost` says so. */
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
 * A System V segment that nobody uses stays, and stays charged to its sandbox, with no process left that killing could
 * free it with: a few of them are the end of the keeper. This has each go with its last user.
 */
export const IPC_SYSCTL = { "kernel.shm_rmid_forced": "1" } as const;

const SYSCTL_MS = 5_000;
const WRITE = "echo 1 > /proc/sys/kernel/shm_rmid_forced";

/** Whether a mapped root may set it in its namespace, as the runtime would: older kernels keep it for the host's. */
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
 * Sets it in the namespace of a process that has run no command yet. Whose it is to set depends on the kernel: the
 * host's root's on older ones, the namespace's own on newer.
 */
export async function setIpcFromOutside(pid: number, signal: AbortSignal): Promise<void> {
  const as = (...namespaces: string[]) =>
    promisify(execFile)("nsenter", [`--target=${pid}`, ...namespaces, "/bin/sh", "-c", WRITE], {
      timeout: SYSCTL_MS,
      signal,
    });
  await as("--ipc").catch(() => as("--user", "--ipc"));
}

import type { External } from "../drives/bound-mounts.ts";

interface Common {
  binary: string;
  /** Directory that holds CRIU's images and nothing else. */
  images: string;
  /** Directory for CRIU's log and its other working files. */
  work: string;
  /** The sandbox's root, as CRIU sees it. */
  root: string;
  externals: readonly External[];
}

interface DumpOrder extends Common {
  pid: number;
  /** The sandbox's cgroup in the hierarchy of the freezer controller. */
  freezer: string;
  /** The cgroup v1 hierarchies in which the sandbox has a cgroup; empty on a cgroup v2 host. */
  controllers: readonly string[];
}

interface RestoreCall extends Common {
  /** File to which CRIU writes the pid of the restored first process. It must not exist yet. */
  pidFile: string;
  /** Action script, which CRIU runs at every stage of the restore. */
  script: string;
  /**
   * Paths for the restored cgroups. Empty if the cgroups get the paths that are stored in CRIU's images. The cgroups of
   * a fork need other paths; see `restoreRoots`.
   */
  cgroups: readonly string[];
}

export const LOG_FILE = "log";

/**
 * Maximum size of a deleted file that a process still has open. CRIU stores the contents of such a file in its images;
 * a larger one makes the dump fail.
 */
const GHOST_LIMIT = "256M";

/**
 * Options that dump and restore share:
 * - Cgroups that are missing at the restore are created with their limits; existing cgroups are left unchanged.
 * - TCP connections are restored as closed. A sandbox has only a loopback interface, so both ends of each connection
 *   are inside.
 * - The network namespace is restored empty; the action script sets it up.
 * - CRIU's configuration files on the host are not read.
 */
const common = ({ images, work, root }: Common): string[] => [
  ...["--no-default-config", "--images-dir", images, "--work-dir", work, "--log-file", LOG_FILE, "-v1"],
  ...["--root", root, "--manage-cgroups=soft", "--tcp-close", "--file-locks", "--empty-ns", "net"],
];

/**
 * Builds the command line of a dump. CRIU stores only cgroups of hierarchies in which the sandbox has its own cgroup.
 * In the other hierarchies the sandbox is in the root cgroup: there CRIU would store all cgroups below the root, and at
 * the restore it would create the cgroups of other sandboxes too.
 *
 * The process tree is frozen before the dump, and CRIU leaves it frozen. The network is not locked: a network lock
 * protects connections to peers outside the tree, and a sandbox has none. Connections that a listener has not accepted
 * yet are not stored; they would be restored as closed anyway.
 */
export const dumpArgv = (order: DumpOrder): string[] => [
  ...[order.binary, "dump", "--tree", String(order.pid), ...common(order)],
  ...["--leave-running", "--freeze-cgroup", order.freezer, "--network-lock", "skip"],
  ...["--skip-in-flight", "--ghost-limit", GHOST_LIMIT],
  ...order.controllers.flatMap((name) => ["--cgroup-dump-controller", name]),
  ...order.externals.flatMap(({ key, at }) => ["--external", `mnt[${at}]:${key}`]),
];

export const restoreArgv = (order: RestoreCall): string[] => [
  ...[order.binary, "restore", ...common(order)],
  ...["--restore-detached", "--pidfile", order.pidFile, "--action-script", order.script],
  ...order.cgroups.flatMap((root) => ["--cgroup-root", root]),
  ...order.externals.flatMap(({ key, from }) => ["--external", `mnt[${key}]:${from}`]),
];

/** Patterns that find an error in CRIU's log, each with an explanation of the error for the sandbox's owner. */
const MEANINGS: readonly [RegExp, string][] = [
  [/ctty inheritance/, "a program in a terminal has opened /dev/tty"],
  [/External socket is used|half of stream unix|closed in-flight/, "a connection is half open"],
  [/ghost file .* is too|Can't dump ghost file/, "a program has a large deleted file open"],
  [/No space left on device/, "the host's disk is full"],
  [
    /Can't open file .* on restore|Can't open cwd|Can't find path|has bad (size|mode)/,
    "a file or directory that a program had open was deleted or replaced",
  ],
];

export const meaningOf = (log: string): string | null =>
  MEANINGS.find(([pattern]) => pattern.test(log))?.[1] ?? null;

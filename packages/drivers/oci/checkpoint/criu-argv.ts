/** One directory or file of the host that is mounted into a sandbox, under the name that its images know it by. */
export interface External {
  key: string;
  /** Where it is mounted inside. */
  at: string;
  /** Where it is on the host, as CRIU sees it. */
  from: string;
}

interface Common {
  binary: string;
  /** Where the images are, and nothing else. */
  images: string;
  /** Where the log and the rest of its papers go. */
  work: string;
  /** The sandbox's root, as CRIU sees it. */
  root: string;
  externals: readonly External[];
}

export interface DumpOrder extends Common {
  pid: number;
  /** The sandbox's cgroup in the hierarchy that freezes. */
  freezer: string;
  /** The hierarchies of version 1 in which it has cgroups; none on a host of version 2. */
  controllers: readonly string[];
}

export interface RestoreCall extends Common {
  /** Where the new pid is written; must not be there yet. */
  pidFile: string;
  /** Run at every stage. */
  script: string;
  /** Where the cgroups of the images are made, where that is not where they were. */
  cgroup: string | null;
}

export const LOG_FILE = "log";

/** What of a file that was deleted, and is still open, goes into the images. */
const GHOST_LIMIT = "256M";

/**
 * The same on both sides. Cgroups: made anew with their limits where they are missing, left alone where they are there.
 * TCP connections come back closed: the network inside has nothing but a loopback, so its two ends are both in the tree. The
 * network namespace comes back empty and is set up by the script. No configuration of the host's is read.
 */
const common = ({ images, work, root }: Common): string[] => [
  ...["--no-default-config", "--images-dir", images, "--work-dir", work, "--log-file", LOG_FILE, "-v1"],
  ...["--root", root, "--manage-cgroups=soft", "--tcp-close", "--file-locks", "--empty-ns", "net"],
];

/**
 * Cgroups are written only of hierarchies in which the sandbox has its own: in another it is in the root, and that with all
 * below it, every other sandbox's included, would be made anew by the restore.
 *
 * The tree is frozen, and is frozen again before CRIU lets it go: nothing in it runs on. The network is not locked: that is
 * for peers that are not part of the tree, and there are none. Connections that a listener has not taken yet are left out:
 * it finds none of them afterwards, as it would find those that it took closed.
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
  ...(order.cgroup === null ? [] : ["--cgroup-root", order.cgroup]),
  ...order.externals.flatMap(({ key, from }) => ["--external", `mnt[${key}]:${from}`]),
];

/** What CRIU's last words mean to the sandbox's owner, as far as that is known. */
const MEANINGS: readonly [RegExp, string][] = [
  [/ctty inheritance/, "a program in a terminal has opened it by the name /dev/tty"],
  [/External socket is used|half of stream unix|closed in-flight/, "a connection is half open"],
  [/ghost file .* is too|Can't dump ghost file/, "a program holds a large file that was deleted"],
  [/No space left on device/, "the host's disk is full"],
  [
    /Can't open file .* on restore|Can't open cwd|Can't find path|has bad (size|mode)/,
    "a file or directory that a program had open is not there any more, or is another one",
  ],
];

export const meaningOf = (log: string): string | null =>
  MEANINGS.find(([pattern]) => pattern.test(log))?.[1] ?? null;

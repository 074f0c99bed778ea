import type { InstallationId, Resources, SandboxId } from "@holdfast/contract";
import { resourceLimits } from "./cgroup.ts";
import type { RuntimeFacts } from "./host.ts";
import { seccompProfile } from "./seccomp.ts";

/** The keeper's own; it takes SYS_PTRACE and more away from the commands that it starts. */
const CAPABILITIES = [
  "CAP_CHOWN",
  "CAP_DAC_OVERRIDE",
  "CAP_FOWNER",
  "CAP_FSETID",
  "CAP_KILL",
  "CAP_SETGID",
  "CAP_SETUID",
  "CAP_SETPCAP",
  "CAP_SETFCAP",
  "CAP_NET_BIND_SERVICE",
  "CAP_SYS_CHROOT",
  "CAP_SYS_PTRACE",
];

const NAMESPACES = ["user", "pid", "mount", "ipc", "uts", "network", "cgroup"];

export const KEEPER_PATH = "/.holdfast/keeper";
const HOLDFAST_DIR = "/.holdfast";
const CONTROL_DIR = "/.holdfast/control";

/** Terminals come out of a number that the whole machine shares. */
const TERMINALS_MAX = 256;

interface BundleMount {
  destination: string;
  type: string;
  source: string;
  options: string[];
}

const bind = (source: string, destination: string, ...options: string[]): BundleMount => ({
  destination,
  type: "bind",
  source,
  options: ["rbind", "nosuid", "nodev", ...options],
});

/**
 * crun forgets the flags of a bind that is writable, unless they are asked for as recursive ones. Not for runc, which
 * would then need a kernel that can do that.
 */
const CRUN_CONTROL_FLAGS = ["noexec", "rnosuid", "rnodev", "rnoexec"];

/** Few mounts: each costs launch time, and time again whenever memory goes to disk and back. */
const kernelMounts = (shmMb: number): BundleMount[] => [
  { destination: "/proc", type: "proc", source: "proc", options: ["nosuid", "noexec", "nodev"] },
  {
    destination: "/dev",
    type: "tmpfs",
    source: "tmpfs",
    options: ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
  },
  {
    destination: "/dev/pts",
    type: "devpts",
    source: "devpts",
    options: [
      "nosuid",
      "noexec",
      "newinstance",
      "ptmxmode=0666",
      "mode=0620",
      "gid=5",
      `max=${TERMINALS_MAX}`,
    ],
  },
  {
    destination: "/dev/shm",
    type: "tmpfs",
    source: "shm",
    options: ["nosuid", "noexec", "nodev", "mode=1777", `size=${shmMb}m`],
  },
];

/** The same for every sandbox of a driver. */
export interface BundleHost {
  runtime: RuntimeFacts["name"];
  installation: InstallationId;
  idBase: number;
  idCount: number;
  swapLimited: boolean;
  cpus: number;
  openFilesMax: number;
  oomScoreAdj: number;
  /** What is set in the sandbox's own namespaces. */
  sysctl: Readonly<Record<string, string>>;
}

export interface BundleOrder {
  sandboxId: SandboxId;
  hostname: string;
  resources: Resources;
  cgroupsPath: string;
  /** Paths of the host as the runtime sees them. */
  root: string;
  keeperDir: string;
  control: string;
  /** Directories of the host that the image shows, and the mount points below them; parents first. */
  hostDirs: readonly string[];
}

/**
 * A mapped root may not bind a directory without what is mounted below it, and read-only holds for one mount at a time:
 * each mount below is bound again. The keeper's directory is a mount itself, so that not even the sandbox's root can move it out
 * of the way.
 */
const mountsFor = (order: BundleOrder, flags: readonly string[]): BundleMount[] => [
  ...kernelMounts(Math.max(1, Math.floor(order.resources.memoryMb / 2))),
  ...order.hostDirs.map((dir) => bind(dir, dir, "ro")),
  bind(order.keeperDir, HOLDFAST_DIR, "ro"),
  bind(order.control, CONTROL_DIR, "rw", ...flags),
];

/**
 * Environment and cgroup path carry installation and sandbox only: a restore brings both back, for a later generation.
 * The network namespace is the runtime's, which raises the loopback in it.
 */
export function bundleMaker(host: BundleHost): (order: BundleOrder) => string {
  const seccomp = seccompProfile();
  const controlFlags = host.runtime === "crun" ? CRUN_CONTROL_FLAGS : ["noexec"];
  const idMap = [{ containerID: 0, hostID: host.idBase, size: host.idCount }];
  return (order) =>
    JSON.stringify({
      ociVersion: "1.0.2",
      process: {
        terminal: false,
        user: { uid: 0, gid: 0 },
        args: [KEEPER_PATH],
        env: [
          `HOLDFAST_INSTALLATION=${host.installation}`,
          `HOLDFAST_SANDBOX=${order.sandboxId}`,
          `HOLDFAST_CONTROL=${CONTROL_DIR}`,
        ],
        cwd: "/",
        capabilities: { bounding: CAPABILITIES, effective: CAPABILITIES, permitted: CAPABILITIES },
        rlimits: [
          { type: "RLIMIT_NOFILE", soft: host.openFilesMax, hard: host.openFilesMax },
          { type: "RLIMIT_CORE", soft: 0, hard: 0 },
        ],
        noNewPrivileges: true,
        oomScoreAdj: host.oomScoreAdj,
      },
      root: { path: order.root, readonly: false },
      hostname: order.hostname,
      mounts: mountsFor(order, controlFlags),
      linux: {
        uidMappings: idMap,
        gidMappings: idMap,
        namespaces: NAMESPACES.map((type) => ({ type })),
        cgroupsPath: order.cgroupsPath,
        sysctl: host.sysctl,
        resources: resourceLimits(order.resources, host),
        seccomp,
        maskedPaths: ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
        readonlyPaths: ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
      },
    });
}

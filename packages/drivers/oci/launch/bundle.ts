import type { InstallationId } from "@holdfast/contract";
import type { RuntimeFacts } from "../machine/host-facts.ts";
import type { BundleOrder } from "../machine/machine.ts";
import { resourceLimits } from "../proc/cgroup.ts";
import { seccompProfile } from "./seccomp.ts";

/**
 * Linux capabilities of the keeper. For the commands that it starts, the keeper drops CAP_SYS_PTRACE and some others.
 */
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

const KEEPER_PATH = "/.holdfast/keeper";
const HOLDFAST_DIR = "/.holdfast";
const CONTROL_DIR = "/.holdfast/control";

/**
 * Maximum number of terminals in one sandbox. Without it one sandbox could use up the terminals of all sandboxes,
 * because the host limits their total number (`kernel.pty.max`).
 */
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
 * Mount flags of the control directory if the runtime is crun. On a writable bind mount, crun ignores plain flags such
 * as `nosuid`, and applies recursive flags such as `rnosuid`. runc gets only plain flags, because it applies recursive
 * flags with `mount_setattr`, which older kernels lack.
 */
const CRUN_CONTROL_FLAGS = ["noexec", "rnosuid", "rnodev", "rnoexec"];

/**
 * The virtual file systems that every sandbox has. There are only a few, because each mount slows down launch, dump and
 * restore.
 */
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

/** Facts and settings of the host that are the same for every sandbox. */
interface BundleHost {
  runtime: RuntimeFacts["name"];
  installation: InstallationId;
  idBase: number;
  idCount: number;
  swapLimited: boolean;
  cpus: number;
  openFilesMax: number;
  oomScoreAdj: number;
  /** Kernel parameters to set in the sandbox's own namespaces. */
  sysctl: Readonly<Record<string, string>>;
}

/**
 * Returns the mounts of a sandbox. `hostDirs` lists each mount below a host directory separately. The reason: in a user
 * namespace a directory can be bound only together with its submounts, but `ro` makes only the top mount read-only, so
 * each submount is bound once more. The keeper's directory is a separate mount, so that not even the sandbox's root can
 * move it away.
 */
const mountsFor = (order: BundleOrder, flags: readonly string[]): BundleMount[] => [
  ...kernelMounts(Math.max(1, Math.floor(order.resources.memoryMb / 2))),
  ...order.hostDirs.map((dir) => bind(dir, dir, "ro")),
  bind(order.keeperDir, HOLDFAST_DIR, "ro"),
  bind(order.control, CONTROL_DIR, "rw", ...flags),
];

/**
 * Returns a function that builds the OCI configuration of a sandbox as JSON. The environment and the cgroup path
 * contain the ids of installation and sandbox, but not the generation: a restore keeps environment and cgroup path,
 * although the restored instance has a later generation. The runtime creates the network namespace and brings up its
 * loopback.
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

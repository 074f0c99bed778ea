import { existsSync, readFileSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { tmpdir } from "node:os";
import { findCriu } from "./checkpoint/find-criu.ts";
import { missingForDisks } from "./files/disk.ts";
import { describeClaim, freeRange, overlapping, readClaims, rememberedRange } from "./machine/id-range.ts";
import { factsFile, idsFile } from "./machine/layout.ts";
import { findBinary, versionOf } from "./machine/runtime.ts";
import { type RuntimeRecord, readRecord } from "./machine/sandbox-notes.ts";
import { INOTIFY_WANTED, inotifyInstances } from "./machine/sysctls.ts";
import {
  describeOutside,
  hierarchyWith,
  isOutsideNamespace,
  limitsSwap,
  NEEDED_CONTROLLERS,
  readHierarchies,
} from "./proc/hierarchies.ts";
import { readMounts, sharesMounts } from "./proc/mount-table.ts";
import { readBootId } from "./proc/proc-files.ts";

/** Result of one check of this host. */
export interface HostCheck {
  name: string;
  ok: boolean;
  /** Whether sandboxes need this check to succeed. */
  required: boolean;
  found: string;
  /** How to fix a failed check; empty if the check succeeded. */
  fix: string;
}

interface Finding {
  ok: boolean;
  found: string;
  /** How to fix the problem that was found, if the check's general fix does not apply. */
  fix?: string;
}

interface Question {
  name: string;
  required: boolean;
  fix: string;
  look: () => Promise<Finding> | Finding;
}

const GIB = 1_073_741_824;
const DISK_WANTED = 2 * GIB;

const read = (path: string): string => (existsSync(path) ? readFileSync(path, "utf8") : "");
const finding = (ok: boolean, found: string): Finding => ({ ok, found });

async function program(name: string): Promise<Finding> {
  const binary = findBinary(name);
  if (binary === null) return finding(false, "not installed");
  return finding(true, `${name} ${await versionOf(binary).catch(() => "of unknown version")}`);
}

async function runtimes(stateDir: string): Promise<Finding> {
  const found = (await Promise.all([program("crun"), program("runc")])).filter(({ ok }) => ok);
  if (found.length === 0) return finding(false, "neither crun nor runc");
  const proven = knownRuntime(stateDir);
  const words = found.map((each) => each.found);
  return finding(true, [...words, ...(proven === null ? [] : [`${proven} is proven to work`])].join(", "));
}

/**
 * Returns the runtime with which a server on this state directory has started a trial instance since the host booted;
 * null if there is none.
 */
function knownRuntime(stateDir: string): string | null {
  const known = readRecord(factsFile(stateDir)) as RuntimeRecord | null | "unreadable";
  if (known === null || known === "unreadable" || !known.key.includes(readBootId())) return null;
  return known.runtime.name;
}

function controllers(): Finding {
  const hierarchies = readHierarchies();
  const where = NEEDED_CONTROLLERS.map((name) => ({ name, at: hierarchyWith(hierarchies, name) }));
  const missing = where.filter(({ at }) => at === undefined).map(({ name }) => name);
  if (missing.length > 0) return finding(false, `missing: ${missing.join(", ")}`);
  const versions = new Set(hierarchies.map(({ version }) => version));
  const kind = versions.size === 2 ? "hybrid" : versions.has(1) ? "v1" : "v2";
  const roots = new Set(where.flatMap(({ at }) => (at === undefined || at.root === "/" ? [] : [at.root])));
  const below = roots.size === 0 ? "" : `; below the cgroup ${[...roots].join(", ")}, as in a container`;
  return finding(
    true,
    `${kind}: ${where.map(({ name, at }) => `${name} on v${at?.version}`).join(", ")}${below}`,
  );
}

/**
 * Reports whether mounts of the host propagate. Both answers are ok: the runtime gets private copies of the mounts, so
 * propagation does not affect sandboxes or their standby.
 */
const propagation = (): Finding => {
  const isShared = sharesMounts(readMounts());
  return finding(true, isShared ? "shared; sandboxes get private mounts" : "private");
};

async function memoryStandby(): Promise<Finding> {
  const outside = readHierarchies().find(isOutsideNamespace);
  if (outside !== undefined)
    return { ok: false, found: "no, only files", fix: sentenceOf(describeOutside(outside)) };
  const criu = await findCriu();
  if ("missing" in criu) return { ok: false, found: `no, only files: ${criu.missing}`, fix: criu.fix };
  return finding(true, `works, with criu ${criu.version} (${criu.path})`);
}

const sentenceOf = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function userNamespaces(): Finding {
  const max = Number(read("/proc/sys/user/max_user_namespaces") || 0);
  const available = existsSync("/proc/self/ns/user") && max > 0;
  return finding(available, available ? `up to ${max}` : "switched off");
}

async function disk(stateDir: string): Promise<Finding> {
  const { bavail, bsize } = await statfs(existsSync(stateDir) ? stateDir : tmpdir());
  return finding(bavail * bsize >= DISK_WANTED, `${((bavail * bsize) / GIB).toFixed(1)} GiB free`);
}

const overlay = (): Finding => {
  const known = /\boverlay$/m.test(read("/proc/filesystems")) || existsSync("/sys/module/overlay");
  return finding(known, known ? "in the kernel" : "not in the kernel");
};

/** Checks the id range of the state directory's files. If no range has been chosen yet, checks the first free range. */
function ids(stateDir: string): Finding {
  const claims = readClaims();
  const range = rememberedRange(idsFile(stateDir)) ?? freeRange(claims);
  const claim = overlapping(range, claims);
  if (claim !== undefined) return finding(false, describeClaim(range, claim));
  return finding(
    true,
    `${range.base} to ${range.base + range.count - 1}, claimed by no other user of this host`,
  );
}

const seccomp = (): Finding => {
  const known = /^Seccomp:/m.test(read("/proc/self/status"));
  return finding(known, known ? "in the kernel" : "not in the kernel");
};

const questions = (stateDir: string): Question[] => [
  {
    name: "root",
    required: true,
    fix: "Run the server as root: mounts, cgroups and id maps need it.",
    look: () => finding(process.getuid?.() === 0, `uid ${process.getuid?.()}`),
  },
  {
    name: "user namespaces",
    required: true,
    fix: "Set the sysctl user.max_user_namespaces to at least 1000.",
    look: userNamespaces,
  },
  {
    name: "sandbox ids",
    required: true,
    fix: "Remove the overlapping range from /etc/subuid and /etc/subgid, or use a new state directory.",
    look: () => ids(stateDir),
  },
  { name: "overlay", required: true, fix: "Load it with 'modprobe overlay'.", look: overlay },
  {
    name: "cgroup controllers",
    required: true,
    fix: "Mount cgroups with the controllers cpu, memory, pids and, on version 1, freezer.",
    look: controllers,
  },
  {
    name: "swap limit",
    required: false,
    fix: "Boot with swapaccount=1, or without swap: a sandbox's swap is not limited otherwise.",
    look: () => {
      const counted = limitsSwap(readHierarchies());
      return finding(counted, counted ? "counted into the memory limit" : "not counted");
    },
  },
  { name: "seccomp", required: true, fix: "Use a kernel built with CONFIG_SECCOMP_FILTER.", look: seccomp },
  {
    name: "container runtime",
    required: true,
    fix: "Install crun or runc from your distribution.",
    look: () => runtimes(stateDir),
  },
  {
    name: "disk",
    required: true,
    fix: "Free at least 2 GiB for the state directory.",
    look: () => disk(stateDir),
  },
  {
    name: "disk limits",
    required: false,
    fix: "Install e2fsprogs and load the module with 'modprobe loop': sandboxes that ask for diskMb are refused otherwise.",
    look: () => {
      const missing = missingForDisks();
      return finding(missing === null, missing ?? "mke2fs and loop devices");
    },
  },
  {
    name: "inotify instances",
    required: false,
    fix: `Raise the sysctl fs.inotify.max_user_instances to ${INOTIFY_WANTED} or more: all sandboxes share it. The server raises it at its start if the host allows that.`,
    look: () => {
      const max = inotifyInstances();
      return finding(max >= INOTIFY_WANTED, String(max));
    },
  },
  { name: "mount propagation", required: false, fix: "", look: propagation },
  { name: "memory standby", required: false, fix: "Install CRIU 4 or newer.", look: memoryStandby },
  {
    name: "runsc",
    required: false,
    fix: "Install gVisor's runsc for stronger isolation.",
    look: () => program("runsc"),
  },
];

/**
 * Runs the checks that `holdfast doctor` shows. They do not show whether a runtime really works. Only a trial shows
 * that: `createOciDriver` starts an instance, and reports why it failed.
 */
export async function checkHost(stateDir = tmpdir()): Promise<HostCheck[]> {
  return Promise.all(
    questions(stateDir).map(async ({ name, required, fix, look }) => {
      const seen = await Promise.resolve(look()).catch((error: unknown) =>
        finding(false, error instanceof Error ? error.message : String(error)),
      );
      return { name, ok: seen.ok, required, found: seen.found, fix: seen.ok ? "" : (seen.fix ?? fix) };
    }),
  );
}

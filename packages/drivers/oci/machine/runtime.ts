import { execFile } from "node:child_process";
import { accessSync, constants, statSync } from "node:fs";
import { basename, isAbsolute, join } from "node:path";
import { promisify } from "node:util";
import type { SandboxId } from "@holdfast/contract";
import type { Hierarchy } from "../proc/hierarchies.ts";
import { readMounts, sharesMounts } from "../proc/mount-table.ts";
import type { RuntimeFacts } from "./host-facts.ts";
import type { Machine } from "./machine.ts";

/** The runtime to launch with: "auto" for the fastest that works on this host, or a name or path. */
export type RuntimeChoice = "auto" | "runc" | "crun" | (string & {});

const DIRECTORIES = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const VERSION_MS = 5_000;

export function findBinary(name: string): string | null {
  const paths = isAbsolute(name) ? [name] : DIRECTORIES.map((dir) => join(dir, name));
  return paths.find(isExecutable) ?? null;
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

export async function versionOf(binary: string): Promise<string> {
  const { stdout } = await promisify(execFile)(binary, ["--version"], { timeout: VERSION_MS });
  return (
    stdout
      .split("\n")[0]
      ?.replace(/^.*version\s+/i, "")
      .trim() ?? ""
  );
}

/** Lists the runtimes to try, fastest first. */
export async function runtimeCandidates(
  choice: RuntimeChoice,
  hierarchies: readonly Hierarchy[],
): Promise<RuntimeFacts[]> {
  const wanted = choice === "auto" ? ["crun", "runc"] : [choice];
  const candidates: RuntimeFacts[] = [];
  for (const name of wanted) {
    const binary = findBinary(name);
    if (binary === null) continue;
    const kind = basename(binary).includes("crun") ? "crun" : "runc";
    const version = await versionOf(binary).catch(() => "unknown");
    candidates.push({
      name: kind,
      binary,
      version,
      unmount: kind === "crun" ? hierarchiesToHide(hierarchies) : [],
    });
  }
  return candidates;
}

/**
 * Mounts to hide from crun. On a host with both cgroup versions crun would choose v2, which lacks the controllers that
 * are mounted in v1.
 */
function hierarchiesToHide(hierarchies: readonly Hierarchy[]): string[] {
  const isHybrid = hierarchies.some(({ version }) => version === 1);
  return isHybrid ? hierarchies.filter(({ version }) => version === 2).map(({ dir }) => dir) : [];
}

/** Differences between a helper's mount namespace and the host's. */
interface HelperView {
  /** Whether the helper, and the programs that it starts, are isolated from later mounts and unmounts of the host. */
  detach?: boolean;
  /** Mount points that are unmounted for the helper. */
  unmount?: readonly string[];
  /** File that is mounted as the only content of the helper's /run. */
  runFile?: string | undefined;
  /**
   * Whether the helper gets an empty /tmp. If the state directory is in /tmp, the helper still sees the state
   * directory.
   */
  ownTmp?: boolean;
}

/** Builds the command line of a helper. The helper first enters its cgroup through the file `helperCgroup`. */
export function helperArgv(
  { layout, porter, alias }: Pick<Machine, "layout" | "porter" | "alias">,
  helperCgroup: string,
  argv: readonly string[],
  { detach = false, unmount = [], runFile, ownTmp = false }: HelperView,
): string[] {
  const tmpDir = ownTmp ? layout.stateDir : undefined;
  const bind = alias === null ? undefined : { from: layout.stateDir, to: alias };
  return porter.privateArgv(argv, { enter: helperCgroup, detach, unmount, runFile, tmpDir, bind });
}

/** Translates a path in the state directory to the path at which helpers and the mapped root user can reach it. */
export const seenPath = ({ layout, alias }: Pick<Machine, "layout" | "alias">, path: string): string =>
  alias === null ? path : alias + path.slice(layout.stateDir.length);

/**
 * Builds the command that starts one instance and then exits. The instance gets no session keyring: keyrings count
 * against a small quota per user, and all sandboxes share the same host users.
 *
 * On hosts with shared mounts, which systemd makes by default, the runtime gets private copies of them. The instance's
 * mounts would otherwise receive mounts and unmounts of the host, and CRIU can't restore such mounts.
 */
export function runtimeArgv(machine: Machine, id: SandboxId, helperCgroup: string): string[] {
  const { layout, facts } = machine;
  const { bundle } = layout.sandbox(id);
  const { binary, unmount } = facts.runtime;
  const run = [
    ...[
      binary,
      "--root",
      layout.runtime,
      "--log",
      join(bundle, "log"),
      "run",
      "--detach",
      "--no-new-keyring",
    ],
    ...["--bundle", bundle, "--pid-file", join(bundle, "pid"), id],
  ];
  return helperArgv(machine, helperCgroup, run, { detach: sharesMounts(readMounts()), unmount });
}

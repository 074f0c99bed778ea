import { execFile } from "node:child_process";
import { accessSync, constants, statSync } from "node:fs";
import { basename, isAbsolute, join } from "node:path";
import { promisify } from "node:util";
import type { SandboxId } from "@holdfast/contract";
import type { Hierarchy } from "./cgroup.ts";
import type { RuntimeFacts } from "./host.ts";
import type { Machine } from "./machine.ts";

/** Which runtime to launch with: the best that starts here, a name, or the path of one. */
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

/** What may be tried, the fastest first. */
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
    candidates.push({ name: kind, binary, version, unmount: kind === "crun" ? inTheWay(hierarchies) : [] });
  }
  return candidates;
}

/** crun takes a v2 hierarchy beside v1 ones for the one to use, and then misses the controllers in it. */
function inTheWay(hierarchies: readonly Hierarchy[]): string[] {
  const isHybrid = hierarchies.some(({ version }) => version === 1);
  return isHybrid ? hierarchies.filter(({ version }) => version === 2).map(({ dir }) => dir) : [];
}

/** What a helper sees differently from the rest of the host. */
export interface HelperView {
  /** Mounts that are not there. */
  unmount?: readonly string[];
  /** A file that is all there is in /run. */
  runFile?: string | undefined;
  /** Nothing of /tmp but the state directory, where that lies there. */
  ownTmp?: boolean;
}

/** A command that enters the helper's cgroup, by the file given, before it does anything. */
export function helperArgv(
  { layout, porter, alias }: Pick<Machine, "layout" | "porter" | "alias">,
  helperCgroup: string,
  argv: readonly string[],
  { unmount = [], runFile, ownTmp = false }: HelperView,
): string[] {
  const tmpDir = ownTmp ? layout.stateDir : undefined;
  const bind = alias === null ? undefined : { from: layout.stateDir, to: alias };
  return porter.privateArgv(argv, { enter: helperCgroup, unmount, runFile, tmpDir, bind });
}

/** A path in the state directory, as helpers and a mapped root can reach it. */
export const seenPath = ({ layout, alias }: Pick<Machine, "layout" | "alias">, path: string): string =>
  alias === null ? path : alias + path.slice(layout.stateDir.length);

/**
 * The command that starts one instance and ends. No session keyring is made: those count against a small quota that all
 * sandboxes share, since they have the same ids.
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
  return helperArgv(machine, helperCgroup, run, { unmount });
}

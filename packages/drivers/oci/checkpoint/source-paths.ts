import { realpathSync } from "node:fs";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { Machine } from "../machine/machine.ts";
import type { MountSource } from "../machine/manifest.ts";
import { seenPath } from "../machine/runtime.ts";

/**
 * Returns a function that maps the source of a mount to its current path on the host, as helpers see it. The path of a
 * drive is the one at which the drive was mounted for CRIU.
 */
export function sourcePaths(
  machine: Pick<Machine, "layout" | "alias">,
  id: SandboxId,
  keeperVersion: string,
  staged: ReadonlyMap<string, string> = new Map(),
): (source: MountSource, at: string) => string {
  const { layout } = machine;
  return (source, at) => {
    if (source.kind === "host") return source.path;
    if (source.kind === "drive") return seenPath(machine, staged.get(at) ?? layout.nothing);
    // The control directory is a symbolic link if the sandbox has its own disk. CRIU must get the path of the symbolic
    // link's target.
    const control = () => realpathSync(layout.sandbox(id).control);
    return seenPath(machine, source.kind === "keeper" ? join(layout.keepers, keeperVersion) : control());
  };
}

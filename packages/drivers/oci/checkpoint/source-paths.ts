import { realpathSync } from "node:fs";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { MountSource } from "./bound-mounts.ts";
import type { Machine } from "./machine.ts";
import { seenPath } from "./runtime.ts";

/** Where what is mounted into a sandbox lies now, as helpers see it. Drives are where they were staged. */
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
    // Of a sandbox with a disk of its own that is a link, and CRIU mounts what it is given.
    const control = () => realpathSync(layout.sandbox(id).control);
    return seenPath(machine, source.kind === "keeper" ? join(layout.keepers, keeperVersion) : control());
  };
}

import { readdirSync } from "node:fs";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Found } from "@holdfast/engine";
import { markerOf } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { findMarked } from "./marked.ts";
import { readMounts } from "./mounts.ts";

/** Everything physical that carries the installation's marker, whether or not anyone knows of it. */
export function list(machine: Machine): Found[] {
  const found = new Map<SandboxId, string[]>();
  const note = (name: string, thing: string) => {
    if (isSandboxId(name)) found.set(name, [...(found.get(name) ?? []), thing]);
  };
  for (const { sandboxId, pid, role } of findMarked(machine.installation))
    note(sandboxId, `${role} process ${pid}`);
  for (const [id, hierarchies] of machine.cgroups.ids()) {
    for (const name of hierarchies) note(id, `cgroup ${name}`);
    for (const pid of machine.cgroups.allMembers(id)) note(id, `process ${pid}`);
  }
  const prefix = markerOf(machine.installation, "" as SandboxId);
  for (const { source } of readMounts()) {
    if (source.startsWith(prefix)) note(source.slice(prefix.length), "mount");
  }
  for (const name of readdirSync(machine.layout.runtime)) note(name, "runtime state");
  for (const name of readdirSync(machine.layout.sandboxes)) note(name, "directory");
  return [...found].map(([sandboxId, things]) => ({ sandboxId, things }));
}

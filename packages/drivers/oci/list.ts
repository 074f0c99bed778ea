import { readdirSync } from "node:fs";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Found } from "@holdfast/engine";
import { markerOf } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { findMarked } from "./marked.ts";
import { readMounts } from "./mounts.ts";
import { inTurns } from "./turns.ts";

/** Everything physical that carries the installation's marker, whether or not anyone knows of it. */
export async function list(machine: Machine, signal: AbortSignal): Promise<Found[]> {
  const found = new Map<SandboxId, string[]>();
  const note = (name: string, thing: string) => {
    if (isSandboxId(name)) found.set(name, [...(found.get(name) ?? []), thing]);
  };
  for (const { sandboxId, pid, role } of findMarked(machine.installation))
    note(sandboxId, `${role} process ${pid}`);
  for await (const id of inTurns(machine.cgroups.ids(), signal)) {
    for (const name of machine.cgroups.existing(id)) note(id, `cgroup ${name}`);
    for (const pid of machine.cgroups.members(id)) note(id, `process ${pid}`);
  }
  const prefix = markerOf(machine.installation, "" as SandboxId);
  for (const { source } of readMounts()) {
    if (source.startsWith(prefix)) note(source.slice(prefix.length), "mount");
  }
  for (const name of readdirSync(machine.layout.runtime)) note(name, "runtime state");
  for (const name of readdirSync(machine.layout.sandboxes)) note(name, "directory");
  return [...found].map(([sandboxId, things]) => ({ sandboxId, things }));
}

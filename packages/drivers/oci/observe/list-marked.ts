import { readdirSync } from "node:fs";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Found } from "@holdfast/engine";
import { namesIn } from "./checkpoints.ts";
import { type Layout, markerOf } from "./layout.ts";
import { readLoops } from "./loops.ts";
import type { Machine } from "./machine.ts";
import { findMarked } from "./marked.ts";
import { readMounts } from "./mounts.ts";
import { living } from "./observe.ts";
import { inTurns } from "./turns.ts";

/**
 * Everything physical that carries the installation's marker, whether or not anyone knows of it. Control sockets and
 * images of disks lie in the directories. Network namespaces are not listed: they have no name, and end with the last
 * process in them. Journals that were kept outlive their sandbox on purpose.
 */
export async function list(machine: Machine, signal: AbortSignal): Promise<Found[]> {
  const found = new Map<SandboxId, Found>();
  const note = (name: string, thing: string, alive = false) => {
    if (!isSandboxId(name)) return;
    const known = found.get(name) ?? { sandboxId: name, things: [], alive: false };
    known.things.push(thing);
    known.alive ||= alive;
    found.set(name, known);
  };
  const marked = findMarked(machine.installation);
  for (const { sandboxId, pid, role } of marked) note(sandboxId, `${role} process ${pid}`, true);
  const known = new Set(marked.map(({ pid }) => pid));
  for await (const id of inTurns(machine.cgroups.ids(), signal)) {
    for (const name of machine.cgroups.existing(id)) note(id, `cgroup ${name}`);
    for (const { pid } of living([...machine.cgroups.members(id), ...machine.cgroups.helpers(id)])) {
      if (!known.has(pid)) note(id, `process ${pid}`, true);
    }
  }
  const { layout, installation } = machine;
  const marker = markerOf(installation, "" as SandboxId);
  for (const { source, mountPoint } of readMounts()) {
    if (source.startsWith(marker)) note(source.slice(marker.length), "mount");
    else note(ownerOf(layout, mountPoint), "mount");
  }
  for (const { name, file } of readLoops()) note(ownerOf(layout, file), `loop device ${name}`);
  for (const name of readdirSync(layout.runtime)) note(name, "runtime state");
  for (const name of readdirSync(layout.sandboxes)) {
    note(name, "directory");
    if (!isSandboxId(name)) continue;
    const { checkpoints, saved } = layout.sandbox(name);
    for (const checkpoint of [checkpoints, saved].flatMap(namesIn)) note(name, `checkpoint ${checkpoint}`);
  }
  return [...found.values()];
}

/** The name of the directory, among those that sandboxes have, that a path is in or is; "" where it is in none. */
function ownerOf({ sandboxes, runtime }: Layout, path: string): string {
  const dir = [sandboxes, runtime].find((dir) => path.startsWith(`${dir}/`));
  return dir === undefined ? "" : (path.slice(dir.length + 1).split("/")[0] ?? "");
}

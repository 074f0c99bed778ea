import { readdirSync } from "node:fs";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Found } from "@holdfast/engine";
import { namesIn } from "../files/checkpoint-files.ts";
import { living } from "../machine/instance-processes.ts";
import { type Layout, markerOf } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { inBatches } from "../proc/in-batches.ts";
import { readLoops } from "../proc/loop-devices.ts";
import { findMarked } from "../proc/marked-processes.ts";
import { readMounts } from "../proc/mount-table.ts";

/**
 * Lists everything on the host that carries the installation's marker, with or without a record: processes, cgroups,
 * mounts, loop devices, runtime state, directories and checkpoints. Control sockets and disk images are not listed
 * separately, because they are in these directories. Network namespaces are not listed: they have no name, and end with
 * their last process. Archived journals are not listed, because they outlive their sandbox on purpose.
 */
export async function listMarked(machine: Machine, signal: AbortSignal): Promise<Found[]> {
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
  for await (const id of inBatches(machine.cgroups.ids(), signal)) {
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

/** Name of the sandbox directory or runtime state directory that contains the path; "" if none does. */
function ownerOf({ sandboxes, runtime }: Layout, path: string): string {
  const dir = [sandboxes, runtime].find((dir) => path.startsWith(`${dir}/`));
  return dir === undefined ? "" : (path.slice(dir.length + 1).split("/")[0] ?? "");
}

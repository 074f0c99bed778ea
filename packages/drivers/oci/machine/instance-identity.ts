import type { Instance, InstanceIdentity } from "@holdfast/engine";
import type { InstanceNote } from "./sandbox-notes.ts";

/**
 * Identity of an instance: its first process. A pid is valid only with its start time and within one boot of the host.
 */
export interface ProcessIdentity {
  pid: number;
  startTime: string;
  hostBootId: string;
}

export function identityOf({ pid, startTime, hostBootId }: ProcessIdentity): InstanceIdentity {
  // Only this function creates identities for this driver, so this cast is the one place where a value gets the branded
  // type.
  return { pid, startTime, hostBootId } as unknown as InstanceIdentity;
}

export const readIdentity = ({ pid, startTime, hostBootId }: InstanceIdentity): ProcessIdentity => ({
  pid: Number(pid),
  startTime: String(startTime),
  hostBootId: String(hostBootId),
});

/** Converts an instance note to the engine's type. */
export const instanceOf = (note: InstanceNote): Instance => ({
  sandboxId: note.sandboxId,
  generation: note.generation,
  identity: identityOf(note),
  keeperVersion: note.keeperVersion,
});

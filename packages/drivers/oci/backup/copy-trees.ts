import { PorterError } from "@holdfast/keeper";
import type { Machine } from "../machine/machine.ts";

/** Thrown if the disk of the target is full, so that no further copy can succeed. */
export class NoRoomForBackup extends Error {
  constructor(options: { cause?: unknown } = {}) {
    super("The disk has too little room for the copy.", options);
    this.name = "NoRoomForBackup";
  }
}

/** Copies trees, and returns how many bytes the copies occupy. Throws if one of the trees is missing. */
export async function copyTrees(
  { porter }: Pick<Machine, "porter">,
  copy: Parameters<Machine["porter"]["copy"]>[0],
  signal: AbortSignal,
): Promise<number> {
  const copied = await porter.copy(copy, signal).catch((error: unknown) => {
    const isFull = error instanceof PorterError && /No space left|Disk quota/.test(error.message);
    throw isFull ? new NoRoomForBackup({ cause: error }) : error;
  });
  if (copied === "gone") throw new Error("some of its files are missing");
  if (copied === "too_much") throw new NoRoomForBackup();
  return copied.bytes;
}

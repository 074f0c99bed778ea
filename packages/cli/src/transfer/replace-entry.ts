import { randomUUID } from "node:crypto";
import { rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";

/**
 * Creates an entry under a temporary name in the same directory and renames it to its path, so that nothing is written
 * through an existing symbolic link.
 */
export async function replaceEntry(
  path: string,
  create: (temporary: string) => Promise<void>,
): Promise<void> {
  const temporary = join(dirname(path), `.holdfast-${randomUUID()}`);
  try {
    await create(temporary);
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

import { existsSync, mkdirSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { StartFailure } from "./start-failure.ts";

/**
 * Creates the state directory if it is missing, one level at a time. Node's recursive mkdir is not used, because it
 * never returns on a file system that refuses new directories with ENOENT, as /proc does.
 */
export function makeStateDir(stateDir: string): void {
  try {
    const missing: string[] = [];
    for (let at = stateDir; !existsSync(at) && at !== dirname(at); at = dirname(at)) missing.unshift(at);
    for (const dir of missing) mkdirSync(dir, { mode: dir === stateDir ? 0o700 : 0o755 });
    if (!statSync(stateDir).isDirectory()) throw new Error("it is not a directory");
  } catch (error) {
    throw new StartFailure(
      `The state directory ${stateDir} cannot be used: ${error instanceof Error ? error.message : error}.`,
      "Set HOLDFAST_DIR to a directory that can be created and written.",
      { cause: error },
    );
  }
}

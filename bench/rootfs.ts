import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";

/**
 * Creates a root like that of the `host` image: links into a `/usr` that is mounted read-only, so that all contenders
 * run the same files.
 */
export function layRoot(path: string): void {
  for (const name of ["usr", "proc", "dev", "sys", "tmp", "etc", "root"])
    mkdirSync(join(path, name), { recursive: true });
  for (const name of ["bin", "sbin", "lib", "lib64"]) symlinkSync(`usr/${name}`, join(path, name));
}

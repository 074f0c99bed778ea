import { existsSync, readdirSync, readFileSync } from "node:fs";
import { isGone } from "./errno.ts";

/** A loop device and the file that it has. */
export interface Loop {
  name: string;
  file: string;
}

const BLOCKS = "/sys/block";
/** How the kernel says that the file has no name any more. */
const DELETED = / \(deleted\)$/;

/** Every loop device that has a file, whoever gave it that. */
export function readLoops(): Loop[] {
  if (!existsSync(BLOCKS)) return [];
  return readdirSync(BLOCKS)
    .filter((name) => name.startsWith("loop"))
    .flatMap((name) => {
      const file = backingFile(name);
      return file === null ? [] : [{ name, file }];
    });
}

/** Those with a file in this directory. */
export const loopsIn = (dir: string): Loop[] => readLoops().filter(({ file }) => file.startsWith(`${dir}/`));

function backingFile(name: string): string | null {
  try {
    return readFileSync(`${BLOCKS}/${name}/loop/backing_file`, "utf8").trimEnd().replace(DELETED, "");
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { isGone } from "./errno.ts";

/** A loop device and its backing file. */
interface Loop {
  name: string;
  file: string;
}

const BLOCKS = "/sys/block";
/** Suffix that the kernel appends to the path of a backing file that was deleted. */
const DELETED = / \(deleted\)$/;

/** Lists all loop devices of the host that have a backing file, including those of other programs. */
export function readLoops(): Loop[] {
  if (!existsSync(BLOCKS)) return [];
  return readdirSync(BLOCKS)
    .filter((name) => name.startsWith("loop"))
    .flatMap((name) => {
      const file = backingFile(name);
      return file === null ? [] : [{ name, file }];
    });
}

/** Lists the loop devices whose backing file is in the given directory. */
export const loopsIn = (dir: string): Loop[] => readLoops().filter(({ file }) => file.startsWith(`${dir}/`));

function backingFile(name: string): string | null {
  try {
    return readFileSync(`${BLOCKS}/${name}/loop/backing_file`, "utf8").trimEnd().replace(DELETED, "");
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { type ExecId, isExecId } from "@holdfast/contract";
import { errnoOf } from "./errno.ts";

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;

/** What opening gives for something else than a file in its place, or for one whose owner holds a lease on it. */
const NO_FILE = ["ENOENT", "ENOTDIR", "ELOOP", "EISDIR", "ENXIO", "EAGAIN", "EWOULDBLOCK"];

/**
 * A file in a directory that a sandbox's root could have written to. Nothing is followed and nothing is waited for: a
 * link, a pipe or a directory in its place is as good as no file.
 */
export class JournalFile {
  readonly size: number;
  /** Bytes that the file system has set aside for it: about what lies behind the hole at its head. */
  readonly allocated: number;
  readonly #handle: FileHandle;

  private constructor(handle: FileHandle, size: number, allocated: number) {
    this.#handle = handle;
    this.size = size;
    this.allocated = allocated;
  }

  /** Gives an open file to `use`, and closes it behind it; null where there is none. */
  static async with<Result>(
    directory: string,
    id: ExecId,
    use: (file: JournalFile) => Promise<Result>,
  ): Promise<Result | null> {
    if (!isExecId(id)) return null;
    return inDirectory(directory, async (at) => {
      const handle = await openOrNull(`${at}/${id}`, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
      if (handle === null) return null;
      try {
        const stat = await handle.stat();
        return stat.isFile() ? await use(new JournalFile(handle, stat.size, stat.blocks * 512)) : null;
      } finally {
        await handle.close();
      }
    });
  }

  /** Less than asked for only where the file ends. */
  async read(offset: number, length: number): Promise<Buffer> {
    const buffer = Buffer.allocUnsafe(Math.max(0, Math.min(length, this.size - offset)));
    let filled = 0;
    while (filled < buffer.length) {
      const { bytesRead } = await this.#handle.read(buffer, filled, buffer.length - filled, offset + filled);
      if (bytesRead === 0) break;
      filled += bytesRead;
    }
    return buffer.subarray(0, filled);
  }
}

/** Runs `use` with a path that means this very directory and goes through no link of a sandbox's making. */
export async function inDirectory<Result>(
  directory: string,
  use: (path: string) => Promise<Result>,
): Promise<Result | null> {
  const handle = await openOrNull(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (handle === null) return null;
  try {
    return await use(`/proc/self/fd/${handle.fd}`);
  } finally {
    await handle.close();
  }
}

async function openOrNull(path: string, flags: number): Promise<FileHandle | null> {
  try {
    return await open(path, flags);
  } catch (error) {
    if (NO_FILE.includes(errnoOf(error))) return null;
    throw error;
  }
}

import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { type ExecId, isExecId } from "@holdfast/contract";
import { errnoOf } from "../proc/errno.ts";

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;

/**
 * Error codes of a failed open that mean one of two things: there is no regular file at the path, or a process holds an
 * fcntl file lease on the file.
 */
const NO_FILE = ["ENOENT", "ENOTDIR", "ELOOP", "EISDIR", "ENXIO", "EAGAIN", "EWOULDBLOCK"];

/**
 * A journal in a directory to which a sandbox's root user could write. Opening it follows no symbolic links and never
 * blocks: a symbolic link, a pipe or a directory at its path counts as a missing file.
 */
export class JournalFile {
  readonly size: number;
  /**
   * Bytes that the file occupies on disk. The start of the file may be a hole, where the keeper dropped records; a hole
   * occupies no space. So this is about the size of the records that are left.
   */
  readonly allocated: number;
  readonly #handle: FileHandle;

  private constructor(handle: FileHandle, size: number, allocated: number) {
    this.#handle = handle;
    this.size = size;
    this.allocated = allocated;
  }

  /** Opens a journal, passes it to `use` and closes it. Returns null if there is no such journal. */
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

  /** Reads bytes at an offset; fewer than `length` only at the end of the file. */
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

/**
 * Opens a directory and calls `use` with a path that refers to the open directory, so that a sandbox can't redirect the
 * path with a symbolic link. Returns null if there is no such directory.
 */
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

import { type FileAccess, KeeperRefusal, type Stat } from "../ports/index.ts";

/** The file system of a root or of a drive. */
export interface FakeDisk {
  /**
   * Which resource is exhausted: blocks, so that output can't be written, or inodes, so that not even a journal can be
   * created.
   */
  full: "blocks" | "inodes" | null;
  files: Map<string, Uint8Array>;
  /** Returns the inode mounted at a path. */
  inoAt?(path: string): string | null;
}

export const noSpace = () => new KeeperRefusal("system", "no space left on device", "ENOSPC");

/** Returns access to the files of a disk, with the operations that proofs and the engine's tests need. */
export function fakeFiles(disk: () => FakeDisk): FileAccess {
  const stat = (path: string): Stat => {
    const sizeBytes = disk().files.get(path)?.length ?? 0;
    const ino = disk().inoAt?.(path) ?? "3";
    const owner = { uid: 1000, gid: 1000 };
    return { kind: "file", sizeBytes, mode: 0o644, ...owner, modifiedAt: 0, dev: "1", ino, target: "" };
  };
  return {
    stat: async (path) => stat(path),
    list: async () => ({ entries: [], truncated: false }),
    read: async (path) => {
      const data = disk().files.get(path);
      if (!data) throw new KeeperRefusal("system", "no such file", "ENOENT");
      return { stat: stat(path), body: one(data) };
    },
    write: async (path, body) => {
      const parts: Uint8Array[] = [];
      for await (const part of body) parts.push(part);
      if (disk().full !== null) throw noSpace();
      disk().files.set(path, Buffer.concat(parts));
      return stat(path);
    },
    mkdir: async () => undefined,
    remove: async (path) => {
      disk().files.delete(path);
    },
    rename: async () => undefined,
    chmod: async () => undefined,
    symlink: async () => undefined,
    touch: async () => undefined,
    watch: async () => nothing(),
  };
}

async function* one(data: Uint8Array): AsyncIterable<Uint8Array> {
  yield data;
}

async function* nothing(): AsyncIterable<never> {}

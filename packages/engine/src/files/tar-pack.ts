import { posix } from "node:path";
import { HoldfastError } from "@holdfast/contract";
import { mapAhead } from "../lib/map-ahead.ts";
import { translate } from "../model/keeper-errors.ts";
import { KeeperRefusal, type Stat } from "../ports/index.ts";
import type { Reading } from "./file-source.ts";
import { type TarEntry, tarEnd, tarHeader, tarPadding } from "./tar-header.ts";

/** Maximum number of entries in an archive. */
const ENTRIES_MAX = 1_000_000;
/** Maximum number of entries in a directory. It is limited because all entries of a directory are held in memory. */
const DIRECTORY_ENTRIES_MAX = 100_000;
/** Maximum number of small files that are read ahead. */
const FILES_AHEAD = 8;
/** Maximum size in bytes of a file that is read ahead as a small file. */
const SMALL_BYTES = 65_536;

interface Packing {
  files: Reading;
  path: string;
  /** The result of `stat` on the path, which follows symbolic links. */
  stat: Stat;
  /** Whether the archive leaves out the path and everything below it. */
  isSkipped(path: string): boolean;
  signal: AbortSignal;
}

interface Found {
  path: string;
  /** The name in the archive. */
  name: string;
  stat: Stat;
  /** Content of a small file, read ahead. */
  content?: Uint8Array;
}

/**
 * Packs a directory tree, or one file, into a tar archive while it is read. If the reader is slow, only a piece of one
 * file, a few small files and the entries of one directory are held in memory.
 *
 * The tree may change meanwhile: a file that is gone when its turn comes is left out, and a file that grows is cut to its size
 * at opening. A file that shrinks ends the archive with an error, because its header already announced the size.
 */
export async function* packTree(packing: Packing): AsyncGenerator<Uint8Array, void, undefined> {
  const { path, stat } = packing;
  const tree = stat.kind === "directory" ? treeOf(packing) : [fileAt(path, stat)];
  let count = 0;
  for await (const found of mapAhead(tree, FILES_AHEAD, (each) => withContent(packing, each))) {
    if (++count > ENTRIES_MAX) throw tooLarge(`${path} has more than ${ENTRIES_MAX} entries below it.`);
    if (found !== null) yield* packed(packing, found);
  }
  yield tarEnd();
}

const tooLarge = (message: string) => new HoldfastError("too_large", { message });

const fileAt = (path: string, stat: Stat): Found => ({ path, name: posix.basename(path), stat });

/**
 * Yields a directory, then its entries that are not directories, and then each of its subdirectories in the same way.
 */
async function* treeOf(packing: Packing): AsyncGenerator<Found, void, undefined> {
  const directories: Found[] = [{ path: packing.path, name: "./", stat: packing.stat }];
  for (let at = directories.pop(); at !== undefined; at = directories.pop()) {
    const entries = await entriesOf(packing, at);
    if (entries === null) continue;
    yield at;
    const base = at.name === "./" ? "" : at.name;
    for (const { name, stat } of entries) {
      const path = posix.join(at.path, name);
      if (packing.isSkipped(path)) continue;
      if (stat.kind === "directory") directories.push({ path, name: `${base}${name}/`, stat });
      else yield { path, name: base + name, stat };
    }
  }
}

async function entriesOf({ files, path: top, signal }: Packing, { path }: Found) {
  try {
    const { entries, truncated } = await files.list(path, { limit: DIRECTORY_ENTRIES_MAX }, signal);
    if (!truncated) return entries;
  } catch (error) {
    if (isGone(error) && path !== top) return null;
    throw translate(error, { path });
  }
  throw tooLarge(`${path} has more than ${DIRECTORY_ENTRIES_MAX} entries.`);
}

/**
 * Reads a small file ahead, because for many small files the round trips take most of the time. Returns null if the
 * file is gone.
 */
async function withContent(packing: Packing, found: Found): Promise<Found | null> {
  const { path, stat: listed } = found;
  if (listed.kind !== "file" || listed.sizeBytes > SMALL_BYTES) return found;
  const { files, signal } = packing;
  try {
    const opened = await openedFile(files, path, signal);
    if (opened === null) return null;
    const { stat, body } = opened;
    const isSmall = stat.sizeBytes <= SMALL_BYTES;
    const parts: Uint8Array[] = [];
    for await (const part of exactly(isSmall ? stat.sizeBytes : 0, body, path)) parts.push(part);
    return isSmall ? { ...found, stat, content: Buffer.concat(parts) } : found;
  } catch (error) {
    throw translate(error, { path });
  }
}

/** Packs one entry. Only regular files are opened: opening a pipe or a device may have side effects. */
async function* packed(packing: Packing, found: Found): AsyncGenerator<Uint8Array, void, undefined> {
  const { kind, sizeBytes, target } = found.stat;
  if (found.content !== undefined)
    yield Buffer.concat([headOf(found, "file"), found.content, tarPadding(sizeBytes)]);
  else if (kind === "file") yield* packedFile(packing, found);
  else if (kind === "directory" || (kind === "symlink" && target !== "")) yield headOf(found, kind);
}

async function* packedFile(
  { files, signal }: Packing,
  found: Found,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { path } = found;
  try {
    const opened = await openedFile(files, path, signal);
    if (opened === null) return;
    const { stat, body } = opened;
    yield headOf({ ...found, stat }, "file");
    yield* exactly(stat.sizeBytes, body, path);
    yield tarPadding(stat.sizeBytes);
  } catch (error) {
    throw translate(error, { path });
  }
}

/** Opens a regular file. Returns null if the file is gone or is no longer a regular file. */
async function openedFile(files: Reading, path: string, signal: AbortSignal) {
  try {
    return await files.read(path, { offset: 0, length: null }, signal);
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

const headOf = ({ name, stat }: Found, kind: TarEntry["kind"]): Buffer =>
  tarHeader({ ...stat, name, kind, sizeBytes: kind === "file" ? stat.sizeBytes : 0 });

/** Yields exactly as many bytes as the header announced. */
async function* exactly(
  sizeBytes: number,
  body: AsyncIterable<Uint8Array>,
  path: string,
): AsyncGenerator<Uint8Array, void, undefined> {
  const parts = body[Symbol.asyncIterator]();
  let left = sizeBytes;
  try {
    while (left > 0) {
      const part = await parts.next();
      if (part.done)
        throw new HoldfastError("file_conflict", { message: `The file shrank while it was read: ${path}` });
      const piece = part.value.subarray(0, left);
      left -= piece.length;
      yield piece;
    }
  } finally {
    await parts.return?.();
  }
}

const GONE = new Set(["ENOENT", "ENOTDIR", "ELOOP"]);
const isGone = (error: unknown): boolean =>
  error instanceof KeeperRefusal && (error.reason === "not_regular" || GONE.has(error.errno ?? ""));

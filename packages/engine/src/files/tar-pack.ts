import { posix } from "node:path";
import { HoldfastError } from "@holdfast/contract";
import { ahead } from "./ahead.ts";
import type { Reading } from "./file-source.ts";
import { translate } from "./gate.ts";
import { KeeperRefusal, type Stat } from "./ports.ts";
import { type TarEntry, tarEnd, tarHeader, tarPadding } from "./tar-header.ts";

/** Of one archive, and of one directory, whose entries are in memory at a time. */
const ENTRIES_MAX = 1_000_000;
const DIRECTORY_ENTRIES_MAX = 100_000;
/** Files that are read before their turn comes, and how large they may be. */
const FILES_AHEAD = 8;
const SMALL_BYTES = 65_536;

export interface Packing {
  files: Reading;
  path: string;
  /** Of what is at the path, links followed. */
  stat: Stat;
  /** What is left out, with all below it. */
  isPassedBy(path: string): boolean;
  signal: AbortSignal;
}

interface Found {
  path: string;
  /** In the archive. */
  name: string;
  stat: Stat;
  /** Of a small file. */
  content?: Uint8Array;
}

/**
 * A directory and all below it, or one file, as a tar archive that is made while it is read. Little is looked at before the
 * reader wants it: a slow one holds a piece of one file, a few small ones and the names of one directory.
 *
 * The tree changes meanwhile: what is gone when its turn comes is not in the archive, and what grows has the length that it
 * had when it was opened. What gets shorter can't be told from damage any more, and ends the archive with an error.
 */
export async function* packTree(packing: Packing): AsyncGenerator<Uint8Array, void, undefined> {
  const { path, stat } = packing;
  const tree = stat.kind === "directory" ? treeOf(packing) : [fileAt(path, stat)];
  let count = 0;
  for await (const found of ahead(tree, FILES_AHEAD, (each) => withContent(packing, each))) {
    if (++count > ENTRIES_MAX) throw tooLarge(`There are more than ${ENTRIES_MAX} entries below ${path}.`);
    if (found !== null) yield* packed(packing, found);
  }
  yield tarEnd();
}

const tooLarge = (message: string) => new HoldfastError("too_large", { message });

const fileAt = (path: string, stat: Stat): Found => ({ path, name: posix.basename(path), stat });

/** The directory first, then what is in it, and each directory in it the same way. */
async function* treeOf(packing: Packing): AsyncGenerator<Found, void, undefined> {
  const directories: Found[] = [{ path: packing.path, name: "./", stat: packing.stat }];
  for (let at = directories.pop(); at !== undefined; at = directories.pop()) {
    const entries = await entriesOf(packing, at);
    if (entries === null) continue;
    yield at;
    const base = at.name === "./" ? "" : at.name;
    for (const { name, stat } of entries) {
      const path = posix.join(at.path, name);
      if (packing.isPassedBy(path)) continue;
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

/** A small file is read before its turn comes, which is what takes the time of many. Null where it is gone. */
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

/** One entry. Only a file is ever opened: a pipe or a device might do something. */
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

/** Null where it is gone, or is no file any more. */
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

/** As many bytes as the head says. Whatever has no size has no bytes either. */
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
        throw new HoldfastError("file_conflict", { message: `It became shorter meanwhile: ${path}` });
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

import { posix } from "node:path";
import { type ErrorCode, HoldfastError, isHoldfastError, normalisePath } from "@holdfast/contract";
import type { Header } from "tar-stream";
import { translate } from "../model/keeper-errors.ts";
import { type FileAccess, KeeperRefusal, type Stat, type WriteOptions } from "../ports/index.ts";
import { quoted } from "./file-view.ts";
import { BrokenArchive, type TarPart, TarReader } from "./tar-reader.ts";

/** Maximum number of entries in an archive. */
const ENTRIES_MAX = 1_000_000;
/** Maximum number of small files that are written concurrently. */
const FILES_AT_ONCE = 8;
/** Maximum size in bytes of a file that is written concurrently with others as a small file. */
const SMALL_BYTES = 65_536;
/** Permission bits without setuid and setgid. */
const MODE_MASK = 0o1777;
/** The latest time that a `Date` can represent. */
const TIME_MAX = 8_640_000_000_000_000;

interface Unpacking {
  files: FileAccess;
  /** The directory that the archive is unpacked into. */
  path: string;
  isReserved(path: string): boolean;
  /** The owner of new files. A file that is replaced keeps its owner. */
  owner: Pick<WriteOptions, "uid" | "gid">;
  signal: AbortSignal;
}

/**
 * Unpacks an archive into a directory, entry by entry as it arrives. The archive may be hostile: names that lead out of
 * the directory are rejected, as are entries other than files, directories and links. Symbolic links are created
 * unchanged, because a caller that may write to the directory can reach their targets without an archive too.
 *
 * Each file is written completely or not at all. The archive as a whole is not atomic: entries unpacked before an error
 * stay.
 */
export async function unpackTar(
  archive: AsyncIterable<Uint8Array>,
  unpacking: Unpacking,
): Promise<{ files: number; bytes: number }> {
  const reader = new TarReader(archive, unpacking.signal);
  const unpacked = new Unpacked(unpacking);
  try {
    await unpacked.begin();
    for (let part = await reader.next(); part !== null; part = await reader.next()) await unpacked.add(part);
    await unpacked.finish();
  } catch (error) {
    await unpacked.settle();
    const why = reader.why(error);
    if (isHoldfastError(why) && why.code === "too_many_file_calls")
      throw rejection(why.code, `${why.message} ${unpacked.keptNote}`);
    throw why instanceof BrokenArchive
      ? rejection("invalid_request", `The archive can't be read: ${why.message}. ${unpacked.keptNote}`)
      : why;
  } finally {
    reader.close();
  }
  return unpacked.counts;
}

/**
 * Creates the error that ends the unpacking. `dispatched` tells the caller that the call may have had effects: entries
 * before the rejected one are unpacked already.
 */
const rejection = (code: ErrorCode, message: string): HoldfastError =>
  new HoldfastError(code, { message, dispatched: "yes" });

class Unpacked {
  readonly counts = { files: 0, bytes: 0 };
  readonly #given: Unpacking;
  /** Directories that are known to exist. */
  readonly #directories = new Set<string>();
  /** Modification times of directories. They are set last, because adding entries to a directory changes its time. */
  readonly #times = new Map<string, number>();
  /** Small files being written, by path. */
  readonly #writing = new Map<string, Promise<void>>();
  #entries = 0;
  #isMade = false;

  constructor(given: Unpacking) {
    this.#given = given;
  }

  get keptNote(): string {
    return `Files unpacked so far are kept: ${this.counts.files}.`;
  }

  /** Creates the target directory. An existing one is left unchanged. */
  async begin(): Promise<void> {
    const { files, path, owner, signal } = this.#given;
    const there = await this.#stat(path, true);
    this.#isMade = there === null;
    if (there !== null && there.kind !== "directory")
      throw rejection("file_conflict", `Not a directory: ${path}`);
    if (there === null) await files.mkdir(path, { parents: true, ...owner }, signal);
    this.#directories.add(path);
  }

  async add({ header, body }: TarPart): Promise<void> {
    if (++this.#entries > ENTRIES_MAX)
      throw rejection("too_large", `The archive has more than ${ENTRIES_MAX} entries. ${this.keptNote}`);
    const path = this.#pathOf(header.name);
    if (kindOf(header) === "file" && header.size <= SMALL_BYTES) return this.#addSmall(path, header, body);
    await this.#drain();
    await this.#place(path, header, body);
  }

  /**
   * Writes a small file while the next entries arrive, because for many small files the round trips take most of the
   * time.
   */
  async #addSmall(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const parts: Uint8Array[] = [];
    for await (const part of body) parts.push(part);
    // A second entry with the same path must be written after the first.
    while (this.#writing.size >= FILES_AT_ONCE || this.#writing.has(path))
      await Promise.race(this.#writing.values());
    const placed = this.#place(path, header, inOrder(parts)).then(() => void this.#writing.delete(path));
    // The failure is not lost: the next call that waits for the writes reports it. This handler only prevents an
    // unhandled rejection.
    placed.catch(() => {});
    this.#writing.set(path, placed);
  }

  /** Waits until the small files are written, so that entries of other kinds are written after them. */
  async #drain(): Promise<void> {
    await Promise.all(this.#writing.values());
  }

  /** Waits until all writes have finished, successfully or not. */
  async settle(): Promise<void> {
    await Promise.allSettled(this.#writing.values());
  }

  async finish(): Promise<void> {
    const { files, signal } = this.#given;
    await this.#drain();
    for (const [path, modifiedAt] of this.#times) await files.touch(path, modifiedAt, signal);
  }

  async #place(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    try {
      await this.#write(path, header, body);
    } catch (error) {
      throw translate(error, { path });
    }
  }

  async #write(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const kind = kindOf(header);
    if (kind === "directory") return this.#directory(path, header);
    if (path === this.#given.path) throw this.#invalidEntry(header, "has no name");
    switch (kind) {
      case "file":
        await this.#file(path, header, body);
        break;
      case "symlink":
        await this.#link(path, header.linkname ?? "", timeOf(header));
        break;
      case "link":
        await this.#copy(path, header);
        break;
      default:
        throw this.#invalidEntry(header, "is neither file, directory nor link");
    }
    this.counts.files += 1;
  }

  async #directory(path: string, header: Header): Promise<void> {
    const { files, owner, signal } = this.#given;
    if (path === this.#given.path && !this.#isMade) return;
    const mode = header.mode & MODE_MASK;
    await files.mkdir(path, { parents: true, mode, ...owner }, signal);
    await files.chmod(path, mode, signal);
    this.#directories.add(path);
    this.#noteTime(path, header);
  }

  async #file(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const { files, owner, signal } = this.#given;
    const isNew = await this.#makeWay(path, "file");
    const options = { parents: true, mode: header.mode & MODE_MASK, ...(isNew ? owner : {}) };
    const { sizeBytes } = await files.write(path, body, options, signal);
    this.#directories.add(posix.dirname(path));
    this.counts.bytes += sizeBytes;
    await this.#touch(path, timeOf(header));
  }

  async #link(path: string, target: string, modifiedAt: number | null): Promise<void> {
    const { files, owner, signal } = this.#given;
    if (target.includes("\0"))
      throw rejection("invalid_path", `The target of the link is not valid: ${path}. ${this.keptNote}`);
    await this.#makeParent(path);
    await this.#makeWay(path, "symlink");
    await files.symlink(path, target, owner, signal);
    await this.#touch(path, modifiedAt);
  }

  /** Unpacks a hard link as a copy of the unpacked entry that it refers to. */
  async #copy(path: string, header: Header): Promise<void> {
    const { files, signal } = this.#given;
    const source = this.#pathOf(header.linkname ?? "");
    if (source === path) return;
    const there = await this.#stat(source, false);
    if (there?.kind === "symlink") return this.#link(path, there.target, there.modifiedAt);
    if (there?.kind !== "file")
      throw this.#invalidEntry(header, `is a link to ${quoted(header.linkname ?? "")}, which does not exist`);
    const { stat, body } = await files.read(source, { offset: 0, length: null }, signal);
    try {
      await this.#file(
        path,
        { ...header, mode: stat.mode, mtime: new Date(stat.modifiedAt), pax: null },
        body,
      );
    } finally {
      await body[Symbol.asyncIterator]().return?.();
    }
  }

  /**
   * Makes room at the path of an entry. Returns true if nothing is at the path any more: there was nothing, or it was
   * removed. A symbolic link is removed itself, not its target. Returns false if a file is to be replaced by a file,
   * which needs no removal. Throws if a directory is in the way.
   */
  async #makeWay(path: string, kind: "file" | "symlink"): Promise<boolean> {
    const { files, signal } = this.#given;
    const there = await this.#stat(path, false);
    if (there === null) return true;
    if (there.kind === "file" && kind === "file") return false;
    if (there.kind === "directory") throw rejection("file_conflict", `A directory is in the way: ${path}`);
    await files.remove(path, { recursive: false }, signal);
    return true;
  }

  async #makeParent(path: string): Promise<void> {
    const { files, owner, signal } = this.#given;
    const parent = posix.dirname(path);
    if (this.#directories.has(parent)) return;
    await files.mkdir(parent, { parents: true, ...owner }, signal);
    this.#directories.add(parent);
  }

  async #stat(path: string, follow: boolean): Promise<Stat | null> {
    const { files, signal } = this.#given;
    try {
      return await files.stat(path, { follow }, signal);
    } catch (error) {
      if (error instanceof KeeperRefusal && error.errno === "ENOENT") return null;
      throw error;
    }
  }

  #noteTime(path: string, header: Header): void {
    const modifiedAt = timeOf(header);
    if (modifiedAt !== null) this.#times.set(path, modifiedAt);
  }

  async #touch(path: string, modifiedAt: number | null): Promise<void> {
    const { files, signal } = this.#given;
    if (modifiedAt !== null) await files.touch(path, modifiedAt, signal);
  }

  /** Returns the path of an entry. An absolute name, too, is taken as relative to the target directory. */
  #pathOf(name: string): string {
    const inside = normalisePath(`/${name}`);
    const path = inside === null ? null : normalisePath(posix.join(this.#given.path, inside));
    const code = path === null ? "invalid_path" : this.#given.isReserved(path) ? "forbidden_path" : null;
    if (path !== null && code === null) return path;
    throw rejection(
      code ?? "invalid_path",
      `The archive has an entry with an invalid path: ${quoted(name)}. ${this.keptNote}`,
    );
  }

  #invalidEntry({ name }: Header, why: string): HoldfastError {
    return rejection("invalid_request", `The archive's entry ${quoted(name)} ${why}. ${this.keptNote}`);
  }
}

async function* inOrder(parts: readonly Uint8Array[]): AsyncGenerator<Uint8Array, void, undefined> {
  yield* parts;
}

/** Returns the kind of an entry. Old archives mark a directory by a trailing slash. */
const kindOf = ({ type, name }: Header): Header["type"] =>
  type === "contiguous-file" || type === "file" ? (name.endsWith("/") ? "directory" : "file") : type;

/**
 * Returns the modification time, from the pax header if present because it has fractions of seconds. Null if the time
 * is not valid.
 */
function timeOf({ mtime, pax }: Header): number | null {
  const paxTime =
    typeof pax === "object" && pax !== null && "mtime" in pax ? Number(pax.mtime) * 1_000 : Number.NaN;
  const time = Number.isFinite(paxTime) ? Math.round(paxTime) : mtime.getTime();
  return time >= 0 && time <= TIME_MAX ? time : null;
}

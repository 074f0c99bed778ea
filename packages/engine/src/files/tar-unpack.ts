import { posix } from "node:path";
import { type ErrorCode, HoldfastError, normalisePath } from "@holdfast/contract";
import type { Header } from "tar-stream";
import { quoted } from "./file-view.ts";
import { translate } from "./gate.ts";
import { type FileAccess, KeeperRefusal, type Stat, type WriteOptions } from "./ports.ts";
import { BrokenArchive, type TarPart, TarReader } from "./tar-reader.ts";

/** Of one archive. */
const ENTRIES_MAX = 1_000_000;
/** Files that are put into their places at the same time, and how large they may be. */
const FILES_AT_ONCE = 8;
const SMALL_BYTES = 65_536;
/** Without those that make a program run as somebody else. */
const MODE_MASK = 0o1777;
/** The last moment that a date can be. */
const TIME_MAX = 8_640_000_000_000_000;

export interface Unpacking {
  files: FileAccess;
  /** The directory that the archive is unpacked into. */
  path: string;
  isReserved(path: string): boolean;
  /** Of what is new; what is replaced keeps its own. */
  owner: Pick<WriteOptions, "uid" | "gid">;
  signal: AbortSignal;
}

/**
 * Takes an archive apart into a directory, entry by entry as it comes in. It may be hostile: names that lead out of the
 * directory are refused, as is whatever is neither file, directory nor link. Symbolic links are made as they are, since
 * nothing behind them is out of reach of whoever may write here.
 *
 * A file is there with all of its content or not at all. An archive is not: what was unpacked before something is wrong stays.
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
    await unpacked.quiet();
    const why = reader.why(error);
    throw why instanceof BrokenArchive
      ? refused("invalid_request", `The archive can't be read: ${why.message}. ${unpacked.stays}`)
      : why;
  } finally {
    reader.close();
  }
  return unpacked.counts;
}

/** Something has been done by then, as a rule. */
const refused = (code: ErrorCode, message: string): HoldfastError =>
  new HoldfastError(code, { message, dispatched: "yes" });

class Unpacked {
  readonly counts = { files: 0, bytes: 0 };
  readonly #given: Unpacking;
  /** Those that are there for certain. */
  readonly #directories = new Set<string>();
  /** Directories get their times last: what is put into them changes those. */
  readonly #times = new Map<string, number>();
  /** Small files on their way, by their paths. */
  readonly #underWay = new Map<string, Promise<void>>();
  #entries = 0;
  #isMade = false;

  constructor(given: Unpacking) {
    this.#given = given;
  }

  get stays(): string {
    return `What was unpacked before stays (files: ${this.counts.files}).`;
  }

  /** The directory itself: one that was there is the caller's, and is not changed. */
  async begin(): Promise<void> {
    const { files, path, owner, signal } = this.#given;
    const there = await this.#look(path, true);
    this.#isMade = there === null;
    if (there !== null && there.kind !== "directory")
      throw refused("file_conflict", `It is no directory: ${path}`);
    if (there === null) await files.mkdir(path, { parents: true, ...owner }, signal);
    this.#directories.add(path);
  }

  async add({ header, body }: TarPart): Promise<void> {
    if (++this.#entries > ENTRIES_MAX)
      throw refused("too_large", `The archive has more than ${ENTRIES_MAX} entries. ${this.stays}`);
    const path = this.#pathOf(header.name);
    if (kindOf(header) === "file" && header.size <= SMALL_BYTES) return this.#addSmall(path, header, body);
    await this.#settled();
    await this.#place(path, header, body);
  }

  /** It goes its way while the next ones come in: each takes several answers, which is what takes the time of many. */
  async #addSmall(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const parts: Uint8Array[] = [];
    for await (const part of body) parts.push(part);
    // A second one of the same path is behind the first.
    while (this.#underWay.size >= FILES_AT_ONCE || this.#underWay.has(path))
      await Promise.race(this.#underWay.values());
    const placed = this.#place(path, header, inOrder(parts)).then(() => void this.#underWay.delete(path));
    // That it failed is told to whoever waits next.
    placed.catch(() => {});
    this.#underWay.set(path, placed);
  }

  /** All else is behind the files before it. */
  async #settled(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  /** Resolves when nothing is under way any more, well or not. */
  async quiet(): Promise<void> {
    await Promise.allSettled(this.#underWay.values());
  }

  async finish(): Promise<void> {
    const { files, signal } = this.#given;
    await this.#settled();
    for (const [path, modifiedAt] of this.#times) await files.touch(path, modifiedAt, signal);
  }

  async #place(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    try {
      await this.#placed(path, header, body);
    } catch (error) {
      throw translate(error, { path });
    }
  }

  async #placed(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const kind = kindOf(header);
    if (kind === "directory") return this.#directory(path, header);
    if (path === this.#given.path) throw this.#unfit(header, "has no name");
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
        throw this.#unfit(header, "is neither file, directory nor link");
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
      throw refused("invalid_path", `It is a link to a name that may not be: ${path}. ${this.stays}`);
    await this.#makeParent(path);
    await this.#makeWay(path, "symlink");
    await files.symlink(path, target, owner, signal);
    await this.#touch(path, modifiedAt);
  }

  /** A second name for an earlier entry becomes a file of its own with the same content. */
  async #copy(path: string, header: Header): Promise<void> {
    const { files, signal } = this.#given;
    const source = this.#pathOf(header.linkname ?? "");
    if (source === path) return;
    const there = await this.#look(source, false);
    if (there?.kind === "symlink") return this.#link(path, there.target, there.modifiedAt);
    if (there?.kind !== "file")
      throw this.#unfit(header, `is a link to ${quoted(header.linkname ?? "")}, which is not there`);
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

  /** Whether nothing is there that stays: a link is replaced, and not what it leads to. */
  async #makeWay(path: string, kind: "file" | "symlink"): Promise<boolean> {
    const { files, signal } = this.#given;
    const there = await this.#look(path, false);
    if (there === null) return true;
    if (there.kind === "file" && kind === "file") return false;
    if (there.kind === "directory") throw refused("file_conflict", `A directory is in the way: ${path}`);
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

  async #look(path: string, follow: boolean): Promise<Stat | null> {
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

  /** Absolute names count from the directory as well. */
  #pathOf(name: string): string {
    const inside = normalisePath(`/${name}`);
    const path = inside === null ? null : normalisePath(posix.join(this.#given.path, inside));
    const code = path === null ? "invalid_path" : this.#given.isReserved(path) ? "forbidden_path" : null;
    if (path !== null && code === null) return path;
    throw refused(
      code ?? "invalid_path",
      `The archive has an entry that may not be: ${quoted(name)}. ${this.stays}`,
    );
  }

  #unfit({ name }: Header, why: string): HoldfastError {
    return refused("invalid_request", `The archive's entry ${quoted(name)} ${why}. ${this.stays}`);
  }
}

async function* inOrder(parts: readonly Uint8Array[]): AsyncGenerator<Uint8Array, void, undefined> {
  yield* parts;
}

/** Old archives know a directory by the slash at its end. */
const kindOf = ({ type, name }: Header): Header["type"] =>
  type === "contiguous-file" || type === "file" ? (name.endsWith("/") ? "directory" : "file") : type;

/** The pax header has parts of seconds. Null where there is no such time. */
function timeOf({ mtime, pax }: Header): number | null {
  const said =
    typeof pax === "object" && pax !== null && "mtime" in pax ? Number(pax.mtime) * 1_000 : Number.NaN;
  const time = Number.isFinite(said) ? Math.round(said) : mtime.getTime();
  return time >= 0 && time <= TIME_MAX ? time : null;
}

import { createWriteStream } from "node:fs";
import { chmod, lstat, lutimes, mkdir, stat, symlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { type Extract, extract, type Header } from "tar-stream";
import { Failure } from "../failure.ts";
import { isPlainName } from "./place.ts";
import { replaceEntry } from "./replace-entry.ts";
import type { Tally } from "./tally.ts";

const DEPTH_MAX = 128;
/** Files up to this size are written several at a time, because most of the time for a small file is spent waiting. */
const SMALL_BYTES = 65_536;
const FILES_AT_ONCE = 8;

/**
 * Unpacks an archive of a sandbox or drive into a local directory. The archive is not trusted, so no file may be
 * written outside the target. Names that could lead to another directory are rejected. A file replaces the entry at its
 * path, and is never written through a symbolic link there. Directories below the target must not be symbolic links,
 * even if an earlier copy created them.
 */
export async function unpackDirectory(
  archive: AsyncIterable<Uint8Array>,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const parser = extract();
  const unpacking = new Unpacking(target, tally);
  try {
    await unpacking.begin();
    void feed(tally.counted(archive), parser);
    for await (const entry of parser) await unpacking.add(entry);
    await unpacking.finish();
  } catch (error) {
    parser.destroy();
    await unpacking.settle();
    signal.throwIfAborted();
    throw error;
  }
}

/**
 * Writes the archive to the parser, with backpressure. If reading the archive fails, the error is passed to the parser,
 * and the loop over the parser's entries throws it.
 */
async function feed(archive: AsyncIterable<Uint8Array>, parser: Extract): Promise<void> {
  let wake = () => {};
  for (const event of ["drain", "close"] as const) parser.on(event, () => wake());
  try {
    for await (const piece of archive) {
      if (parser.destroyed) return;
      const taken = new Promise<void>((resolve) => {
        wake = resolve;
      });
      if (!parser.write(piece)) await taken;
    }
    parser.end(undefined);
  } catch (error) {
    parser.destroy(error as Error);
  }
}

/**
 * An entry as the parser yields it. The parser reads the next entry only after the content of this one was read to its
 * end.
 */
type Entry = Extract extends AsyncIterable<infer One> ? One : never;

interface Attributes {
  mode: number;
  modifiedAt: Date;
}

class Unpacking {
  readonly #target: string;
  readonly #tally: Tally;
  /** Paths of directories that are known to exist and not to be symbolic links. */
  readonly #directories = new Set<string>();
  /**
   * Attributes of directories. They are set only after all entries are written, for two reasons: they may forbid
   * writing, and adding entries changes a directory's modification time.
   */
  readonly #attributes = new Map<string, Attributes>();
  readonly #writing = new Set<Promise<void>>();

  constructor(target: string, tally: Tally) {
    this.#target = target;
    this.#tally = tally;
  }

  /**
   * Creates the target directory if it is missing. An existing target keeps its attributes. It may be a symbolic link
   * to a directory, because the user chose it.
   */
  async begin(): Promise<void> {
    const there = await stat(this.#target).catch(() => null);
    if (there === null) {
      await mkdir(this.#target, { recursive: true, mode: 0o700 });
      this.#attributes.set(this.#target, { mode: 0o755, modifiedAt: new Date() });
    } else if (!there.isDirectory()) throw new Failure(`${this.#target} exists and is not a directory`);
    this.#directories.add(this.#target);
  }

  async add(entry: Entry): Promise<void> {
    const { header } = entry;
    const path = await this.#placeOf(header);
    if (header.type === "directory") await this.#directory(path, header);
    else if (path === this.#target) throw new Failure("the archive has an entry without a name");
    else if (header.type === "file") return this.#file(path, entry);
    else if (header.type === "symlink") await this.#link(path, header);
    else this.#tally.skip(header.name, `it is a ${header.type}`);
    entry.resume();
  }

  async finish(): Promise<void> {
    await Promise.all(this.#writing);
    // The list contains a directory before its subdirectories. It is processed in reverse, because the attributes of a
    // directory may forbid changes below it.
    for (const [path, attributes] of [...this.#attributes].reverse()) await setAttributes(path, attributes);
  }

  /** Waits until the writes in progress have ended, successfully or not. */
  async settle(): Promise<void> {
    await Promise.allSettled(this.#writing);
  }

  /**
   * Returns the local path of an entry. Creates missing parent directories, and checks that none is a symbolic link.
   */
  async #placeOf({ name }: Header): Promise<string> {
    const parts = name.split("/").filter((part) => part !== "" && part !== ".");
    if (!parts.every(isPlainName)) throw new Failure(`invalid file name in the archive: ${name}`);
    if (parts.length > DEPTH_MAX) throw new Failure(`${name} is nested too deeply`);
    let path = this.#target;
    for (const [at, part] of parts.entries()) {
      path = join(path, part);
      if (at < parts.length - 1) await this.#makeDirectory(path);
    }
    return path;
  }

  async #makeDirectory(path: string): Promise<void> {
    if (this.#directories.has(path)) return;
    const there = await lstat(path).catch(() => null);
    if (there === null) await mkdir(path, { mode: 0o700 });
    else if (!there.isDirectory()) throw new Failure(`${path} exists and is not a directory`);
    this.#directories.add(path);
  }

  async #directory(path: string, header: Header): Promise<void> {
    await this.#makeDirectory(path);
    if (path !== this.#target || this.#attributes.has(path)) {
      const { mode, modifiedAt } = attributesOf(header);
      this.#attributes.set(path, { mode: mode | 0o700, modifiedAt });
    }
    this.#tally.done();
  }

  async #file(path: string, entry: Entry): Promise<void> {
    if (entry.header.size > SMALL_BYTES) return this.#write(path, entry);
    const pieces: Uint8Array[] = [];
    for await (const piece of contentOf(entry)) pieces.push(piece);
    const writing = this.#write(path, { header: entry.header, content: Buffer.concat(pieces) });
    this.#writing.add(writing);
    // A failed write stays in the set, so that the next `Promise.race` or `Promise.all` over the set throws its error.
    writing.then(
      () => this.#writing.delete(writing),
      () => {},
    );
    if (this.#writing.size >= FILES_AT_ONCE) await Promise.race(this.#writing);
  }

  async #write(path: string, source: Entry | { header: Header; content: Buffer }): Promise<void> {
    const attributes = attributesOf(source.header);
    await replaceEntry(path, async (temporary) => {
      const options = { flag: "wx", mode: attributes.mode };
      if ("content" in source) await writeFile(temporary, source.content, options);
      else await pipeline(contentOf(source), createWriteStream(temporary, { ...options, flags: "wx" }));
      await setAttributes(temporary, attributes);
    });
    this.#tally.done();
  }

  async #link(path: string, header: Header): Promise<void> {
    await replaceEntry(path, async (temporary) => {
      await symlink(header.linkname, temporary);
      const { modifiedAt } = attributesOf(header);
      await lutimes(temporary, modifiedAt, modifiedAt);
    });
    this.#tally.done();
  }
}

const contentOf = (entry: Entry) => entry as AsyncIterable<Uint8Array>;

async function setAttributes(path: string, { mode, modifiedAt }: Attributes): Promise<void> {
  await chmod(path, mode);
  await utimes(path, modifiedAt, modifiedAt);
}

/**
 * Returns the entry's time and permissions. Set-user-id, set-group-id and sticky bits are removed, because they refer
 * to the sandbox's users.
 */
function attributesOf({ mode, mtime, pax }: Header): Attributes {
  const exact =
    typeof pax === "object" && pax !== null && "mtime" in pax ? Number(pax.mtime) * 1_000 : Number.NaN;
  return { mode: mode & 0o777, modifiedAt: Number.isFinite(exact) ? new Date(exact) : mtime };
}

import { createReadStream, type Stats } from "node:fs";
import { lstat, open, readdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { type Pack, pack } from "tar-stream";
import { Failure } from "../failure.ts";
import type { Tally } from "./tally.ts";

/** Files up to this size are read whole before they are packed. */
const SMALL_BYTES = 1_048_576;
const STREAM_BYTES = 262_144;

/**
 * Packs a local directory into a tar archive while it is being read: files, directories and symbolic links with their
 * permissions and times. Entries of other kinds, and entries whose names are not UTF-8, are reported and left out;
 * entries that disappear meanwhile are left out.
 */
export async function* packDirectory(directory: string, tally: Tally): AsyncGenerator<Uint8Array> {
  const archive = pack();
  const packing = new Packing(archive, tally);
  packing.tree(directory, await lstat(join(directory, "."))).then(
    () => archive.finalize(),
    (error: Error) => archive.destroy(error),
  );
  yield* tally.counted(archive as AsyncIterable<Uint8Array>);
}

type EntryHeader = Parameters<Pack["entry"]>[0];

class Packing {
  readonly #archive: Pack;
  readonly #tally: Tally;

  constructor(archive: Pack, tally: Tally) {
    this.#archive = archive;
    this.#tally = tally;
  }

  /** Packs a directory, then its files and symbolic links, and then each of its subdirectories in the same way. */
  async tree(top: string, stat: Stats): Promise<void> {
    const directories = [{ path: top, name: "./", stat }];
    for (let at = directories.pop(); at !== undefined; at = directories.pop()) {
      await this.#entry({ ...headerOf(at.name, at.stat), type: "directory" }, null);
      const base = at.name === "./" ? "" : at.name;
      for (const bytes of await readdir(at.path, { encoding: "buffer" })) {
        const name = textOf(bytes);
        const path = join(at.path, bytes.toString());
        if (name === null) {
          this.#tally.skip(path, "its name is not UTF-8");
          continue;
        }
        const found = await lstat(path).catch(nullIfGone);
        if (found?.isDirectory()) directories.push({ path, name: `${base}${name}/`, stat: found });
        else if (found !== null) await this.#leaf(path, base + name, found);
      }
    }
  }

  async #leaf(path: string, name: string, stat: Stats): Promise<void> {
    if (stat.isFile()) return this.#file(path, name);
    if (!stat.isSymbolicLink()) return this.#tally.skip(path, "it is not a file, directory or symbolic link");
    const linkname = textOf(await readlink(path, { encoding: "buffer" }));
    if (linkname === null) return this.#tally.skip(path, "its target is not UTF-8");
    await this.#entry({ ...headerOf(name, stat), type: "symlink", linkname }, null);
  }

  async #file(path: string, name: string): Promise<void> {
    const file = await open(path).catch(nullIfGone);
    if (file === null) return;
    try {
      const stat = await file.stat();
      const header: EntryHeader = { ...headerOf(name, stat), type: "file", size: stat.size };
      if (stat.size <= SMALL_BYTES) {
        const content = await file.readFile();
        await this.#entry({ ...header, size: content.length }, content);
      } else {
        const end = stat.size - 1;
        const content = createReadStream(path, {
          fd: file,
          end,
          highWaterMark: STREAM_BYTES,
          autoClose: false,
        });
        await this.#large(header, path, content);
      }
    } finally {
      await file.close();
    }
  }

  #entry(header: EntryHeader, content: Buffer | null): Promise<void> {
    return new Promise((resolve, reject) => {
      const done = (error?: Error | null) => (error ? reject(error) : resolve());
      if (content === null) this.#archive.entry(header, done);
      else this.#archive.entry(header, content, done);
      this.#tally.done();
    });
  }

  async #large(header: EntryHeader, path: string, content: AsyncIterable<Buffer>): Promise<void> {
    let sink: ReturnType<Pack["entry"]> | undefined;
    const packed = new Promise<void>((resolve, reject) => {
      sink = this.#archive.entry(header, (error) => (error ? reject(error) : resolve()));
    });
    packed.catch(() => {});
    let left = header.size ?? 0;
    for await (const piece of content) {
      left -= piece.length;
      if (sink?.write(piece) === false) await Promise.race([drained(sink), packed]);
    }
    if (left > 0) throw new Failure(`${path} shrank while it was copied`);
    sink?.end(undefined);
    await packed;
    this.#tally.done();
  }
}

const drained = (sink: ReturnType<Pack["entry"]>): Promise<void> =>
  new Promise((resolve) => sink.once("drain", () => resolve()));

/**
 * Decodes a file name. Returns null if the name is not UTF-8: names in an archive must be UTF-8, and a changed name
 * would refer to another file.
 */
function textOf(bytes: Buffer): string | null {
  const text = bytes.toString();
  return Buffer.from(text).equals(bytes) ? text : null;
}

/**
 * Builds the header of an entry. A tar header holds whole seconds only, so a pax record adds the exact modification
 * time.
 */
function headerOf(name: string, { mode, mtimeMs }: Stats): EntryHeader {
  const modifiedAt = Math.max(0, mtimeMs);
  return { name, mode, mtime: new Date(modifiedAt), pax: { mtime: String(modifiedAt / 1_000) } };
}

function nullIfGone(error: NodeJS.ErrnoException): null {
  if (error.code === "ENOENT") return null;
  throw error;
}

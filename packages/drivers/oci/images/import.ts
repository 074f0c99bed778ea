import { createHash, type Hash } from "node:crypto";
import { Readable, type Transform } from "node:stream";
import { createGunzip, createZstdDecompress } from "node:zlib";
import { HoldfastError, isReservedPath, normalisePath } from "@holdfast/contract";
import { BrokenArchive, KeeperRefusal, TarReader } from "@holdfast/engine";
import type { JailedFiles } from "@holdfast/keeper";
import type { Header } from "tar-stream";
import { addStandardFiles } from "./add-standard-files.ts";
import { checkImage } from "./check-image.ts";

interface Imported {
  fingerprint: string;
  files: number;
  sizeBytes: number;
  /** Number of skipped archive entries: devices and pipes, which an image must not contain. */
  skipped: number;
}

interface ImportTarget {
  jail: JailedFiles;
  idCount: number;
}

const MAX_ENTRIES = 5_000_000;
const NOBODY = 65_534;

const refused = (message: string): HoldfastError => new HoldfastError("invalid_request", { message });

/**
 * Unpacks an archive that may be hostile. A jailed process, which can see nothing but the new tree, opens every path,
 * so symbolic links can't lead out of the tree. The checks in this file only reject archives that make no sense.
 */
export async function importTar(
  archive: AsyncIterable<Uint8Array>,
  target: ImportTarget,
  signal: AbortSignal,
): Promise<Imported> {
  const hash = createHash("sha256");
  const unpack = new Unpacking(target, signal);
  const reader = new TarReader(plainTar(archive, hash), signal);
  try {
    for (let part = await reader.next(); part !== null; part = await reader.next())
      await unpack.add(part.header, part.body);
    await unpack.finish();
    await addStandardFiles(target.jail, signal);
    await checkImage(target.jail, signal);
  } catch (error) {
    throw signal.aborted ? signal.reason : explained(reader.why(error));
  } finally {
    reader.close();
  }
  return { fingerprint: hash.digest("hex").slice(0, 32), ...unpack.counts };
}

/** Decompresses the archive. The first bytes show the compression. The hash is computed over the decompressed bytes. */
async function* plainTar(archive: AsyncIterable<Uint8Array>, hash: Hash): AsyncIterable<Buffer> {
  const chunks = archive[Symbol.asyncIterator]();
  const first = await chunks.next();
  const head = Buffer.from(first.done ? [] : first.value);
  const whole = (async function* () {
    yield head;
    for (let next = await chunks.next(); !next.done; next = await chunks.next())
      yield Buffer.from(next.value);
  })();
  const decompress = decompressorFor(head);
  for await (const chunk of decompress === null ? whole : compose(whole, decompress)) {
    hash.update(chunk);
    yield chunk;
  }
}

function compose(bytes: AsyncIterable<Buffer>, decompress: Transform): AsyncIterable<Buffer> {
  const source = Readable.from(bytes);
  source.on("error", (error) => decompress.destroy(error));
  return source.pipe(decompress);
}

function decompressorFor(head: Buffer): Transform | null {
  const magic = head.subarray(0, 4).toString("hex");
  if (magic.startsWith("1f8b")) return createGunzip();
  if (magic === "28b52ffd") return createZstdDecompress();
  if (magic === "fd377a58" || magic.startsWith("425a68")) {
    throw refused("The archive is compressed with xz or bzip2; use tar, tar.gz or tar.zst.");
  }
  return null;
}

class Unpacking {
  readonly counts = { files: 0, sizeBytes: 0, skipped: 0 };
  readonly #target: ImportTarget;
  readonly #signal: AbortSignal;
  /** Modification times of directories. They are set last, because adding a file to a directory changes its time. */
  readonly #directories = new Map<string, number>();
  readonly #others = new Set<string>();
  #entries = 0;

  constructor(target: ImportTarget, signal: AbortSignal) {
    this.#target = target;
    this.#signal = signal;
  }

  async add(header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    if (++this.#entries > MAX_ENTRIES) throw refused("The archive has too many entries.");
    const path = pathOf(header.name);
    if (isReservedPath(path)) return;
    if (header.type === "directory") return this.#directory(path, header);
    if (!["file", "contiguous-file", "link", "symlink"].includes(header.type ?? "file")) {
      this.counts.skipped++;
      return;
    }
    await this.#makeWay(path);
    await this.#place(path, header, body);
    this.counts.files++;
  }

  async finish(): Promise<void> {
    const { jail } = this.#target;
    for (const [path, modifiedAt] of [...this.#directories].reverse()) {
      await jail.utimes(path, modifiedAt, this.#signal);
    }
  }

  async #directory(path: string, header: Header): Promise<void> {
    const { jail } = this.#target;
    const options = { mode: modeOf(header, 0o755), ...this.#owner(header) };
    if (path !== "/") await jail.mkdir(path, { ...options, parents: true }, this.#signal);
    await jail.chown(path, options, this.#signal);
    await jail.chmod(path, options.mode, this.#signal);
    this.#directories.set(path, timeOf(header));
  }

  async #place(path: string, header: Header, body: AsyncIterable<Uint8Array>): Promise<void> {
    const { jail } = this.#target;
    const signal = this.#signal;
    if (header.type === "link") {
      return jail.hardlink(pathOf(header.linkname ?? ""), path, signal);
    }
    if (header.type === "symlink") {
      await jail.symlink(path, header.linkname ?? "", this.#owner(header), signal);
    } else {
      const options = { mode: modeOf(header, 0o644), ...this.#owner(header), parents: true };
      const stat = await jail.write(path, body, options, signal);
      this.counts.sizeBytes += stat.sizeBytes;
    }
    await jail.utimes(path, timeOf(header), signal);
  }

  /**
   * Creates the parent directories that the archive left out. Removes an earlier entry of the same path, which the new
   * entry replaces.
   */
  async #makeWay(path: string): Promise<void> {
    const { jail } = this.#target;
    const parent = path.slice(0, path.lastIndexOf("/"));
    if (parent !== "" && !this.#directories.has(parent)) {
      await jail.mkdir(parent, { parents: true, uid: 0, gid: 0 }, this.#signal);
      this.#directories.set(parent, Date.now());
    }
    if (this.#others.has(path)) await jail.remove(path, { recursive: false }, this.#signal);
    this.#others.add(path);
  }

  #owner(header: Header): { uid: number; gid: number } {
    const inside = (id: number | undefined) => (id !== undefined && id < this.#target.idCount ? id : NOBODY);
    return { uid: inside(header.uid), gid: inside(header.gid) };
  }
}

function pathOf(name: string): string {
  const path = normalisePath(`/${name}`);
  if (path === null) throw refused("The archive has an entry whose path leads outside of it.");
  return path;
}

const modeOf = (header: Header, otherwise: number): number => (header.mode ?? otherwise) & 0o7777;
const timeOf = (header: Header): number => Math.max(0, header.mtime?.getTime() ?? 0);

function explained(error: unknown): unknown {
  if (error instanceof KeeperRefusal) {
    if (error.errno === "ENOSPC" || error.errno === "EDQUOT")
      return new HoldfastError("disk_full", { cause: error });
    return refused(`An entry of the archive can't be unpacked: ${error.errno ?? error.reason}.`);
  }
  if (error instanceof HoldfastError || !(error instanceof Error) || error.name === "AbortError")
    return error;
  const isBroken =
    error instanceof BrokenArchive || /tar|header|zlib|gzip|unexpected end|incorrect/i.test(error.message);
  return isBroken ? refused(`The archive can't be read: ${error.message}`) : error;
}

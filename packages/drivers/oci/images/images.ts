import { chmodSync, chownSync, existsSync, mkdirSync, readdirSync, renameSync } from "node:fs";
import { join } from "node:path";
import { HoldfastError, type Image, isImageName, randomText } from "@holdfast/contract";
import type { Clock, ImportSource, Log } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import { readHostFiles, shownDirs } from "../machine/host-files.ts";
import type { Layout } from "../machine/layout.ts";
import type { ImageOnDisk, ImagesOnDisk } from "../machine/machine.ts";
import { imageKey, readRecord, readReferences, writeRecord } from "../machine/sandbox-notes.ts";
import { fingerprintOf, skeletonOf, writeSkeleton } from "./host-image-tree.ts";
import { importTar } from "./import.ts";

interface ImageRecord {
  image: Image;
  version: string;
  hostDirs: string[];
}

const HOST = "host";
/**
 * Prefix of the directory names of image trees that are incomplete, because an import or a removal is in progress. No
 * image name begins with it.
 */
const TEMPORARY = ".";

interface ImagesOptions {
  layout: Layout;
  porter: Porter;
  clock: Clock;
  log: Log;
  idBase: number;
  idCount: number;
}

/**
 * The images of this machine. `images/NAME/VERSION/rootfs` is the tree of a version, and `images/NAME/image.json` names
 * the current version. A new tree is completed under a temporary name and then renamed. An old version stays as long as
 * a sandbox uses it.
 */
export class OciImages implements ImagesOnDisk {
  readonly #options: ImagesOptions;
  readonly #images = new Map<string, ImageRecord>();

  private constructor(options: ImagesOptions) {
    this.#options = options;
  }

  static async open(options: ImagesOptions): Promise<OciImages> {
    const images = new OciImages(options);
    await images.#removeTemporary();
    images.#load();
    images.#refreshHost();
    await images.#removeUnused();
    return images;
  }

  async list(): Promise<Image[]> {
    return [...this.#images.values()].map(({ image }) => image).sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  async get(name: string): Promise<Image | null> {
    return this.#images.get(name)?.image ?? null;
  }

  /**
   * Finds the current version of an image, or the version that an earlier launch used. The caller must write the
   * sandbox's creation note before it does anything else, because that note prevents the image from being removed.
   */
  resolve(name: string, version?: string): ImageOnDisk {
    const record = this.#images.get(name);
    if (record === undefined) throw new HoldfastError("image_not_found");
    const rootfs = this.#rootfs(name, version ?? record.version);
    if (version !== undefined && !existsSync(rootfs)) throw new HoldfastError("image_not_found");
    return { ...record, version: version ?? record.version, rootfs };
  }

  async import(name: string, source: ImportSource, signal: AbortSignal): Promise<Image> {
    if (name === HOST)
      throw new HoldfastError("invalid_request", { message: `The name '${HOST}' is reserved.` });
    if (!isImageName(name))
      throw new HoldfastError("invalid_request", { message: `'${name}' is not a valid name of an image.` });
    const { layout, porter, idBase, idCount } = this.#options;
    const temporary = join(layout.images, `${TEMPORARY}${randomText(12)}`);
    const rootfs = join(temporary, "rootfs");
    mkdirSync(temporary, { mode: 0o700 });
    mkdirSync(rootfs);
    chownSync(rootfs, idBase, idBase);
    chmodSync(rootfs, 0o755);
    try {
      const jail = await porter.openJail(rootfs, { idBase, idCount }, signal);
      const content = await importTar(source.tar, { jail, idCount }, signal).finally(() => jail.close());
      const { fingerprint, files, sizeBytes, skipped } = content;
      const createdAt = new Date(this.#options.clock.now()).toISOString();
      const image: Image = { name, kind: "imported", fingerprint, createdAt, sizeBytes, files };
      this.#options.log.info({ image: name, files, sizeBytes, skipped }, "image imported");
      this.#place({ image, version: `${fingerprint}-${randomText(6)}`, hostDirs: [] }, temporary);
      await this.#removeUnused();
      return image;
    } finally {
      await porter.removeTree(temporary);
    }
  }

  async remove(name: string, _signal: AbortSignal): Promise<void> {
    if (!this.#images.has(name)) throw new HoldfastError("image_not_found");
    if (name === HOST) {
      throw new HoldfastError("invalid_request", {
        message: "The image 'host' is part of this machine and can't be removed.",
      });
    }
    const { layout, porter } = this.#options;
    const references = readReferences(layout);
    const used = [...references.images].some((key) => key.startsWith(imageKey(name, "")));
    if (used || references.unreadable > 0) throw new HoldfastError("image_in_use");
    const temporary = join(layout.images, `${TEMPORARY}${randomText(12)}`);
    renameSync(join(layout.images, name), temporary);
    this.#images.delete(name);
    await porter.removeTree(temporary);
  }

  reload(): void {
    this.#load();
  }

  #load(): void {
    const { layout } = this.#options;
    for (const name of readdirSync(layout.images)) {
      const record = isImageName(name) ? readRecord(join(layout.images, name, "image.json")) : null;
      if (record !== null && record !== "unreadable") this.#images.set(name, record as ImageRecord);
    }
  }

  /**
   * Creates a new version of the `host` image if the host's files have changed. Existing sandboxes keep their version.
   */
  #refreshHost(): void {
    const { layout, idBase, clock } = this.#options;
    const host = readHostFiles();
    const entries = skeletonOf(host);
    const fingerprint = fingerprintOf(entries, { idBase });
    if (this.#images.get(HOST)?.version === fingerprint && existsSync(this.#rootfs(HOST, fingerprint)))
      return;
    const temporary = join(layout.images, `${TEMPORARY}${randomText(12)}`);
    writeSkeleton(join(temporary, "rootfs"), entries, idBase);
    const sizeBytes = entries.reduce(
      (sum, entry) => sum + (entry.kind === "file" ? entry.content.length : 0),
      0,
    );
    const createdAt = new Date(clock.now()).toISOString();
    const image: Image = {
      name: HOST,
      kind: "host",
      fingerprint,
      createdAt,
      sizeBytes,
      files: entries.length,
    };
    this.#place({ image, version: fingerprint, hostDirs: shownDirs(host) }, temporary);
  }

  #place(record: ImageRecord, temporary: string): void {
    const dir = join(this.#options.layout.images, record.image.name);
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    if (!existsSync(join(dir, record.version))) renameSync(temporary, join(dir, record.version));
    writeRecord(join(dir, "image.json"), record);
    this.#images.set(record.image.name, record);
  }

  /** Removes the trees that an aborted import or removal left behind. */
  async #removeTemporary(): Promise<void> {
    const { layout, porter } = this.#options;
    for (const name of readdirSync(layout.images)) {
      if (name.startsWith(TEMPORARY)) await porter.removeTree(join(layout.images, name));
    }
  }

  /** Removes versions that are neither current nor used by a sandbox. */
  async #removeUnused(): Promise<void> {
    const { layout, porter } = this.#options;
    const references = readReferences(layout);
    if (references.unreadable > 0) return;
    for (const name of readdirSync(layout.images)) {
      if (name.startsWith(TEMPORARY)) continue;
      for (const version of readdirSync(join(layout.images, name))) {
        const current = version === "image.json" || this.#images.get(name)?.version === version;
        if (current || references.images.has(imageKey(name, version))) continue;
        await porter.removeTree(join(layout.images, name, version));
      }
    }
  }

  #rootfs(name: string, version: string): string {
    return join(this.#options.layout.images, name, version, "rootfs");
  }
}

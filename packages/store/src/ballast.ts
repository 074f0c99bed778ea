import { existsSync, rmSync, statSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";

const MB = 1_048_576;
/** Room for some thousand deletes to be recorded. */
export const FOR_COMMITS_BYTES = 16 * MB;
/** Room for the files that SQLite makes when it opens a database. */
export const FOR_OPENING_BYTES = 8 * MB;
/** With less than this it can't be opened for certain. */
const USEFUL_BYTES = MB / 4;
const PIECE_BYTES = 65_536;
const AGAIN_AFTER_MS = 60_000;

/**
 * Disk space set aside for the moment when there is none. A full disk must not keep a delete from being recorded, for the
 * delete is what frees the disk: the file is given up at the first write that finds no room, and made again once there
 * is some. It is written in full, because a file system promises nothing for a file of zeros that it never stored.
 */
export class Ballast {
  readonly #path: string;
  readonly #bytes: number;
  #timer: NodeJS.Timeout | undefined;
  #making: Promise<void> | undefined;
  #closed = false;

  constructor(path: string, bytes: number) {
    this.#path = path;
    this.#bytes = bytes;
  }

  /** Takes it aboard, if there is room; otherwise tries again later. Never fails. */
  load(): Promise<void> {
    return this.#once(this.#bytes);
  }

  /** Takes aboard whatever there is room for, and closes. */
  async stow(): Promise<void> {
    await this.#making;
    await this.#once(USEFUL_BYTES);
    await this.close();
  }

  #once(leastBytes: number): Promise<void> {
    this.#making ??= this.#make(leastBytes).finally(() => {
      this.#making = undefined;
    });
    return this.#making;
  }

  /** True where there was something to give up. */
  drop(): boolean {
    const isThere = existsSync(this.#path);
    if (isThere) rmSync(this.#path, { force: true });
    this.#later();
    return isThere;
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#making;
  }

  async #make(leastBytes: number): Promise<void> {
    if (this.#closed || sizeOf(this.#path) >= leastBytes) return;
    const partial = `${this.#path}.partial`;
    try {
      if ((await this.#write(partial)) < leastBytes) throw new Error("there is no room for it");
      await rename(partial, this.#path);
    } catch {
      await rm(partial, { force: true }).catch(() => undefined);
      this.#later();
    }
  }

  /** Answers how much of it there was room for. */
  async #write(path: string): Promise<number> {
    const file = await open(path, "w", 0o600);
    let size = 0;
    try {
      // Not compressible, so that a file system which compresses doesn't save the space that is to be set aside.
      const piece = crypto.getRandomValues(new Uint8Array(PIECE_BYTES));
      for (; size < this.#bytes; size += piece.length) await file.write(piece, 0, piece.length, size);
    } catch {
      // Full, or as good as that.
    }
    try {
      await file.datasync();
      return size;
    } finally {
      await file.close();
    }
  }

  #later(): void {
    if (this.#closed || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.load();
    }, AGAIN_AFTER_MS).unref();
  }
}

const sizeOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0;

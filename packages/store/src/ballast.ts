import { existsSync, rmSync, statSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";

const MB = 1_048_576;
/** Size of the reserve file that is deleted to make room for commits: enough to record some thousand deletes. */
export const FOR_COMMITS_BYTES = 16 * MB;
/** Size of the reserve file that is deleted to make room for the files that SQLite creates when it opens a database. */
export const FOR_OPENING_BYTES = 8 * MB;
/** Minimum size at which a reserve file is useful. Opening the database may need this much space. */
const USEFUL_BYTES = MB / 4;
const PIECE_BYTES = 65_536;
const AGAIN_AFTER_MS = 60_000;

/**
 * A reserve file for when the disk is full. A full disk must not prevent a delete from being recorded, because deletes
 * free disk space. The file is therefore deleted at the first write that finds no space, and written again once there
 * is space. It is filled with random data, because a file system reserves no space for zeros in a sparse file.
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

  /** Writes the reserve file if there is space for it. Otherwise retries later. Never fails. */
  load(): Promise<void> {
    return this.#once(this.#bytes);
  }

  /** Writes as much of the reserve file as there is space for, and stops all retries. */
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

  /** Deletes the reserve file. Returns whether it existed. */
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
      if ((await this.#write(partial)) < leastBytes) throw new Error("not enough free disk space");
      await rename(partial, this.#path);
    } catch {
      await rm(partial, { force: true }).catch(() => undefined);
      this.#later();
    }
  }

  /** Writes the reserve file to this path. Returns how many bytes were written, which are fewer if the disk is full. */
  async #write(path: string): Promise<number> {
    const file = await open(path, "w", 0o600);
    let size = 0;
    try {
      // Random bytes, so that a compressing file system reserves the space too.
      const piece = crypto.getRandomValues(new Uint8Array(PIECE_BYTES));
      for (; size < this.#bytes; size += piece.length) await file.write(piece, 0, piece.length, size);
    } catch {
      // The write failed because the disk is full, or nearly full.
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

import { mkdir, readdir, stat, unlink } from "node:fs/promises";
import { join } from "node:path";

const NAME = /^(\d{8})\.jsonl$/;

/**
 * The files of the log. They are numbered in order of creation, so that a position in the log stays valid when the
 * oldest files are deleted.
 */
export class LogFiles {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  path(number: number): string {
    return join(this.#directory, `${String(number).padStart(8, "0")}.jsonl`);
  }

  make(): Promise<unknown> {
    return mkdir(this.#directory, { recursive: true, mode: 0o700 });
  }

  /** Returns the numbers of the files, oldest first. */
  async numbers(): Promise<number[]> {
    const names = await readdir(this.#directory).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return [];
      throw error;
    });
    return names.flatMap((name) => NAME.exec(name)?.slice(1).map(Number) ?? []).sort((a, b) => a - b);
  }

  async size(number: number): Promise<number> {
    return (await stat(this.path(number))).size;
  }

  /** Deletes all files except the newest `count`. */
  async keep(count: number): Promise<void> {
    const numbers = await this.numbers();
    for (const number of numbers.slice(0, Math.max(0, numbers.length - count)))
      await unlink(this.path(number));
  }
}

import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  closeSync,
  ftruncateSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  rmSync,
  statfsSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const MB = 1_048_576;
const BLOCK = 4_096;
/** Whoever held the file system a moment ago may still be on its way out. */
const BUSY_MS = 10_000;

/** A small disk of a test's own, which can be filled to the last block and harms nobody else then. */
export class LoopDisk implements AsyncDisposable {
  readonly #place = mkdtempSync(join(tmpdir(), "holdfast-disk-"));
  readonly dir = join(this.#place, "disk");

  constructor(sizeMb: number) {
    const image = join(this.#place, "image");
    const file = openSync(image, "wx", 0o600);
    ftruncateSync(file, sizeMb * MB);
    closeSync(file);
    // Nothing is set aside for root, or a full disk would not be full to the server.
    execFileSync("mke2fs", ["-q", "-F", "-t", "ext4", "-m", "0", image]);
    mkdirSync(this.dir);
    execFileSync("mount", ["-o", "loop,discard", image, this.dir]);
    // Sandboxes reach their files with the rights of nobody.
    for (const each of [this.#place, this.dir]) chmodSync(each, 0o755);
    mkdirSync(this.#fillings);
  }

  get freeBytes(): number {
    const { bavail, bsize } = statfsSync(this.dir);
    return bavail * bsize;
  }

  get #fillings(): string {
    return join(this.dir, "fillings");
  }

  /** Takes all that is free. */
  fill(): void {
    let piece = Number.POSITIVE_INFINITY;
    for (let i = readdirSync(this.#fillings).length; ; i += 1) {
      piece = Math.min(piece, this.freeBytes);
      if (piece < BLOCK) return;
      const made = spawnSync("fallocate", ["-l", String(piece), join(this.#fillings, String(i))]);
      // Others write as well, and the file system needs blocks of its own for large files.
      if (made.status !== 0) piece = Math.floor(piece / 2);
    }
  }

  empty(): void {
    for (const name of readdirSync(this.#fillings)) rmSync(join(this.#fillings, name));
  }

  /** Fails where anything still uses it: not lazily, because a mount that nobody sees is a leak as well. */
  async [Symbol.asyncDispose](): Promise<void> {
    const end = Date.now() + BUSY_MS;
    for (;;) {
      try {
        execFileSync("umount", [this.dir], { stdio: "pipe" });
        break;
      } catch (error) {
        if (Date.now() > end) throw error;
        await sleep(100);
      }
    }
    rmSync(this.#place, { recursive: true });
  }
}

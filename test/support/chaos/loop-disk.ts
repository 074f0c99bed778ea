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
/** How long an unmount is retried, because a process that was just using the file system may still be ending. */
const BUSY_MS = 10_000;

/** A small disk for one test, which can be filled to the last block without effect on the host. */
export class LoopDisk implements AsyncDisposable {
  readonly #place = mkdtempSync(join(tmpdir(), "holdfast-disk-"));
  readonly dir = join(this.#place, "disk");

  constructor(sizeMb: number) {
    const image = join(this.#place, "image");
    const file = openSync(image, "wx", 0o600);
    ftruncateSync(file, sizeMb * MB);
    closeSync(file);
    // No blocks are reserved for root; otherwise a full disk would not be full for the server.
    execFileSync("mke2fs", ["-q", "-F", "-t", "ext4", "-m", "0", image]);
    mkdirSync(this.dir);
    execFileSync("mount", ["-o", "loop,discard", image, this.dir]);
    // Sandboxes access their files as an unprivileged user.
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

  /** Fills all free space. */
  fill(): void {
    let piece = Number.POSITIVE_INFINITY;
    for (let i = readdirSync(this.#fillings).length; ; i += 1) {
      piece = Math.min(piece, this.freeBytes);
      if (piece < BLOCK) return;
      const made = spawnSync("fallocate", ["-l", String(piece), join(this.#fillings, String(i))]);
      // Other processes write as well, and the file system needs blocks of its own for large files.
      if (made.status !== 0) piece = Math.floor(piece / 2);
    }
  }

  empty(): void {
    for (const name of readdirSync(this.#fillings)) rmSync(join(this.#fillings, name));
  }

  /** Fails if the disk is still in use. A lazy unmount would hide a leaked mount. */
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

import { randomUUID } from "node:crypto";
import { createWriteStream } from "node:fs";
import { chmod, lstat, mkdir, rename, rm, stat, symlink } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import type { FileStat, Files } from "@holdfast/sdk";
import { Failure } from "./failure.ts";
import { isPlainName, targetOf } from "./place.ts";
import type { Tally } from "./tally.ts";

const DEPTH_AT_MOST = 128;

/**
 * Copies a file or directory of a sandbox or drive to this machine. What is said of it is not trusted: names that aren't
 * plain are refused, files replace what is at their path instead of being written through it, and directories below
 * the target must be real ones. So nothing lands outside the target, not even over links of an earlier copy.
 */
export async function download(
  files: Files,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const found = await files.stat(source.replace(/\/\.$/, "") || "/", { signal });
  const there = await stat(target).catch(() => null);
  const path = resolve(targetOf(source, target, there?.isDirectory() ?? false));
  const copy = new Download(files, tally, signal);
  if (found.kind === "directory") await copy.directory(found, path, 0, true);
  else await copy.entry(found, path, 0);
}

class Download {
  readonly #files: Files;
  readonly #tally: Tally;
  readonly #signal: AbortSignal;

  constructor(files: Files, tally: Tally, signal: AbortSignal) {
    this.#files = files;
    this.#tally = tally;
    this.#signal = signal;
  }

  async entry(found: FileStat, path: string, depth: number): Promise<void> {
    if (found.kind === "directory") await this.directory(found, path, depth, false);
    else if (found.kind === "file") await this.#file(found, path);
    else if (found.kind === "symlink") await this.#link(found.target ?? "", path);
    else this.#tally.skip(found.path, `a ${found.kind}`);
  }

  async directory(found: FileStat, path: string, depth: number, chosen: boolean): Promise<void> {
    if (depth > DEPTH_AT_MOST) throw new Failure(`${found.path} is nested too deeply`);
    await makeDirectory(path, chosen);
    const { items, truncated } = await this.#files.list(found.path, { signal: this.#signal });
    if (truncated)
      throw new Failure(
        `${found.path} has too many entries`,
        "Pack it with tar inside a sandbox, and copy that.",
      );
    for (const item of items) {
      if (!isPlainName(item.name)) throw new Failure(`it has a file with an impossible name: ${item.name}`);
      await this.entry(item, join(path, item.name), depth + 1);
    }
    await chmod(path, modeOf(found) | 0o700);
    this.#tally.done();
  }

  async #file(found: FileStat, path: string): Promise<void> {
    const temporary = join(dirname(path), `.holdfast-${randomUUID()}`);
    try {
      const content = await this.#files.readStream(found.path, { signal: this.#signal });
      const file = createWriteStream(temporary, { flags: "wx", mode: modeOf(found) });
      await pipeline(this.#tally.counted(content), file, { signal: this.#signal });
      await chmod(temporary, modeOf(found));
      await rename(temporary, path);
    } finally {
      await rm(temporary, { force: true });
    }
    this.#tally.done();
  }

  async #link(to: string, path: string): Promise<void> {
    const temporary = join(dirname(path), `.holdfast-${randomUUID()}`);
    await symlink(to, temporary);
    try {
      await rename(temporary, path);
    } finally {
      await rm(temporary, { force: true });
    }
    this.#tally.done();
  }
}

/** The one that the user named may be a link to a directory; those below it may not. */
async function makeDirectory(path: string, chosen: boolean): Promise<void> {
  const there = await (chosen ? stat : lstat)(path).catch(() => null);
  if (there === null) await mkdir(path, { recursive: chosen, mode: 0o700 });
  else if (!there.isDirectory()) throw new Failure(`${path} is in the way: it is not a directory`);
}

/** Without set-user-id and the like: those bits are for the sandbox's users, not for ours. */
const modeOf = (found: FileStat): number => Number.parseInt(found.mode, 8) & 0o777;

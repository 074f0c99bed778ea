import { createReadStream, type Stats } from "node:fs";
import { lstat, readdir, readFile, readlink, stat } from "node:fs/promises";
import { basename, join, posix } from "node:path";
import { type FileStat, type Files, NotFoundError } from "@holdfast/sdk";
import { Failure } from "./failure.ts";
import { linkArchive } from "./link-archive.ts";
import { targetOf } from "./place.ts";
import type { Tally } from "./tally.ts";

/** Files up to this size are sent from memory, so that a lost answer can be repeated. */
const AT_ONCE_BYTES = 1_048_576;
const STREAM_BYTES = 262_144;

/** Copies a local file or directory into a sandbox or drive. */
export async function upload(
  files: Files,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const found = await stat(source).catch((error: Error) => {
    throw new Failure(`${source} can't be read: ${error.message}`);
  });
  const there = await statOf(files, target, signal);
  const name = source === "." || source.endsWith("/.") ? source : basename(source);
  await send(files, source, found, targetOf(name, target, there?.kind === "directory"), tally, signal);
}

async function send(
  files: Files,
  source: string,
  found: Stats,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const mode = (found.mode & 0o7777).toString(8).padStart(4, "0");
  if (found.isFile()) {
    const content =
      found.size <= AT_ONCE_BYTES
        ? await readFile(source)
        : tally.counted(createReadStream(source, { highWaterMark: STREAM_BYTES }));
    await files.write(target, content, { mode, signal });
  } else if (found.isDirectory()) {
    await files.mkdir(target, { mode, signal });
    for (const name of await readdir(source)) {
      const path = join(source, name);
      await send(files, path, await lstat(path), posix.join(target, name), tally, signal);
    }
  } else if (found.isSymbolicLink()) {
    const link = linkArchive(posix.basename(target), await readlink(source));
    await files.unpack(posix.dirname(target), link, { signal });
  } else {
    tally.skip(source, "neither a file, a directory nor a link");
    return;
  }
  tally.done();
}

async function statOf(files: Files, path: string, signal: AbortSignal): Promise<FileStat | null> {
  try {
    return await files.stat(path, { signal });
  } catch (error) {
    if (error instanceof NotFoundError && error.code === "file_not_found") return null;
    throw error;
  }
}

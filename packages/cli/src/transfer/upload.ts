import { createReadStream, type Stats } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { basename } from "node:path";
import { type FileStat, type Files, HoldfastError, NotFoundError } from "@holdfast/sdk";
import { unreadable } from "./local-file.ts";
import { packDirectory } from "./pack-directory.ts";
import { targetOf } from "./place.ts";
import type { Tally } from "./tally.ts";

/** Files up to this size are sent from memory, so that the request can be repeated if its response is lost. */
const IN_MEMORY_BYTES = 1_048_576;
const STREAM_BYTES = 262_144;
/** Maximum number of times that a directory is sent before the copy fails. */
const DIRECTORY_TRIES = 5;

/** Copies a local file or directory into a sandbox or drive. */
export async function upload(
  files: Files,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const found = await stat(source).catch((error: unknown) => {
    throw unreadable(source, error);
  });
  const there = await statOf(files, target, signal);
  const name = source === "." || source.endsWith("/.") ? source : basename(source);
  const path = targetOf(name, target, there?.kind === "directory");
  if (found.isDirectory()) await sendDirectory(files, source, path, tally, signal);
  else if (found.isFile()) await sendFile(files, source, found, path, tally, signal);
  else tally.skip(source, "it is not a file or directory");
}

/** Copies a stream to a file or, if the target is a directory, unpacks it there as a tar archive. */
export async function uploadStream(
  files: Files,
  content: AsyncIterable<Uint8Array>,
  target: string,
  signal: AbortSignal,
): Promise<void> {
  const directory = target.endsWith("/") || (await statOf(files, target, signal))?.kind === "directory";
  if (directory) await files.unpack(target.replace(/(?<=.)\/+$/, ""), content, { signal });
  else await files.write(target, content, { signal });
}

async function sendFile(
  files: Files,
  source: string,
  found: Stats,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const mode = (found.mode & 0o7777).toString(8).padStart(4, "0");
  const content =
    found.size <= IN_MEMORY_BYTES
      ? await readFile(source)
      : tally.counted(createReadStream(source, { highWaterMark: STREAM_BYTES }));
  await files.write(target, content, { mode, signal });
  tally.done();
}

/**
 * Sends a directory as one archive, because one request per file is many times slower. After a lost connection, the
 * archive is built again from the directory and sent as a whole. This is safe, because unpacking it twice has the same
 * result as unpacking it once.
 */
async function sendDirectory(
  files: Files,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  for (let tries = 1; ; tries += 1) {
    try {
      tally.restart();
      await files.unpack(target, packDirectory(source, tally), { signal });
      return;
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof HoldfastError) || !error.retryable || tries === DIRECTORY_TRIES) throw error;
      // Waits until the server is reachable again, because the SDK repeats a stat request until then.
      await statOf(files, target, signal);
    }
  }
}

async function statOf(files: Files, path: string, signal: AbortSignal): Promise<FileStat | null> {
  try {
    return await files.stat(path, { signal });
  } catch (error) {
    if (error instanceof NotFoundError && error.code === "file_not_found") return null;
    throw error;
  }
}

import { createWriteStream } from "node:fs";
import { chmod, stat, symlink } from "node:fs/promises";
import { resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import type { FileStat, Files } from "@holdfast/sdk";
import { writeTo } from "../output/streams.ts";
import { targetOf } from "./place.ts";
import { replaceEntry } from "./replace-entry.ts";
import type { Tally } from "./tally.ts";
import { unpackDirectory } from "./unpack-directory.ts";

/**
 * Copies a file or directory of a sandbox or drive to the local machine. A directory is transferred as one tar archive.
 */
export async function download(
  files: Files,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const found = await statOf(files, source, signal);
  const there = await stat(target).catch(() => null);
  const path = resolve(targetOf(source, target, there?.isDirectory() ?? false));
  if (found.kind === "directory")
    await unpackDirectory(await files.pack(found.path, { signal }), path, tally, signal);
  else if (found.kind === "file") await receiveFile(files, found, path, tally, signal);
  else if (found.kind === "symlink")
    await replaceEntry(path, (temporary) => symlink(found.target ?? "", temporary));
  else tally.skip(found.path, `it is a ${found.kind}`);
}

/** Writes a file to stdout, or a directory as a tar archive. */
export async function downloadStream(files: Files, source: string, signal: AbortSignal): Promise<void> {
  const { kind, path } = await statOf(files, source, signal);
  const content = await (kind === "directory"
    ? files.pack(path, { signal })
    : files.readStream(path, { signal }));
  for await (const piece of content) await writeTo("stdout", piece, signal);
}

/** Reads the stat of a source. The source `dir/.` stands for the directory `dir` itself. */
const statOf = (files: Files, source: string, signal: AbortSignal): Promise<FileStat> =>
  files.stat(source.replace(/\/\.$/, "") || "/", { signal });

async function receiveFile(files: Files, found: FileStat, path: string, tally: Tally, signal: AbortSignal) {
  const mode = Number.parseInt(found.mode, 8) & 0o777;
  const content = await files.readStream(found.path, { signal });
  await replaceEntry(path, async (temporary) => {
    await pipeline(tally.counted(content), createWriteStream(temporary, { flags: "wx", mode }), { signal });
    await chmod(temporary, mode);
  });
}

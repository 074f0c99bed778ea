import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, opendir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { type ExecId, isExecId } from "@holdfast/contract";
import type { Porter } from "@holdfast/keeper";
import { errnoOf, isGone } from "./errno.ts";
import { inDirectory, JournalFile } from "./journal-file.ts";
import { findFloor } from "./journal-records.ts";

/** What is copied of one sandbox's journals, the newest first; the rest goes with its disk. */
export const COPIED_BYTES_MAX = 256 * 1_048_576;
/** More entries than this are in no journals' directory that a keeper made. */
const ENTRIES_MAX = 20_000;
const CHUNK_BYTES = 1_048_576;

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY } = constants;

/** Where copies are put until they are all there. No sandbox has such a name. */
export const draftOf = (kept: string): string =>
  join(kept, "..", `.${kept.slice(kept.lastIndexOf("/") + 1)}`);

/**
 * Copies journals to another file system: files only, under a limit, each where it was in its file so that cursors stay
 * valid. They appear under their name together, and a disk that is full in the middle keeps those that are whole. The
 * files' names, sizes and number may be a sandbox's invention.
 */
export async function copyJournals(
  from: string,
  kept: string,
  porter: Pick<Porter, "removeTree">,
  signal: AbortSignal,
  maxBytes = COPIED_BYTES_MAX,
): Promise<void> {
  const draft = draftOf(kept);
  await porter.removeTree(draft);
  try {
    const ids = (await inDirectory(from, newestFirst)) ?? [];
    if (ids.length === 0) return;
    await mkdir(draft, { mode: 0o700 });
    if ((await copyAll(ids, { from, draft, maxBytes }, signal)) > 0) await rename(draft, kept);
  } finally {
    await porter.removeTree(draft);
  }
}

async function newestFirst(directory: string): Promise<ExecId[]> {
  const found: { id: ExecId; at: number }[] = [];
  for await (const { name } of await opendir(directory)) {
    if (found.length >= ENTRIES_MAX) break;
    if (!isExecId(name)) continue;
    const stat = await lstat(join(directory, name)).catch((error: unknown) => {
      if (isGone(error)) return null;
      throw error;
    });
    if (stat?.isFile()) found.push({ id: name, at: stat.mtimeMs });
  }
  return found.sort((a, b) => b.at - a.at).map(({ id }) => id);
}

/** How many were copied. */
async function copyAll(
  ids: readonly ExecId[],
  { from, draft, maxBytes }: { from: string; draft: string; maxBytes: number },
  signal: AbortSignal,
): Promise<number> {
  let left = maxBytes;
  let copied = 0;
  for (const id of ids) {
    const target = join(draft, id);
    try {
      const bytes = await JournalFile.with(from, id, (file) => copyOne(file, target, left, signal));
      if (bytes === null) continue;
      left -= bytes;
      copied += 1;
    } catch (error) {
      if (!["ENOSPC", "EDQUOT"].includes(errnoOf(error))) throw error;
      await unlink(target).catch(() => {});
      break;
    }
  }
  return copied;
}

/** The bytes that it took; null where they are more than `left`. */
async function copyOne(
  file: JournalFile,
  target: string,
  left: number,
  signal: AbortSignal,
): Promise<number | null> {
  const floor = await findFloor(file, signal);
  if (file.size - floor > left) return null;
  const copy: FileHandle = await open(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  try {
    await copy.truncate(file.size);
    for (let at = floor; at < file.size; ) {
      signal.throwIfAborted();
      const bytes = await file.read(at, CHUNK_BYTES);
      if (bytes.length === 0) break;
      for (let done = 0; done < bytes.length; )
        done += (await copy.write(bytes, done, bytes.length - done, at + done)).bytesWritten;
      at += bytes.length;
    }
  } finally {
    await copy.close();
  }
  return file.size - floor;
}

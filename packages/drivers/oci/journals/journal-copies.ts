import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, opendir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { type ExecId, isExecId } from "@holdfast/contract";
import type { Porter } from "@holdfast/keeper";
import { errnoOf, isGone } from "../proc/errno.ts";
import { inDirectory, JournalFile } from "./journal-file.ts";
import { findFloor } from "./journal-records.ts";

/**
 * Maximum number of bytes of a sandbox's journals to copy, newest journals first. Older journals are deleted with the
 * sandbox's disk.
 */
const COPIED_BYTES_MAX = 256 * 1_048_576;
/** Maximum number of directory entries to read. A keeper creates fewer; a hostile sandbox may create more. */
const ENTRIES_MAX = 20_000;
const CHUNK_BYTES = 1_048_576;

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY } = constants;

/**
 * Returns the path at which the copies are kept until all of them are complete. The path is `kept` with a dot before
 * its last component. No sandbox id begins with a dot, so the path belongs to no other sandbox.
 */
export const draftOf = (kept: string): string =>
  join(kept, "..", `.${kept.slice(kept.lastIndexOf("/") + 1)}`);

/**
 * Copies journals to another file system: only regular files, up to `maxBytes`, with all data at its original offset so
 * that cursors stay valid. All copies become visible at once, by a rename. If the disk fills up, the copies that are
 * complete are kept. Names, sizes and number of the files are untrusted, because the sandbox may have created them.
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

/** Copies the journals in the given order. Returns how many were copied. */
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

/** Copies a journal. Returns the number of bytes copied, or null if the journal has more than `left` bytes. */
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

import { lstat, opendir, readdir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { type ExecId, invariant, isExecId, isSandboxId, type SandboxId } from "@holdfast/contract";
import type { JournalEnd, JournalSlice, JournalsAfterDeath } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import { diskState, mountDisk } from "../files/disk.ts";
import type { Layout, SandboxPlaces } from "../machine/layout.ts";
import { errnoOf } from "../proc/errno.ts";
import { copyJournals } from "./journal-copies.ts";
import { inDirectory, JournalFile } from "./journal-file.ts";
import { findEnd, readSlice } from "./journal-records.ts";

/**
 * Maximum number of other entries to skip in a search for a journal in a directory. If there are more, the directory
 * counts as one that contains journals.
 */
const FOREIGN_MAX = 1_000;
/** Maximum number of entries in an archive of journals. An archive with more entries is removed as a whole. */
const ENTRIES_MAX = 20_000;
/**
 * Maximum number of directories in an archive of journals. A directory is not a journal and is removed. An archive with
 * more directories is removed as a whole.
 */
const TREES_MAX = 16;
/** Maximum total size of the archived journals of one deleted sandbox. */
const KEPT_BYTES_MAX = 1_024 * 1_048_576;

interface JournalsOptions {
  layout: Layout;
  porter: Pick<Porter, "removeTree" | "mountDisk">;
  idBase: number;
}

/**
 * Reads journals without their keeper. While a sandbox exists, its journals are where the keeper wrote them; later they
 * are in an archive of journals. A single rename completes the move, so after a crash the journals are in one of
 * the two directories, and both are searched. If the journals are on a sandbox's own disk that is not mounted, for
 * example after a reboot of the host, the disk is mounted first.
 */
export class OciJournals implements JournalsAfterDeath {
  readonly #options: JournalsOptions;
  readonly #layout: Layout;
  readonly #porter: JournalsOptions["porter"];

  constructor(options: JournalsOptions) {
    this.#options = options;
    this.#layout = options.layout;
    this.#porter = options.porter;
  }

  /** Removes the incomplete copies that an aborted `archive` left behind. */
  async open(): Promise<void> {
    for (const name of await readdir(this.#layout.journals)) {
      if (!isSandboxId(name)) await this.#porter.removeTree(join(this.#layout.journals, name));
    }
  }

  read(
    sandboxId: SandboxId,
    id: ExecId,
    from: { cursor: number; maxBytes: number },
    signal: AbortSignal,
  ): Promise<JournalSlice | null> {
    return this.#with(sandboxId, id, signal, (file) => readSlice(file, from, signal));
  }

  end(sandboxId: SandboxId, id: ExecId, signal: AbortSignal): Promise<JournalEnd | null> {
    return this.#with(sandboxId, id, signal, (file) => findEnd(file, id, signal));
  }

  /**
   * Archives the journals of a sandbox that is about to be deleted. Does nothing if journals of this sandbox are
   * archived already.
   */
  async archive(sandboxId: SandboxId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { journals, archivedJournals } = await this.#placesWithDisk(sandboxId);
    try {
      if (!(await lstat(journals)).isDirectory()) return await unlink(journals);
      if (await holdsJournals(journals)) await this.#move(journals, archivedJournals, signal);
    } catch (error) {
      if (!["ENOENT", "EEXIST", "ENOTEMPTY"].includes(errnoOf(error))) throw error;
    }
  }

  async #move(from: string, kept: string, signal: AbortSignal): Promise<void> {
    try {
      await rename(from, kept);
      await this.#removeForeign(kept, signal);
    } catch (error) {
      if (errnoOf(error) !== "EXDEV") throw error;
      await copyJournals(from, kept, this.#porter, signal);
    }
  }

  /**
   * Removes files that a sandbox's root user put next to the journals, and journals beyond the maximum total size. No
   * record refers to these files after the sandbox is deleted, so nothing else would remove them. If the directory has
   * more entries than a keeper creates, the whole directory is removed.
   */
  async #removeForeign(kept: string, signal: AbortSignal): Promise<void> {
    const [files, trees]: [string[], string[]] = [[], []];
    let [entries, left] = [0, KEPT_BYTES_MAX];
    for await (const { name } of await opendir(kept)) {
      signal.throwIfAborted();
      if (++entries > ENTRIES_MAX || trees.length > TREES_MAX) return await this.#porter.removeTree(kept);
      const stat = await lstat(join(kept, name));
      const bytes = stat.blocks * 512;
      if (isExecId(name) && stat.isFile() && bytes <= left) left -= bytes;
      else (stat.isDirectory() ? trees : files).push(join(kept, name));
    }
    for (const path of files) await unlink(path);
    for (const path of trees) await this.#porter.removeTree(path);
  }

  async remove(sandboxId: SandboxId, ids: readonly ExecId[], signal: AbortSignal): Promise<void> {
    const { journals, archivedJournals } = await this.#placesWithDisk(sandboxId);
    for (const directory of [journals, archivedJournals]) {
      await inDirectory(directory, async (at) => {
        for (const id of ids) {
          signal.throwIfAborted();
          if (isExecId(id)) await unlinkFile(`${at}/${id}`);
        }
      });
    }
    if ((await holdsJournals(archivedJournals)) === false) await this.#porter.removeTree(archivedJournals);
  }

  async archived(signal: AbortSignal): Promise<SandboxId[]> {
    signal.throwIfAborted();
    return (await readdir(this.#layout.journals)).filter(isSandboxId);
  }

  async drop(sandboxId: SandboxId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await this.#porter.removeTree(this.#places(sandboxId).archivedJournals);
  }

  #places(id: SandboxId): SandboxPlaces {
    invariant(isSandboxId(id), "journals are requested by a valid sandbox id");
    return this.#layout.sandbox(id);
  }

  /** Returns the paths of a sandbox. Mounts its own disk first, if it has one. */
  async #placesWithDisk(id: SandboxId): Promise<SandboxPlaces> {
    const places = this.#places(id);
    if ((await diskState(places)) === "unmounted") await mountDisk(this.#options, places);
    return places;
  }

  async #with<Result>(
    sandboxId: SandboxId,
    id: ExecId,
    signal: AbortSignal,
    use: (file: JournalFile) => Promise<Result>,
  ): Promise<Result | null> {
    signal.throwIfAborted();
    const { journals, archivedJournals } = await this.#placesWithDisk(sandboxId);
    return (await JournalFile.with(journals, id, use)) ?? (await JournalFile.with(archivedJournals, id, use));
  }
}

/**
 * Deletes a journal file. A directory at this path is not a journal: it stays, and is removed later with its parent.
 */
async function unlinkFile(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    if (!["ENOENT", "EISDIR"].includes(errnoOf(error))) throw error;
  }
}

/** Whether a directory contains journals; null if the path is not a directory. */
function holdsJournals(directory: string): Promise<boolean | null> {
  let foreign = 0;
  return inDirectory(directory, async (at) => {
    for await (const entry of await opendir(at)) {
      if ((isExecId(entry.name) && !entry.isDirectory()) || ++foreign > FOREIGN_MAX) return true;
    }
    return false;
  });
}

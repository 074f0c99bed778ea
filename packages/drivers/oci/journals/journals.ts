import { lstat, opendir, readdir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { type ExecId, invariant, isExecId, isSandboxId, type SandboxId } from "@holdfast/contract";
import type { JournalEnd, JournalSlice, Journals } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";
import { diskState, mountDisk } from "./disk.ts";
import { errnoOf } from "./errno.ts";
import { copyJournals } from "./journal-copies.ts";
import { inDirectory, JournalFile } from "./journal-file.ts";
import { findEnd, readSlice } from "./journal-records.ts";
import type { Layout, SandboxPlaces } from "./layout.ts";

/** A directory with more than this before its first journal was filled by someone else; it counts as one with journals. */
const STRANGERS_MAX = 1_000;
const ENTRIES_MAX = 20_000;
const TREES_MAX = 16;
/** Of one deleted sandbox. */
const KEPT_BYTES_MAX = 1_024 * 1_048_576;

export interface JournalsOptions {
  layout: Layout;
  porter: Pick<Porter, "removeTree" | "mountDisk">;
  idBase: number;
}

/**
 * Journals lie where the keeper wrote them as long as their sandbox is there, and in a directory of its own afterwards. The
 * way from one to the other ends with a single rename, so a crash leaves them in one of both places and both are looked
 * at. Those on a sandbox's own disk are read there too, after the host was restarted as well: the disk is mounted for it.
 */
export class OciJournals implements Journals {
  readonly #options: JournalsOptions;
  readonly #layout: Layout;
  readonly #porter: JournalsOptions["porter"];

  constructor(options: JournalsOptions) {
    this.#options = options;
    this.#layout = options.layout;
    this.#porter = options.porter;
  }

  /** Removes what keeping left that was broken off. */
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

  /** Where some were kept already, those stay, and what else there is goes with the sandbox. */
  async keep(sandboxId: SandboxId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { journals, keptJournals } = await this.#reached(sandboxId);
    try {
      if (!(await lstat(journals)).isDirectory()) return await unlink(journals);
      if (await holdsJournals(journals)) await this.#move(journals, keptJournals, signal);
    } catch (error) {
      if (!["ENOENT", "EEXIST", "ENOTEMPTY"].includes(errnoOf(error))) throw error;
    }
  }

  async #move(from: string, kept: string, signal: AbortSignal): Promise<void> {
    try {
      await rename(from, kept);
      await this.#weed(kept, signal);
    } catch (error) {
      if (errnoOf(error) !== "EXDEV") throw error;
      await copyJournals(from, kept, this.#porter, signal);
    }
  }

  /**
   * What a sandbox's root put beside the journals belongs to nobody once the sandbox is gone: it goes at once, and so does
   * what is larger than journals are. A directory with more entries than a keeper makes is not looked through.
   */
  async #weed(kept: string, signal: AbortSignal): Promise<void> {
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
    const { journals, keptJournals } = await this.#reached(sandboxId);
    for (const directory of [journals, keptJournals]) {
      await inDirectory(directory, async (at) => {
        for (const id of ids) {
          signal.throwIfAborted();
          if (isExecId(id)) await unlinkFile(`${at}/${id}`);
        }
      });
    }
    if ((await holdsJournals(keptJournals)) === false) await this.#porter.removeTree(keptJournals);
  }

  async kept(signal: AbortSignal): Promise<SandboxId[]> {
    signal.throwIfAborted();
    return (await readdir(this.#layout.journals)).filter(isSandboxId);
  }

  async drop(sandboxId: SandboxId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await this.#porter.removeTree(this.#places(sandboxId).keptJournals);
  }

  #places(id: SandboxId): SandboxPlaces {
    invariant(isSandboxId(id), "a sandbox's journals are asked for by its id");
    return this.#layout.sandbox(id);
  }

  /** With the sandbox's own disk mounted, where it has one. */
  async #reached(id: SandboxId): Promise<SandboxPlaces> {
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
    const { journals, keptJournals } = await this.#reached(sandboxId);
    return (await JournalFile.with(journals, id, use)) ?? (await JournalFile.with(keptJournals, id, use));
  }
}

/** What is no file is no journal: it goes with the directory. */
async function unlinkFile(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    if (!["ENOENT", "EISDIR"].includes(errnoOf(error))) throw error;
  }
}

/** Null where it is no directory. */
function holdsJournals(directory: string): Promise<boolean | null> {
  let strangers = 0;
  return inDirectory(directory, async (at) => {
    for await (const entry of await opendir(at)) {
      if ((isExecId(entry.name) && !entry.isDirectory()) || ++strangers > STRANGERS_MAX) return true;
    }
    return false;
  });
}

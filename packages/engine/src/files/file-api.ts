import { posix } from "node:path";
import { HoldfastError } from "@holdfast/contract";
import type { FileApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { DriveFiles, type OpenedDrive } from "./drive-files.ts";
import { searchFiles } from "./file-search.ts";
import type { FileSource } from "./file-source.ts";
import { checkedPath, viewFile } from "./file-view.ts";
import { type Gate, translate } from "./gate.ts";
import { type FileAccess, KeeperRefusal, type WriteOptions } from "./ports.ts";
import { SandboxFiles } from "./sandbox-files.ts";
import { packTree } from "./tar-pack.ts";
import { unpackTar } from "./tar-unpack.ts";
import { Turnstile } from "./turnstile.ts";
import type { World } from "./world.ts";

/** Each has a thread while it goes on. */
const SEARCHES_AT_ONCE = 4;

export const fileApi = (world: World, gate: Gate, find: (ref: string) => Promise<Cell>): FileApi =>
  apiOver(world, new SandboxFiles(world, gate, find));

/** What `open` throws is told to the caller as it is. */
export const driveFileApi = (
  world: World,
  open: (ref: string, signal: AbortSignal) => Promise<OpenedDrive>,
): FileApi => apiOver(world, new DriveFiles(world, open));

/** Files, wherever they are. Paths are checked here, once, before anything is sent. */
function apiOver({ clock }: World, source: FileSource): FileApi {
  const searches = new Turnstile(SEARCHES_AT_ONCE);
  const checked = (raw: string) => checkedPath(raw, (path) => source.isReserved(path));
  const isPassedBy = (path: string) => source.isPassedBy(path);

  return {
    stat: (ref, raw, options, signal) => {
      const path = checked(raw);
      return source.reading({ ref, path, ...options }, signal, async (files, inner) =>
        viewFile(path, await files.stat(path, { follow: false }, inner)),
      );
    },
    list: (ref, raw, { limit, wake }, signal) => {
      const path = checked(raw);
      return source.reading({ ref, path, wake }, signal, async (files, inner) => {
        const { entries, truncated } = await files.list(path, { limit }, inner);
        const items = entries.map(({ name, stat }) => viewFile(posix.join(path, name), stat));
        return { path, items, truncated };
      });
    },
    read: (ref, raw, { wake, ...range }, signal) => {
      const path = checked(raw);
      const target = { ref, path, wake, bounded: false };
      return source.reading(target, signal, async (files, inner, hold) => {
        const { stat, body } = await files.read(path, range, inner);
        return { stat: viewFile(path, stat), body: hold(translated(body, path)) };
      });
    },
    write: (ref, raw, body, { mode, parents }, signal) => {
      const path = checked(raw);
      const options = mode === undefined ? { parents } : { parents, mode };
      return source.call({ ref, path, bounded: false }, signal, async (files, inner) => {
        const owner = await ownerFor(files, path, source, inner);
        return viewFile(path, await files.write(path, body, { ...options, ...owner }, inner));
      });
    },
    mkdir: (ref, raw, { mode, parents }, signal) => {
      const path = checked(raw);
      const options = { parents, ...source.owner, ...(mode === undefined ? {} : { mode }) };
      return source.call({ ref, path }, signal, async (files, inner) => {
        await files.mkdir(path, options, inner);
        return viewFile(path, await files.stat(path, { follow: false }, inner));
      });
    },
    remove: (ref, raw, options, signal) => {
      const path = checked(raw);
      if (path === "/")
        throw new HoldfastError("invalid_path", { message: "The root itself can't be removed." });
      return source.call({ ref, path }, signal, (files, inner) => files.remove(path, options, inner));
    },
    move: (ref, rawFrom, rawTo, options, signal) => {
      const from = checked(rawFrom);
      const to = checked(rawTo);
      return source.call({ ref, path: from }, signal, async (files, inner) => {
        await files.rename(from, to, options, inner);
        return viewFile(to, await files.stat(to, { follow: false }, inner));
      });
    },
    search: (ref, raw, { wake, ...wanted }, signal) => {
      const path = checked(raw);
      return source.reading({ ref, path, wake, deep: true }, signal, (files, inner) =>
        searches.pass(inner, () => searchFiles({ ...wanted, clock, files, path, isPassedBy, signal: inner })),
      );
    },
    pack: (ref, raw, { wake }, signal) => {
      const path = checked(raw);
      const target = { ref, path, wake, deep: true, bounded: false };
      return source.reading(target, signal, async (files, inner, hold) => {
        const stat = await files.stat(path, { follow: true }, inner);
        if (stat.kind !== "directory" && stat.kind !== "file") throw new HoldfastError("not_a_file");
        return hold(packTree({ files, path, stat, isPassedBy, signal: inner }));
      });
    },
    unpack: (ref, raw, body, signal) => {
      const path = checked(raw);
      return source.call({ ref, path, bounded: false }, signal, async (files, inner) => {
        const isReserved = (inside: string) => source.isReserved(inside);
        const owner = source.owner ?? {};
        return { path, ...(await unpackTar(body, { files, path, isReserved, owner, signal: inner })) };
      });
    },
    watch: (ref, raw, options, signal) => source.watch({ ref, path: checked(raw) }, options, signal),
  };
}

/** Whose a file will be: what exists keeps its owner. */
async function ownerFor(
  files: FileAccess,
  path: string,
  { owner }: FileSource,
  signal: AbortSignal,
): Promise<Pick<WriteOptions, "uid" | "gid">> {
  if (owner === null) return {};
  try {
    await files.stat(path, { follow: true }, signal);
    return {};
  } catch (error) {
    if (error instanceof KeeperRefusal && error.errno === "ENOENT") return owner;
    throw error;
  }
}

/** What fails while a body is read is told in the registry's words as well. */
async function* translated(body: AsyncIterable<Uint8Array>, path: string): AsyncIterable<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    throw translate(error, { path });
  }
}

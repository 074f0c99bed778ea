import { posix } from "node:path";
import { HoldfastError } from "@holdfast/contract";
import { Semaphore } from "../lib/semaphore.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { translate } from "../model/keeper-errors.ts";
import type { FileApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { type FileAccess, KeeperRefusal, type WriteOptions } from "../ports/index.ts";
import { DriveFiles, type OpenedDrive } from "./drive-files.ts";
import type { FileSource } from "./file-source.ts";
import { checkedPath, viewFile } from "./file-view.ts";
import { SandboxFiles } from "./sandbox-files.ts";
import { searchFiles } from "./search.ts";
import { packTree } from "./tar-pack.ts";
import { unpackTar } from "./tar-unpack.ts";

/** The file API of sandboxes. */
export const fileApi = (context: EngineContext, gate: SandboxGate, registry: SandboxRegistry): FileApi =>
  apiOver(context, new SandboxFiles(context, gate, registry));

/** The file API of drives. Errors of `drives.files` are passed to the caller unchanged. */
export const driveFileApi = (
  context: EngineContext,
  drives: { files(ref: string, signal: AbortSignal): Promise<OpenedDrive> },
): FileApi => apiOver(context, new DriveFiles(context, (ref, signal) => drives.files(ref, signal)));

/** Builds the file API over a source. Callers' paths are checked in this layer, before the source is asked. */
function apiOver({ clock, numbers }: EngineContext, source: FileSource): FileApi {
  const searches = new Semaphore(numbers.searchesAtOnce, { limit: numbers.searchesWaiting });
  const checked = (raw: string) => checkedPath(raw, (path) => source.isReserved(path));
  const isSkipped = (path: string) => source.isSkipped(path);

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
      return source.reading(target, signal, async (files, inner, closeAfter) => {
        const { stat, body } = await files.read(path, range, inner);
        return { stat: viewFile(path, stat), body: closeAfter(translateErrors(body, path)) };
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
        throw new HoldfastError("invalid_path", { message: "The root directory can't be removed." });
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
        searches.run(inner, () => searchFiles({ ...wanted, clock, files, path, isSkipped, signal: inner })),
      );
    },
    pack: (ref, raw, { wake }, signal) => {
      const path = checked(raw);
      const target = { ref, path, wake, deep: true, bounded: false };
      return source.reading(target, signal, async (files, inner, closeAfter) => {
        const stat = await files.stat(path, { follow: true }, inner);
        if (stat.kind !== "directory" && stat.kind !== "file") throw new HoldfastError("not_a_file");
        return closeAfter(packTree({ files, path, stat, isSkipped, signal: inner }));
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

/** Returns the owner for a file to be written, or none for an existing file, which keeps its owner. */
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

/** Translates errors that occur while the body is read. */
async function* translateErrors(body: AsyncIterable<Uint8Array>, path: string): AsyncIterable<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    throw translate(error, { path });
  }
}

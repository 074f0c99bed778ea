import { basename, posix } from "node:path";
import { type FileStat, HoldfastError, isReservedPath, normalisePath } from "@holdfast/contract";
import type { FileApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { type Gate, translate } from "./gate.ts";
import type { FileAccess, Stat } from "./ports.ts";
import type { World } from "./world.ts";

/** Files of a sandbox, served by its keeper. Paths are checked here, once, before anything is sent. */
export function fileApi(world: World, gate: Gate, find: (ref: string) => Promise<Cell>): FileApi {
  /** One call on the files of a sandbox: found, proven, under a deadline, errors in the registry's words. */
  async function call<Result>(
    ref: string,
    path: string,
    signal: AbortSignal,
    work: (files: FileAccess, signal: AbortSignal) => Promise<Result>,
    bounded = true,
  ): Promise<Result> {
    const cell = await find(ref);
    const link = await gate.pass(cell, signal);
    const limit = { ms: world.numbers.keeperCallMs, what: "the file call", signal };
    try {
      return await (bounded
        ? within(world.clock, limit, (inner) => work(link.files, inner))
        : work(link.files, signal));
    } catch (error) {
      throw translate(error, { sandboxId: cell.id, path });
    }
  }

  return {
    stat: (ref, raw, signal) => {
      const path = checked(raw);
      return call(ref, path, signal, async (files, inner) =>
        view(path, await files.stat(path, { follow: false }, inner)),
      );
    },
    list: (ref, raw, { limit }, signal) => {
      const path = checked(raw);
      return call(ref, path, signal, async (files, inner) => {
        const { entries, truncated } = await files.list(path, { limit }, inner);
        const items = entries.map(({ name, stat }) => view(posix.join(path, name), stat));
        return { path, items, truncated };
      });
    },
    read: (ref, raw, range, signal) => {
      const path = checked(raw);
      return call(
        ref,
        path,
        signal,
        async (files, inner) => {
          const { stat, body } = await files.read(path, range, inner);
          return { stat: view(path, stat), body: translated(body, path) };
        },
        false,
      );
    },
    write: (ref, raw, body, { mode, parents }, signal) => {
      const path = checked(raw);
      const options = mode === undefined ? { parents } : { parents, mode };
      const write = async (files: FileAccess, inner: AbortSignal) =>
        view(path, await files.write(path, body, options, inner));
      return call(ref, path, signal, write, false);
    },
    mkdir: (ref, raw, { mode, parents }, signal) => {
      const path = checked(raw);
      return call(ref, path, signal, async (files, inner) => {
        await files.mkdir(path, mode === undefined ? { parents } : { parents, mode }, inner);
        return view(path, await files.stat(path, { follow: false }, inner));
      });
    },
    remove: (ref, raw, options, signal) => {
      const path = checked(raw);
      if (path === "/")
        throw new HoldfastError("invalid_path", { message: "The root itself can't be removed." });
      return call(ref, path, signal, (files, inner) => files.remove(path, options, inner));
    },
    move: (ref, rawFrom, rawTo, options, signal) => {
      const from = checked(rawFrom);
      const to = checked(rawTo);
      return call(ref, from, signal, async (files, inner) => {
        await files.rename(from, to, options, inner);
        return view(to, await files.stat(to, { follow: false }, inner));
      });
    },
  };
}

/** What fails while a body is read is told in the registry's words as well. */
async function* translated(body: AsyncIterable<Uint8Array>, path: string): AsyncIterable<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    throw translate(error, { path });
  }
}

function checked(raw: string): string {
  const path = normalisePath(raw);
  if (path === null)
    throw new HoldfastError("invalid_path", {
      message: `The path ${JSON.stringify(raw.slice(0, 200))} is not valid.`,
    });
  if (isReservedPath(path)) throw new HoldfastError("forbidden_path");
  return path;
}

function view(path: string, stat: Stat): FileStat {
  return {
    path,
    name: basename(path) || "/",
    kind: stat.kind,
    sizeBytes: stat.sizeBytes,
    mode: stat.mode.toString(8).padStart(4, "0"),
    uid: stat.uid,
    gid: stat.gid,
    modifiedAt: new Date(stat.modifiedAt).toISOString(),
    ...(stat.kind === "symlink" ? { target: stat.target } : {}),
  };
}

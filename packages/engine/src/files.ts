import { basename, posix } from "node:path";
import { causeOf, type FileStat, HoldfastError, isReservedPath, normalisePath } from "@holdfast/contract";
import type { FileApi, ReadOptions } from "./api.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { type Gate, translate } from "./gate.ts";
import { heldBody } from "./held-body.ts";
import { type FileAccess, KeeperRefusal, type Stat } from "./ports.ts";
import type { World } from "./world.ts";

/** Files of a sandbox, served by its keeper or, while it sleeps, from its disk. Paths are checked here, once, before anything is sent. */
export function fileApi(world: World, gate: Gate, find: (ref: string) => Promise<Cell>): FileApi {
  const limit = { ms: world.numbers.keeperCallMs, what: "the file call" };

  /** One call on the files of a sandbox: found, proven, under a deadline, errors in the registry's words. */
  async function call<Result>(
    ref: string,
    path: string,
    signal: AbortSignal,
    work: Work<FileAccess, Result>,
    bounded = true,
  ): Promise<Result> {
    const cell = await find(ref);
    const link = await gate.pass(cell, signal);
    try {
      return await holding(cell.enter(), signal, (hold) =>
        bounded
          ? within(world.clock, { ...limit, signal }, (inner) => work(link.files, inner, hold))
          : work(link.files, signal, hold),
      );
    } catch (error) {
      throw translate(error, { sandboxId: cell.id, path });
    }
  }

  /** A call that only reads: of a sandbox that sleeps, from its disk, and only where that can't answer by waking it. */
  async function reading<Result>(
    ref: string,
    path: string,
    { wake }: ReadOptions,
    signal: AbortSignal,
    work: Work<Reading, Result>,
    bounded = true,
  ): Promise<Result> {
    const cell = await find(ref);
    if (isInStandby(cell)) {
      try {
        return await fromDisk(cell, signal, work, bounded);
      } catch (error) {
        const isElsewhere =
          error instanceof DiskClosed || (error instanceof KeeperRefusal && error.reason === "not_on_disk");
        // Woken while it was read: its keeper is the one to ask now.
        if (!isElsewhere && isInStandby(cell)) throw translate(error, { sandboxId: cell.id, path });
      }
    }
    if (!wake && cell.isAsleep) throw new HoldfastError("not_on_disk", { sandboxId: cell.id });
    return call(ref, path, signal, work, bounded);
  }

  /** What serves them lives as long as the answer. */
  async function fromDisk<Result>(
    cell: Cell,
    signal: AbortSignal,
    work: Work<Reading, Result>,
    bounded: boolean,
  ): Promise<Result> {
    const bounds = { ...limit, signal };
    const opening = within(world.clock, bounds, (inner) => world.driver.files(cell.id, inner));
    const { files, close } = await opening.catch((error: unknown) => {
      if (signal.aborted) throw error;
      world.log.warn(
        { sandbox: cell.id, cause: causeOf(error) },
        "the disk of a sleeper could not be opened",
      );
      throw new DiskClosed();
    });
    const release = () => {
      close().catch((error: unknown) => {
        world.log.warn({ sandbox: cell.id, cause: causeOf(error) }, "what served a disk did not end");
      });
    };
    return holding(release, signal, (hold) =>
      bounded ? within(world.clock, bounds, (inner) => work(files, inner, hold)) : work(files, signal, hold),
    );
  }

  return {
    stat: (ref, raw, options, signal) => {
      const path = checked(raw);
      return reading(ref, path, options, signal, async (files, inner) =>
        view(path, await files.stat(path, { follow: false }, inner)),
      );
    },
    list: (ref, raw, options, signal) => {
      const path = checked(raw);
      return reading(ref, path, options, signal, async (files, inner) => {
        const { entries, truncated } = await files.list(path, { limit: options.limit }, inner);
        const items = entries.map(({ name, stat }) => view(posix.join(path, name), stat));
        return { path, items, truncated };
      });
    },
    read: (ref, raw, options, signal) => {
      const path = checked(raw);
      const { offset, length } = options;
      return reading(
        ref,
        path,
        options,
        signal,
        async (files, inner, hold) => {
          const { stat, body } = await files.read(path, { offset, length }, inner);
          return { stat: view(path, stat), body: hold(translated(body, path)) };
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

/** The disk could not be opened from outside: what is on it can be had by waking the sandbox. */
class DiskClosed extends Error {
  constructor() {
    super("The disk of the sandbox could not be opened while it sleeps.");
    this.name = "DiskClosed";
  }
}

const isInStandby = ({ record }: Cell): boolean =>
  record.phase.name === "standby" && record.lease.state === "none";

type Reading = Pick<FileAccess, "stat" | "list" | "read">;
type Hold = (body: AsyncIterable<Uint8Array>) => AsyncIterable<Uint8Array>;
type Work<Files, Result> = (files: Files, signal: AbortSignal, hold: Hold) => Promise<Result>;

/** Lets go when the work is done or, where it hands out a body, when that was read. */
async function holding<Result>(
  release: () => void,
  signal: AbortSignal,
  work: (hold: Hold) => Promise<Result>,
): Promise<Result> {
  let isHeldOn = false;
  try {
    return await work((body) => {
      isHeldOn = true;
      return heldBody(body, release, signal);
    });
  } finally {
    if (!isHeldOn) release();
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

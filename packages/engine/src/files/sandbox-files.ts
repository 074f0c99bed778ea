import { causeOf, type FileChange, HoldfastError, isReservedPath } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { requireOnDisk } from "./disk-paths.ts";
import {
  during,
  type FileSource,
  holding,
  type Reading,
  type ReadTarget,
  type Target,
  type Work,
} from "./file-source.ts";
import { type Gate, translate } from "./gate.ts";
import { heldBody } from "./held-body.ts";
import { type FileAccess, KeeperRefusal } from "./ports.ts";
import { keptAwake, Watches, watched, whyUnwatched } from "./watches.ts";
import type { World } from "./world.ts";

/** Files of a sandbox, served by its keeper or, while it sleeps, from its disk. */
export class SandboxFiles implements FileSource {
  readonly #world: World;
  readonly #gate: Gate;
  readonly #find: (ref: string) => Promise<Cell>;
  readonly #watches = new Watches();
  readonly owner = null;

  constructor(world: World, gate: Gate, find: (ref: string) => Promise<Cell>) {
    this.#world = world;
    this.#gate = gate;
    this.#find = find;
  }

  isReserved(path: string): boolean {
    return isReservedPath(path);
  }

  isPassedBy(path: string): boolean {
    return isReservedPath(path) || OF_THE_KERNEL.has(path);
  }

  /** Found, proven, under a deadline. */
  async call<Result>(target: Target, signal: AbortSignal, work: Work<FileAccess, Result>): Promise<Result> {
    const cell = await this.#find(target.ref);
    const { files } = await this.#gate.pass(cell, signal);
    cell.fileCalls += 1;
    try {
      return await holding(cell.enter(), signal, (hold) =>
        during(this.#world, target, signal, (inner) => work(files, inner, hold)),
      );
    } catch (error) {
      throw translate(error, { sandboxId: cell.id, path: target.path });
    }
  }

  /** Of a sandbox that sleeps from its disk, and only where that can't answer by waking it. */
  async reading<Result>(
    target: ReadTarget,
    signal: AbortSignal,
    work: Work<Reading, Result>,
  ): Promise<Result> {
    const cell = await this.#find(target.ref);
    if (isOnDisk(cell)) {
      try {
        return await this.#fromDisk(cell, target, signal, work);
      } catch (error) {
        const isElsewhere =
          error instanceof DiskClosed || (error instanceof KeeperRefusal && error.reason === "not_on_disk");
        // Woken while it was read: its keeper is the one to ask now.
        if (!isElsewhere && isOnDisk(cell)) throw translate(error, { sandboxId: cell.id, path: target.path });
      }
    }
    if (!target.wake && cell.isAsleep) throw new HoldfastError("not_on_disk", { sandboxId: cell.id });
    return this.call(target, signal, work);
  }

  /** What serves them lives as long as the answer. */
  async #fromDisk<Result>(
    cell: Cell,
    target: ReadTarget,
    signal: AbortSignal,
    work: Work<Reading, Result>,
  ): Promise<Result> {
    const { driver, log } = this.#world;
    cell.touch();
    const opening = during(this.#world, {}, signal, (inner) => driver.files(cell.id, inner));
    const { files, close } = await opening.catch((error: unknown) => {
      signal.throwIfAborted();
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "the disk of a sleeper could not be opened");
      throw new DiskClosed();
    });
    const release = () => {
      close().catch((error: unknown) => {
        log.warn({ sandbox: cell.id, cause: causeOf(error) }, "what served a disk did not end");
      });
    };
    return holding(release, signal, async (hold) => {
      const mounts = cell.record.mounts.map(({ path }) => path);
      await during(this.#world, {}, signal, (inner) => requireOnDisk(files, target, mounts, inner));
      return during(this.#world, target, signal, (inner) => work(files, inner, hold));
    });
  }

  /**
   * To begin is a call; to watch is none, or no sandbox that is watched could ever be put to sleep by order. It counts as
   * use instead, so that none falls asleep by itself. Where it is put to sleep the link goes, and the watch with it.
   */
  async watch(
    { ref, path }: Target,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>> {
    const cell = await this.#find(ref);
    const leave = this.#watches.enter();
    let release = leave;
    try {
      const { files, closed } = await this.#gate.pass(cell, signal);
      const left = cell.enter();
      const begun = during(this.#world, {}, signal, (inner) => files.watch(path, options, inner));
      const changes = await begun.finally(left);
      const rest = keptAwake(this.#world.clock, cell);
      void closed.then(rest);
      release = () => {
        rest();
        leave();
      };
      const why = (error: unknown) => whyUnwatched(error, path, cell);
      return heldBody(watched({ changes, isHidden: isReservedPath, why, signal }), release, signal);
    } catch (error) {
      release();
      throw whyUnwatched(error, path, cell);
    }
  }
}

/** What the kernel makes up, without end and without meaning to whoever looks for files. */
const OF_THE_KERNEL = new Set(["/proc", "/sys", "/dev"]);

/** The disk could not be opened from outside: what is on it can be had by waking the sandbox. */
class DiskClosed extends Error {
  constructor() {
    super("The disk of the sandbox could not be opened while it sleeps.");
    this.name = "DiskClosed";
  }
}

/** It sleeps, or has failed: nothing of it runs, and its files are there to be read. */
const isOnDisk = ({ record }: Cell): boolean =>
  (record.phase.name === "standby" || record.phase.name === "failed") && record.lease.state === "none";

import { causeOf, type FileChange, HoldfastError, isHoldfastError, isReservedPath } from "@holdfast/contract";
import { releaseOnEnd } from "../lib/release-on-end.ts";
import type { SandboxGate } from "../lifecycle/gate.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { translate } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import { type FileAccess, KeeperRefusal, requireCapability } from "../ports/index.ts";
import { FileSlots } from "./file-slots.ts";
import {
  type FileSource,
  type Reading,
  type ReadTarget,
  releaseAfter,
  type Target,
  type Work,
  withDeadline,
} from "./file-source.ts";
import { requireOnDisk } from "./standby-paths.ts";
import { iterateChanges, keepAwake, toWatchError, Watches } from "./watches.ts";

/** Files of a sandbox, served by its keeper or, while it is in standby, from its disk. */
export class SandboxFiles implements FileSource {
  readonly #context: EngineContext;
  readonly #gate: SandboxGate;
  readonly #registry: SandboxRegistry;
  readonly #watches = new Watches();
  readonly #slots: FileSlots;
  readonly owner = null;

  constructor(context: EngineContext, gate: SandboxGate, registry: SandboxRegistry) {
    this.#context = context;
    this.#gate = gate;
    this.#registry = registry;
    this.#slots = new FileSlots(context);
  }

  isReserved(path: string): boolean {
    return isReservedPath(path);
  }

  isSkipped(path: string): boolean {
    return isReservedPath(path) || KERNEL_FILE_SYSTEMS.has(path);
  }

  /** Runs the work on an awake, proven sandbox. */
  async call<Result>(target: Target, signal: AbortSignal, work: Work<FileAccess, Result>): Promise<Result> {
    const live = await this.#registry.find(target.ref);
    const files = this.#slots.filesOf(live, await this.#gate.pass(live, signal));
    live.countFileCall();
    try {
      return await releaseAfter(live.enter(), signal, (closeAfter) =>
        withDeadline(this.#context, target, signal, (inner) => work(files, inner, closeAfter)),
      );
    } catch (error) {
      throw translate(error, { sandboxId: live.id, path: target.path });
    }
  }

  /** Runs a reading call on the disk of a sandbox in standby. Wakes the sandbox only if its disk can't answer. */
  async reading<Result>(
    target: ReadTarget,
    signal: AbortSignal,
    work: Work<Reading, Result>,
  ): Promise<Result> {
    const live = await this.#registry.find(target.ref);
    if (isOnDisk(live)) {
      try {
        return await this.#fromDisk(live, target, signal, work);
      } catch (error) {
        const isElsewhere =
          error instanceof DiskClosed || (error instanceof KeeperRefusal && error.reason === "not_on_disk");
        // The call is tried again on the awake sandbox if the disk can't answer, or if the sandbox was woken while its
        // disk was read. Any other error is passed to the caller.
        if (!isElsewhere && isOnDisk(live)) throw translate(error, { sandboxId: live.id, path: target.path });
      }
    }
    if (!target.wake && live.isAsleep) throw new HoldfastError("not_on_disk", { sandboxId: live.id });
    return this.call(target, signal, work);
  }

  /** Opens the sandbox's disk for the duration of the work. */
  async #fromDisk<Result>(
    live: LiveSandbox,
    target: ReadTarget,
    signal: AbortSignal,
    work: Work<Reading, Result>,
  ): Promise<Result> {
    const { driver, log } = this.#context;
    live.touch();
    const opening = withDeadline(this.#context, {}, signal, (inner) =>
      requireCapability(driver, "offlineFiles").files(live.id, inner),
    );
    const { files, close } = await opening.catch((error: unknown) => {
      signal.throwIfAborted();
      if (isHoldfastError(error)) throw error;
      log.warn(
        { sandbox: live.id, cause: causeOf(error) },
        "failed to open the disk of a sandbox in standby",
      );
      throw new DiskClosed();
    });
    const release = () => {
      close().catch((error: unknown) => {
        log.warn({ sandbox: live.id, cause: causeOf(error) }, "failed to close the file server of a disk");
      });
    };
    return releaseAfter(release, signal, async (closeAfter) => {
      const mounts = live.record.mounts.map(({ path }) => path);
      await withDeadline(this.#context, {}, signal, (inner) => requireOnDisk(files, target, mounts, inner));
      return withDeadline(this.#context, target, signal, (inner) => work(files, inner, closeAfter));
    });
  }

  /**
   * Starts a watch. An open watch is not treated as a call in progress, because a watched sandbox could then never be
   * suspended on request. It is treated as use, so that the sandbox is not suspended for being idle. A suspension
   * closes the link and thereby ends the watch.
   */
  async watch(
    { ref, path }: Target,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>> {
    const live = await this.#registry.find(ref);
    const leave = this.#watches.enter();
    let release = leave;
    try {
      const { files, closed } = await this.#gate.pass(live, signal);
      const left = live.enter();
      const begun = withDeadline(this.#context, {}, signal, (inner) => files.watch(path, options, inner));
      const changes = await begun.finally(left);
      const stop = keepAwake(this.#context.clock, live);
      void closed.then(stop);
      release = () => {
        stop();
        leave();
      };
      const why = (error: unknown) => toWatchError(error, path, live);
      return releaseOnEnd(
        iterateChanges({ changes, isHidden: isReservedPath, why, signal }),
        release,
        signal,
      );
    } catch (error) {
      release();
      throw toWatchError(error, path, live);
    }
  }
}

/** Virtual file systems of the kernel. Recursive operations skip them, because their entries are not real files. */
const KERNEL_FILE_SYSTEMS = new Set(["/proc", "/sys", "/dev"]);

/** The disk could not be opened from outside; waking the sandbox gives access to it. */
class DiskClosed extends Error {
  constructor() {
    super("The disk of the sandbox could not be opened while it sleeps.");
    this.name = "DiskClosed";
  }
}

/**
 * Whether the sandbox is in standby or failed. In both cases no process runs, and its files can be read from its disk.
 */
const isOnDisk = ({ record }: LiveSandbox): boolean =>
  (record.phase.name === "standby" || record.phase.name === "failed") && record.lease.state === "none";

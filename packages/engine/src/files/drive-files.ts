import { causeOf, DEFAULT_USER, type FileChange } from "@holdfast/contract";
import { releaseOnEnd } from "../lib/release-on-end.ts";
import { translate } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import type { FileAccess } from "../ports/index.ts";
import {
  type FileSource,
  type Reading,
  type ReadTarget,
  releaseAfter,
  type Target,
  type Work,
  withDeadline,
} from "./file-source.ts";
import { iterateChanges, toWatchError, Watches } from "./watches.ts";

export interface OpenedDrive {
  driveId: string;
  files: FileAccess;
  /**
   * Aborted when the drive is being deleted, so that open files are closed and don't delay the delete. The abort reason
   * is the error that the callers get.
   */
  gone?: AbortSignal;
  close(): Promise<void>;
}

/** Files of a drive, served from a jail that is opened for each call. A drive never sleeps and has no reserved paths. */
export class DriveFiles implements FileSource {
  readonly #context: EngineContext;
  readonly #open: (ref: string, signal: AbortSignal) => Promise<OpenedDrive>;
  readonly #watches = new Watches();
  /**
   * The owner of new files. Without it the jail would create them as root, and commands in a sandbox could not write to
   * them.
   */
  readonly owner = { uid: DEFAULT_USER.uid, gid: DEFAULT_USER.gid };

  constructor(context: EngineContext, open: (ref: string, signal: AbortSignal) => Promise<OpenedDrive>) {
    this.#context = context;
    this.#open = open;
  }

  isReserved(): boolean {
    return false;
  }

  isSkipped(): boolean {
    return false;
  }

  async call<Result>(target: Target, asked: AbortSignal, work: Work<FileAccess, Result>): Promise<Result> {
    const { files, signal, release } = await this.#opened(target.ref, asked);
    try {
      return await releaseAfter(release, signal, (closeAfter) =>
        withDeadline(this.#context, target, signal, (inner) => work(files, inner, closeAfter)),
      );
    } catch (error) {
      throw translate(error, { path: target.path });
    }
  }

  reading<Result>(target: ReadTarget, signal: AbortSignal, work: Work<Reading, Result>): Promise<Result> {
    return this.call(target, signal, work);
  }

  async watch(
    { ref, path }: Target,
    options: { recursive: boolean },
    asked: AbortSignal,
  ): Promise<AsyncIterable<FileChange>> {
    const leave = this.#watches.enter();
    let release = leave;
    try {
      const { files, signal, release: close } = await this.#opened(ref, asked);
      release = () => {
        close();
        leave();
      };
      const changes = await withDeadline(this.#context, {}, signal, (inner) =>
        files.watch(path, options, inner),
      );
      const why = (error: unknown) => toWatchError(error, path);
      return releaseOnEnd(iterateChanges({ changes, isHidden: () => false, why, signal }), release, signal);
    } catch (error) {
      release();
      throw toWatchError(error, path);
    }
  }

  async #opened(ref: string, asked: AbortSignal): Promise<Opened> {
    const { driveId, files, gone, close } = await this.#open(ref, asked);
    const signal = gone === undefined ? asked : AbortSignal.any([asked, gone]);
    const release = () => {
      close().catch((error: unknown) => {
        this.#context.log.warn(
          { drive: driveId, cause: causeOf(error) },
          "failed to close the file server of a drive",
        );
      });
    };
    return { files, signal, release };
  }
}

/** The file access of one call, and the signal that ends it. */
interface Opened {
  files: FileAccess;
  signal: AbortSignal;
  release(): void;
}

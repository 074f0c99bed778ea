import { causeOf, DEFAULT_USER, type FileChange } from "@holdfast/contract";
import {
  during,
  type FileSource,
  holding,
  type Reading,
  type ReadTarget,
  type Target,
  type Work,
} from "./file-source.ts";
import { translate } from "./gate.ts";
import { heldBody } from "./held-body.ts";
import type { FileAccess } from "./ports.ts";
import { Watches, watched, whyUnwatched } from "./watches.ts";
import type { World } from "./world.ts";

export interface OpenedDrive {
  driveId: string;
  files: FileAccess;
  /** Aborted, with what to tell callers, when the drive is being deleted: whatever serves its files would hold that up. */
  gone?: AbortSignal;
  close(): Promise<void>;
}

/** Files of a drive, served from a jail that is opened for each call. Nothing sleeps there, and no path is special. */
export class DriveFiles implements FileSource {
  readonly #world: World;
  readonly #open: (ref: string, signal: AbortSignal) => Promise<OpenedDrive>;
  readonly #watches = new Watches();
  /** The jail's own default is root, which could not be written to by the commands that find the files in their sandbox. */
  readonly owner = { uid: DEFAULT_USER.uid, gid: DEFAULT_USER.gid };

  constructor(world: World, open: (ref: string, signal: AbortSignal) => Promise<OpenedDrive>) {
    this.#world = world;
    this.#open = open;
  }

  isReserved(): boolean {
    return false;
  }

  isPassedBy(): boolean {
    return false;
  }

  async call<Result>(target: Target, asked: AbortSignal, work: Work<FileAccess, Result>): Promise<Result> {
    const { files, signal, release } = await this.#opened(target.ref, asked);
    try {
      return await holding(release, signal, (hold) =>
        during(this.#world, target, signal, (inner) => work(files, inner, hold)),
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
      const changes = await during(this.#world, {}, signal, (inner) => files.watch(path, options, inner));
      const why = (error: unknown) => whyUnwatched(error, path);
      return heldBody(watched({ changes, isHidden: () => false, why, signal }), release, signal);
    } catch (error) {
      release();
      throw whyUnwatched(error, path);
    }
  }

  async #opened(ref: string, asked: AbortSignal): Promise<Opened> {
    const { driveId, files, gone, close } = await this.#open(ref, asked);
    const signal = gone === undefined ? asked : AbortSignal.any([asked, gone]);
    const release = () => {
      close().catch((error: unknown) => {
        this.#world.log.warn({ drive: driveId, cause: causeOf(error) }, "what served a drive did not end");
      });
    };
    return { files, signal, release };
  }
}

/** What serves the files for one call, and when that ends at the latest. */
interface Opened {
  files: FileAccess;
  signal: AbortSignal;
  release(): void;
}

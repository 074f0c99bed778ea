import type { FileAccess, Stat, WriteOptions } from "@holdfast/engine";
import type { Channel } from "./channel.ts";
import { FileBody } from "./file-body.ts";
import {
  changeMode,
  changeOwner,
  changeTime,
  closeHandle,
  type Entry,
  makeDirectory,
  makeHardlink,
  makeSymlink,
  type Owner,
  openDirectory,
  openFile,
  readDirectory,
  removePath,
  renamePath,
  statFile,
} from "./file-codec.ts";
import { upload } from "./upload.ts";

/** What importing an image needs beyond what callers may do. None of these follows a symbolic link at the path. */
export interface JailedFiles extends FileAccess {
  chown(path: string, owner: Owner, signal: AbortSignal): Promise<void>;
  symlink(target: string, path: string, owner: Owner, signal: AbortSignal): Promise<void>;
  hardlink(existing: string, path: string, signal: AbortSignal): Promise<void>;
  utimes(path: string, modifiedAt: number, signal: AbortSignal): Promise<void>;
}

const ENTRIES_AT_ONCE = 1_000;

/** Files over a channel: of a keeper or of a jailed porter. Handles are its own business and never outlive a call. */
export class Files implements JailedFiles {
  readonly #channel: Channel;

  constructor(channel: Channel) {
    this.#channel = channel;
  }

  readonly #closeLate = (opened: { handle: number }): void => {
    this.#channel.post(closeHandle(opened.handle));
  };

  stat(path: string, options: { follow: boolean }, signal: AbortSignal): Promise<Stat> {
    return this.#channel.request(statFile(path, options.follow), signal);
  }

  async list(path: string, options: { limit: number }, signal: AbortSignal) {
    const { handle } = await this.#channel.request(openDirectory(path), signal, this.#closeLate);
    const entries: Entry[] = [];
    try {
      for (;;) {
        const max = Math.min(ENTRIES_AT_ONCE, options.limit + 1 - entries.length);
        const page = await this.#channel.request(readDirectory(handle, max), signal);
        for (const entry of page.entries) entries.push(entry);
        const truncated = entries.length > options.limit;
        if (truncated) entries.length = options.limit;
        if (truncated || page.done) return { entries, truncated };
      }
    } finally {
      this.#channel.post(closeHandle(handle));
    }
  }

  async read(path: string, range: { offset: number; length: number | null }, signal: AbortSignal) {
    const { handle, stat } = await this.#channel.request(openFile(path), signal, this.#closeLate);
    return { stat, body: new FileBody(this.#channel, { handle, stat }, range, signal) };
  }

  write(path: string, body: AsyncIterable<Uint8Array>, options: WriteOptions, signal: AbortSignal) {
    return upload(this.#channel, { path, body, options }, signal);
  }

  mkdir(path: string, options: WriteOptions, signal: AbortSignal): Promise<void> {
    return this.#channel.request(makeDirectory(path, options), signal);
  }

  remove(path: string, options: { recursive: boolean }, signal: AbortSignal): Promise<void> {
    return this.#channel.request(removePath(path, options.recursive), signal);
  }

  rename(from: string, to: string, options: { overwrite: boolean }, signal: AbortSignal): Promise<void> {
    return this.#channel.request(renamePath(from, to, options.overwrite), signal);
  }

  chmod(path: string, mode: number, signal: AbortSignal): Promise<void> {
    return this.#channel.request(changeMode(path, mode), signal);
  }

  chown(path: string, owner: Owner, signal: AbortSignal): Promise<void> {
    return this.#channel.request(changeOwner(path, owner), signal);
  }

  symlink(target: string, path: string, owner: Owner, signal: AbortSignal): Promise<void> {
    return this.#channel.request(makeSymlink(target, path, owner), signal);
  }

  hardlink(existing: string, path: string, signal: AbortSignal): Promise<void> {
    return this.#channel.request(makeHardlink(existing, path), signal);
  }

  utimes(path: string, modifiedAt: number, signal: AbortSignal): Promise<void> {
    return this.#channel.request(changeTime(path, modifiedAt), signal);
  }
}

import { posix } from "node:path";
import type { FileAccess, Stat, WriteOptions } from "@holdfast/engine";
import type { Channel } from "../wire/channel.ts";
import {
  changeMode,
  changeOwner,
  changeTime,
  closeHandle,
  type Entry,
  endWatch,
  makeDirectory,
  makeHardlink,
  makeSymlink,
  type Owner,
  openDirectory,
  openFile,
  openWatch,
  readDirectory,
  removePath,
  renamePath,
  statFile,
} from "../wire/file-codec.ts";
import { FileBody } from "./file-body.ts";
import { FileWatch } from "./file-watch.ts";
import { upload } from "./upload.ts";

/**
 * File operations that the import of an image needs in addition to those offered to callers. None of them follows a
 * symbolic link at the path.
 */
export interface JailedFiles extends FileAccess {
  chown(path: string, owner: Owner, signal: AbortSignal): Promise<void>;
  hardlink(existing: string, path: string, signal: AbortSignal): Promise<void>;
  utimes(path: string, modifiedAt: number, signal: AbortSignal): Promise<void>;
}

const ENTRIES_AT_ONCE = 1_000;

/**
 * Access to files over a channel to a keeper or a jailed porter. Callers never see the peer's handles: a handle is
 * closed at the end of the call or by the returned body.
 */
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

  async symlink(path: string, target: string, options: WriteOptions, signal: AbortSignal): Promise<void> {
    const { uid, gid, parents } = options;
    const owner = { ...(uid !== undefined && { uid }), ...(gid !== undefined && { gid }) };
    if (parents) await this.mkdir(posix.dirname(path), { ...owner, parents }, signal);
    await this.#channel.request(makeSymlink(path, target, owner), signal);
  }

  hardlink(existing: string, path: string, signal: AbortSignal): Promise<void> {
    return this.#channel.request(makeHardlink(existing, path), signal);
  }

  touch(path: string, modifiedAt: number, signal: AbortSignal): Promise<void> {
    return this.#channel.request(changeTime(path, modifiedAt), signal);
  }

  utimes(path: string, modifiedAt: number, signal: AbortSignal): Promise<void> {
    return this.touch(path, modifiedAt, signal);
  }

  async watch(path: string, options: { recursive: boolean }, signal: AbortSignal): Promise<FileWatch> {
    const endLate = (opened: { watch: number }) => this.#channel.post(endWatch(opened.watch));
    const { watch } = await this.#channel.request(openWatch(path, options.recursive), signal, endLate);
    return new FileWatch(this.#channel, watch, path, signal);
  }
}

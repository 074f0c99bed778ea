import { HoldfastError } from "@holdfast/contract";
import { type Header, pack } from "tar-stream";
import { packTree } from "../files/tar-pack.ts";
import { unpackTar } from "../files/tar-unpack.ts";
import type { FileAccess } from "../ports/index.ts";
import type { MemoryFiles } from "./memory-files.ts";

export const signal = new AbortController().signal;

export async function gathered(chunks: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const chunk of chunks) pieces.push(chunk);
  return Buffer.concat(pieces);
}

export async function* inPieces(bytes: Uint8Array, size = 1_000): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

export async function packed(files: MemoryFiles, path: string, isSkipped = (_: string) => false) {
  const stat = await files.stat(path, { follow: true });
  return gathered(packTree({ files, path, stat, isSkipped, signal }));
}

interface UnpackOptions {
  owner?: { uid: number; gid: number };
  isReserved?: (path: string) => boolean;
  signal?: AbortSignal;
}

export const unpacked = (
  files: FileAccess,
  path: string,
  archive: Uint8Array | AsyncIterable<Uint8Array>,
  options: UnpackOptions = {},
) =>
  unpackTar(archive instanceof Uint8Array ? inPieces(archive) : archive, {
    files,
    path,
    owner: {},
    isReserved: () => false,
    signal,
    ...options,
  });

export type Entry = Partial<Header> & { name: string; content?: string };

/** Builds an archive with an independent implementation of tar. */
export async function archiveOf(entries: readonly Entry[]): Promise<Buffer> {
  const archive = pack();
  for (const { content = "", ...header } of entries) archive.entry(header, content);
  archive.finalize();
  return gathered(archive as unknown as AsyncIterable<Uint8Array>);
}

export async function failure(work: Promise<unknown>): Promise<HoldfastError> {
  const error = await work.then(
    () => new Error("it did not fail"),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HoldfastError)) throw error;
  return error;
}

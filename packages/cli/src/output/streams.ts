import { once } from "node:events";
import { fstatSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { OutputFailure } from "../failure.ts";
import { Interrupted } from "../interrupt.ts";

/**
 * Only this file writes to stdout and stderr. Node buffers the data that a pipe does not accept at once, and drops that
 * buffer when the process exits. So the CLI exits only after `flushed`.
 */

type StreamName = "stdout" | "stderr";

const DESCRIPTORS = { stdout: 1, stderr: 2 } as const;
/**
 * How long an interrupted CLI waits until its output is read. The time is long enough for a message to be read, and too
 * short for the CLI to look stuck.
 */
const INTERRUPTED_FLUSH_MS = 1_000;

let onBroken: (reason: Error) => void = () => {};
let hideProgress: (() => void) | null = null;

/** Sets the function that clears the progress line; it is called before anything else is written. */
export function setProgressLine(hide: (() => void) | null): void {
  hideProgress = hide;
}

/** Writes text to stdout. */
export const print = (text: string): void => void put("stdout", text);

/** Writes text to stderr. */
export const printError = (text: string): void => void put("stderr", text);

/** Writes data with backpressure: waits while the reader is slow, and throws once there is no reader. */
export async function writeTo(
  stream: StreamName,
  data: string | Uint8Array,
  signal: AbortSignal,
): Promise<void> {
  const target = process[stream];
  if (!target.destroyed && put(stream, data)) return;
  try {
    if (!target.destroyed && target.writableNeedDrain) await once(target, "drain", { signal });
  } catch (error) {
    signal.throwIfAborted();
    throw brokenBy(error);
  }
  signal.throwIfAborted();
  if (target.destroyed) throw new Interrupted("SIGPIPE");
}

/**
 * Waits until all output has been read or the signal fires, without a time limit. If the signal has already fired,
 * waits until all output has been read, but for at most `INTERRUPTED_FLUSH_MS`. Throws the signal's reason if the
 * signal has fired, or the reason why output could not be written.
 */
export async function flushed(signal: AbortSignal): Promise<void> {
  const all = Promise.all([flush("stdout"), flush("stderr")]);
  if (signal.aborted) {
    await Promise.race([all, sleep(INTERRUPTED_FLUSH_MS)]);
    throw signal.reason;
  }
  const interrupted = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  await Promise.race([all, interrupted]);
}

/**
 * Calls `leave` when output cannot be written. The argument is the reason: the reader has exited, or the disk is full.
 */
export function watchOutput(leave: (reason: Error) => void): void {
  onBroken = leave;
  for (const stream of [process.stdout, process.stderr])
    stream.on("error", (error) => leave(brokenBy(error)));
}

function flush(stream: StreamName): Promise<void> {
  const target = process[stream];
  if (target.destroyed || target.writableLength === 0) return Promise.resolve();
  return new Promise((resolve, reject) => {
    target.write("", (error) => (error ? reject(brokenBy(error)) : resolve()));
  });
}

/** Returns false if the stream's buffer is full, or if the data could not be written. */
function put(stream: StreamName, data: string | Uint8Array): boolean {
  hideProgress?.();
  return isFile(stream) ? putToFile(stream, data) : process[stream].write(data);
}

/**
 * Writes all of the data. On an almost full disk a single write may write only the first part of the data, and Node
 * itself would not write the rest.
 */
function putToFile(stream: StreamName, data: string | Uint8Array): boolean {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  try {
    for (let at = 0; at < bytes.length; ) {
      const written = writeSync(DESCRIPTORS[stream], bytes, at);
      if (written === 0) throw new Error("the file accepts no more data");
      at += written;
    }
    return true;
  } catch (error) {
    onBroken(brokenBy(error));
    return false;
  }
}

const files = new Map<StreamName, boolean>();

/**
 * Whether the stream is a file or a device, to which this code writes synchronously. Pipes, sockets and terminals are
 * left to Node.
 */
function isFile(stream: StreamName): boolean {
  const known = files.get(stream) ?? blocks(stream);
  files.set(stream, known);
  return known;
}

function blocks(stream: StreamName): boolean {
  const target = fstatSync(DESCRIPTORS[stream]);
  return target.isFile() || (target.isCharacterDevice() && !process[stream].isTTY);
}

/**
 * Converts a write error to the reason for ending the CLI. If the reader has exited, the CLI ends quietly, as other
 * programs do; any other error is reported.
 */
function brokenBy(error: unknown): Error {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === "EPIPE" || code === "ERR_STREAM_DESTROYED") return new Interrupted("SIGPIPE");
  if (code === "EIO") return new Interrupted("SIGHUP");
  return new OutputFailure(`cannot write the output: ${message}`);
}

/** Sends a file of a sandbox or drive, or one range of it, with exactly the length in the headers. */
import type { FileStat } from "@holdfast/contract";
import { ERRORS, HoldfastError } from "@holdfast/contract";
import type { FileApi } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "../http/context.ts";
import type { Range } from "../http/range.ts";
import { sendAll } from "./stream.ts";

interface Span {
  offset: number;
  length: number | null;
}

interface Wanted {
  /** The file API of the sandbox or drive that has the file. Default: that of a sandbox. */
  files?: FileApi;
  ref: string;
  path: string;
  range: Range;
  /** Whether a sandbox in standby may be woken. */
  wake: boolean;
}

export async function sendFile(
  reply: FastifyReply,
  context: RouteContext,
  wanted: Wanted,
): Promise<FastifyReply> {
  const signal = context.callers.signal(reply.raw);
  const span = await locate(context, wanted, signal);
  const { files = context.engine.files, ref, path, wake } = wanted;
  const { stat, body } = await files.read(ref, path, { ...span, wake }, signal);
  const chunks = body[Symbol.asyncIterator]();
  try {
    // The first chunk is read before the headers are sent, so that an unreadable file gets an error response instead of
    // a broken body.
    const first = await chunks.next();
    const second = first.done ? first : await chunks.next();
    const isWhole = wanted.range.kind === "whole";
    if (second.done)
      return sendOne(reply, first.done ? new Uint8Array(0) : first.value, { stat, span, isWhole });
    const length = lengthOf(stat, span, isWhole);
    const rest = { [Symbol.asyncIterator]: () => chunks };
    return await sendMany(reply, context, {
      headers: headersFor(stat, { offset: span.offset, length, isWhole }),
      chunks: exactly(length, [first.value, second.value], rest),
    });
  } finally {
    await chunks.return?.();
  }
}

/** Returns the range to read. The file's size is read first only if the range counts from the file's end. */
async function locate(context: RouteContext, wanted: Wanted, signal: AbortSignal): Promise<Span> {
  const { range } = wanted;
  if (range.kind === "whole") return { offset: 0, length: null };
  if (range.kind === "from") {
    return { offset: range.first, length: range.last === null ? null : range.last - range.first + 1 };
  }
  if (range.kind === "unsatisfiable") throw new HoldfastError("range_not_satisfiable");
  const sizeBytes = await sizeOf(context, wanted, signal);
  if (sizeBytes === 0) throw sizeless();
  return { offset: Math.max(0, sizeBytes - range.length), length: range.length };
}

/**
 * Returns the size of the file that a read would open. A stat alone is not enough, because the stat of a symbolic link
 * describes the link itself and not the file.
 */
async function sizeOf(
  { engine }: RouteContext,
  { files = engine.files, ref, path, wake }: Wanted,
  signal: AbortSignal,
): Promise<number> {
  const { stat, body } = await files.read(ref, path, { offset: 0, length: 0, wake }, signal);
  await body[Symbol.asyncIterator]().return?.();
  return stat.sizeBytes;
}

const sizeless = () =>
  new HoldfastError("range_not_satisfiable", {
    message: "The file has no fixed size, so ranges are not supported.",
  });

/**
 * Returns the value of the Content-Length header. Returns null if a whole file is requested and its reported size is 0,
 * because a file in /proc has content although its reported size is 0. Throws if a range of such a file is requested.
 */
function lengthOf(stat: FileStat, span: Span, isWhole: boolean): number | null {
  const left = stat.sizeBytes - span.offset;
  if (left > 0) return Math.min(span.length ?? left, left);
  if (isWhole) return null;
  throw sizeless();
}

/** Sends a file that fits in one chunk with its actual length, because files in /proc and /sys report no size. */
function sendOne(
  reply: FastifyReply,
  data: Uint8Array,
  { stat, span, isWhole }: { stat: FileStat; span: Span; isWhole: boolean },
): FastifyReply {
  if (!isWhole && data.length === 0) {
    reply.header("content-range", `bytes */${stat.sizeBytes}`);
    throw new HoldfastError("range_not_satisfiable", {
      message: `${ERRORS.range_not_satisfiable.message} The file has ${stat.sizeBytes} bytes.`,
    });
  }
  const headers = headersFor(stat, { offset: span.offset, length: data.length, isWhole });
  return reply
    .code(isWhole ? 200 : 206)
    .headers(headers)
    .send(data);
}

function headersFor(
  stat: FileStat,
  { offset, length, isWhole }: { offset: number; length: number | null; isWhole: boolean },
): Record<string, string> {
  const headers: Record<string, string> = {
    "content-type": "application/octet-stream",
    "accept-ranges": "bytes",
    "last-modified": new Date(stat.modifiedAt).toUTCString(),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  };
  if (length === null) return headers;
  headers["content-length"] = String(length);
  const size = Math.max(stat.sizeBytes, offset + length);
  if (!isWhole) headers["content-range"] = `bytes ${offset}-${offset + length - 1}/${size}`;
  return headers;
}

async function sendMany(
  reply: FastifyReply,
  { numbers, log }: RouteContext,
  { headers, chunks }: { headers: Record<string, string>; chunks: AsyncIterable<Uint8Array> },
): Promise<FastifyReply> {
  reply.hijack();
  const response = reply.raw;
  response.writeHead("content-range" in headers ? 206 : 200, {
    "x-request-id": reply.request.id,
    ...headers,
  });
  try {
    await sendAll(response, chunks, { stallMs: numbers.httpStallMs });
    response.end();
  } catch (error) {
    log.debug({ requestId: reply.request.id, err: error }, "failed to send a whole file");
    response.destroy();
  }
  return reply;
}

/**
 * Yields exactly the announced number of bytes. If the file has grown, the rest is dropped. If the file has shrunk,
 * throws, so that the reader does not take the incomplete content for the whole file.
 */
async function* exactly(
  length: number | null,
  head: readonly Uint8Array[],
  rest: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  let left = length ?? Number.POSITIVE_INFINITY;
  for (const chunk of head) {
    yield chunk.subarray(0, left);
    left -= Math.min(left, chunk.length);
  }
  if (left > 0) {
    for await (const chunk of rest) {
      yield chunk.subarray(0, left);
      left -= Math.min(left, chunk.length);
      if (left === 0) break;
    }
  }
  if (length !== null && left > 0) throw new Error(`the file ended ${left} bytes early`);
}

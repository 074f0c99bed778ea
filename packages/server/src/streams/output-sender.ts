/**
 * Streams an exec's output to a caller.
 *
 * The first record is awaited before the headers go out, so that an exec or cursor that isn't there is still an error
 * response. After that, whatever ends the records early must not look like their end: forms with records then lack the
 * `end` record, and a raw body, which has none, breaks off where its last chunk and trailers should be.
 *
 * Nothing is asked of the engine before the socket took what was written, so a slow reader holds one slice and slows
 * nobody but itself. One that takes nothing is cut off, and so is one that does not acknowledge what little it is sent: a
 * quiet exec's keepalives would lie in the kernel's buffer for a quarter of an hour before the kernel gives up.
 */
import type { ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { type ExecStatus, HoldfastError } from "@holdfast/contract";
import type { OutputOptions, OutputRecord } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import { ChunkWriter } from "./chunk-writer.ts";
import type { RouteContext } from "./context.ts";
import { ENCODE, OUTPUT_HEADERS, OUTPUT_TYPES, type OutputFormat } from "./output-format.ts";
import { ReaderStalled } from "./stream.ts";

export interface Wanted extends OutputOptions {
  id: string;
  format: OutputFormat;
}

export async function sendOutput(
  reply: FastifyReply,
  context: RouteContext,
  wanted: Wanted,
): Promise<FastifyReply> {
  const { id, format, ...options } = wanted;
  if (format === "raw") refuseUntold(reply);
  const response = reply.raw;
  const { httpStallMs } = context.numbers;
  const writer = new ChunkWriter(response, { stallMs: httpStallMs, signal: wanted.signal });
  const isTaken = () => writer.isAllSent;
  const records = context.engine.execs.output(id, { ...options, isTaken })[Symbol.asyncIterator]();
  const told: Told = { cursor: null, ended: null, isTruncated: false };
  let isWedged = false;
  const giveUp = () => {
    if (!isWedged) context.engine.execs.readerWedged(id);
    isWedged = true;
    response.destroy();
  };
  const { socket } = reply.request.raw;
  const unwatch = context.peers.watch(socket, giveUp);
  try {
    let step = await records.next();
    reply.hijack();
    response.writeHead(200, { "x-request-id": reply.request.id, ...OUTPUT_HEADERS[format] });
    response.flushHeaders();
    for (; !step.done; step = await records.next()) await tell(step.value);
    writer.flush();
    // What is written last must be taken in time as well.
    response.setTimeout(httpStallMs, giveUp);
    finish(response, wanted, told);
  } catch (error) {
    if (!response.headersSent) throw error;
    writer.flush();
    if (error instanceof ReaderStalled || hasTimedOut(socket)) giveUp();
    else cut(response, wanted);
    context.log.debug({ requestId: reply.request.id, execId: id, err: error }, "stream ended early");
  } finally {
    unwatch();
    await records.return?.();
  }
  return reply;

  function tell(record: OutputRecord): Promise<void> | void {
    told.cursor = record.cursor;
    if (record.type === "end") told.ended = record.exec.status;
    if ("exec" in record && record.exec.truncated) told.isTruncated = true;
    if ("data" in record) context.metrics.streamed(format, record.data.length);
    return writer.write(ENCODE[format](record));
  }
}

/** By TCP's own keepalive. */
const hasTimedOut = ({ errored }: Socket): boolean =>
  errored !== null && "code" in errored && errored.code === "ETIMEDOUT";

/** What the caller was told so far. */
interface Told {
  cursor: string | null;
  /** The exec's terminal status. */
  ended: ExecStatus | null;
  /** This was not all that it wrote: the head is no longer kept, or the end is not known. */
  isTruncated: boolean;
}

/** A body of HTTP/1.0 ends with its connection: it has no trailers, and one that broke off looks complete. */
function refuseUntold({ request }: FastifyReply): void {
  if (request.raw.httpVersion !== "1.0") return;
  throw new HoldfastError("invalid_request", {
    message: `${OUTPUT_TYPES.raw} needs HTTP/1.1, whose trailers tell how the output ended.`,
  });
}

function finish(response: ServerResponse, { format, follow }: Wanted, told: Told): void {
  if (format !== "raw") {
    response.end();
    return;
  }
  if (follow && told.ended === null) {
    response.destroy();
    return;
  }
  response.addTrailers({
    ...(told.ended === null ? {} : { "Holdfast-End": told.ended }),
    ...(told.cursor === null ? {} : { "Holdfast-Cursor": told.cursor }),
    ...(told.isTruncated ? { "Holdfast-Truncated": "true" } : {}),
  });
  response.end();
}

/**
 * Ends what was broken off. Only a followed stream of records may end in order: it lacks its `end` record, whereas the
 * others would look complete. A reader that takes nothing would keep an orderly end waiting.
 */
function cut(response: ServerResponse, { format, follow }: Wanted): void {
  if (format === "raw" || !follow || response.writableNeedDrain) response.destroy();
  else response.end();
}

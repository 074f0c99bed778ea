/**
 * Streams an exec's output to a caller.
 *
 * The first record is awaited before the headers are sent, so that an unknown exec or cursor gets an error response.
 * After that, output that stops early must not look complete. Formats with records then lack the `end` record. A raw
 * body, which has no records, ends without its last chunk and trailers.
 *
 * The engine is asked for more only after the socket took the previous piece, so a slow reader needs memory for one
 * piece and slows down no other reader. A reader that accepts no data is disconnected. A reader that does not
 * acknowledge the few bytes it is sent is disconnected too: otherwise the keepalives of a quiet exec would wait in the
 * kernel's buffer for a quarter of an hour, until the kernel gives up.
 */
import type { ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { type ExecStatus, HoldfastError } from "@holdfast/contract";
import type { OutputOptions, OutputRecord } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "../http/context.ts";
import { ChunkWriter } from "./chunk-writer.ts";
import { ENCODE, OUTPUT_HEADERS, OUTPUT_TYPES, type OutputFormat } from "./output-format.ts";
import { ReaderStalled } from "./stream.ts";

interface Wanted extends OutputOptions {
  id: string;
  format: OutputFormat;
}

export async function sendOutput(
  reply: FastifyReply,
  context: RouteContext,
  wanted: Wanted,
): Promise<FastifyReply> {
  const { id, format, ...options } = wanted;
  if (format === "raw") requireTrailers(reply);
  const response = reply.raw;
  const { httpStallMs } = context.numbers;
  const writer = new ChunkWriter(response, { stallMs: httpStallMs, signal: wanted.signal });
  const isTaken = () => writer.isAllSent;
  const records = context.engine.execs.output(id, { ...options, isTaken })[Symbol.asyncIterator]();
  const sent: Sent = { cursor: null, ended: null, isTruncated: false };
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
    // The time limit for a stalled reader also applies while the last bytes are sent.
    response.setTimeout(httpStallMs, giveUp);
    finish(response, wanted, sent);
  } catch (error) {
    if (!response.headersSent) throw error;
    writer.flush();
    if (error instanceof ReaderStalled || hasTimedOut(socket)) giveUp();
    else cut(response, wanted);
    context.log.debug({ requestId: reply.request.id, execId: id, err: error }, "output stream ended early");
  } finally {
    unwatch();
    await records.return?.();
  }
  return reply;

  function tell(record: OutputRecord): Promise<void> | void {
    sent.cursor = record.cursor;
    if (record.type === "end") sent.ended = record.exec.status;
    if ("exec" in record && record.exec.truncated) sent.isTruncated = true;
    if ("data" in record) context.metrics.streamed(format, record.data.length);
    return writer.write(ENCODE[format](record));
  }
}

/** Returns whether TCP keepalive has found the peer dead. */
const hasTimedOut = ({ errored }: Socket): boolean =>
  errored !== null && "code" in errored && errored.code === "ETIMEDOUT";

/** How much of the output the caller has received. */
interface Sent {
  cursor: string | null;
  /** The exec's terminal status. */
  ended: ExecStatus | null;
  /** Whether output is missing: either its beginning is no longer kept, or its end is unknown. */
  isTruncated: boolean;
}

/**
 * Refuses the raw format to HTTP/1.0 clients. Bodies of HTTP/1.0 end with the connection and have no trailers, so an
 * incomplete body would look complete.
 */
function requireTrailers({ request }: FastifyReply): void {
  if (request.raw.httpVersion !== "1.0") return;
  throw new HoldfastError("invalid_request", {
    message: `${OUTPUT_TYPES.raw} needs HTTP/1.1: its trailers report how the output ended.`,
  });
}

function finish(response: ServerResponse, { format, follow }: Wanted, sent: Sent): void {
  if (format !== "raw") {
    response.end();
    return;
  }
  if (follow && sent.ended === null) {
    response.destroy();
    return;
  }
  response.addTrailers({
    ...(sent.ended === null ? {} : { "Holdfast-End": sent.ended }),
    ...(sent.cursor === null ? {} : { "Holdfast-Cursor": sent.cursor }),
    ...(sent.isTruncated ? { "Holdfast-Truncated": "true" } : {}),
  });
  response.end();
}

/**
 * Ends an interrupted stream. A followed stream of records ends normally, because the missing `end` record shows that
 * it is incomplete. In every other case a normal end would make the output look complete, so the connection is
 * destroyed. The connection is also destroyed if the reader has stalled, because a normal end would wait for the
 * reader.
 */
function cut(response: ServerResponse, { format, follow }: Wanted): void {
  if (format === "raw" || !follow || response.writableNeedDrain) response.destroy();
  else response.end();
}

/**
 * Streams records until their source or the caller ends the stream. The source is asked for more only after the socket
 * took the previous record, so a slow reader slows down no other reader. A reader that accepts or acknowledges no data
 * is disconnected. If the source fails, a last record gives the reason. A stream that ends without a record for its end
 * was cut.
 */
import type { FastifyReply } from "fastify";
import { CallerLeft } from "../http/callers.ts";
import type { RouteContext } from "../http/context.ts";
import type { WireError } from "../ports/wire-error.ts";
import { ChunkWriter } from "./chunk-writer.ts";
import { OUTPUT_HEADERS } from "./output-format.ts";
import { ReaderStalled } from "./stream.ts";

export const RECORD_FORMATS = ["sse", "ndjson"] as const;
export type RecordFormat = (typeof RECORD_FORMATS)[number];

interface RecordStream<Item> {
  records: AsyncIterable<Item>;
  format: RecordFormat;
  encode(record: Item): string;
  /** Builds the record that gives the reason for the end. */
  ending(error: WireError["body"]["error"]): Item;
  signal: AbortSignal;
}

/**
 * Sends the status 200 at once, and then the records. Errors that prevent the stream from starting must therefore be
 * thrown before this call.
 */
export async function sendRecords<Item>(
  reply: FastifyReply,
  context: RouteContext,
  { records, format, encode, ending, signal }: RecordStream<Item>,
): Promise<FastifyReply> {
  const { raw: response, request } = reply;
  const { httpStallMs } = context.numbers;
  const writer = new ChunkWriter(response, { stallMs: httpStallMs, signal });
  const giveUp = () => response.destroy();
  const unwatch = context.peers.watch(request.raw.socket, giveUp);
  reply.hijack();
  response.writeHead(200, { "x-request-id": request.id, ...OUTPUT_HEADERS[format] });
  try {
    for await (const record of records) await writer.write([Buffer.from(encode(record))]);
    writer.flush();
  } catch (error) {
    const left = error instanceof CallerLeft || error instanceof ReaderStalled || response.destroyed;
    const { error: why } = context.report(error, request, left).body;
    writer.flush();
    // If the caller has disconnected or has stalled, a normal end would wait for the caller, so the connection is
    // destroyed.
    if (left || response.writableNeedDrain) giveUp();
    else response.write(encode(ending(why)));
  } finally {
    unwatch();
  }
  // The time limit for a stalled reader also applies while the last bytes are sent.
  response.setTimeout(httpStallMs, giveUp);
  response.end();
  return reply;
}

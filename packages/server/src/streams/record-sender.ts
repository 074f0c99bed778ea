/**
 * Tells a caller records as they come, until their source or their caller has enough.
 *
 * Nothing is asked of the source before the socket took what was written, so a slow reader slows nobody but itself. One that
 * takes nothing is cut off, and so is one that acknowledges nothing of the little it is sent. What fails is said in the last
 * record; a stream that ends without one was cut.
 */
import type { FastifyReply } from "fastify";
import { CallerLeft } from "./callers.ts";
import { ChunkWriter } from "./chunk-writer.ts";
import type { RouteContext } from "./context.ts";
import type { WireError } from "./errors.ts";
import { OUTPUT_HEADERS } from "./output-format.ts";
import { ReaderStalled } from "./stream.ts";

export const RECORD_FORMATS = ["sse", "ndjson"] as const;
export type RecordFormat = (typeof RECORD_FORMATS)[number];

interface Told<Item> {
  records: AsyncIterable<Item>;
  format: RecordFormat;
  encode(record: Item): string;
  /** The record that says why there are no more. */
  ending(error: WireError["body"]["error"]): Item;
  signal: AbortSignal;
}

/** What can't be begun has to fail before this is called: from here on the status is sent. */
export async function sendRecords<Item>(
  reply: FastifyReply,
  context: RouteContext,
  { records, format, encode, ending, signal }: Told<Item>,
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
    // One that takes nothing would keep an orderly end waiting.
    if (left || response.writableNeedDrain) giveUp();
    else response.write(encode(ending(why)));
  } finally {
    unwatch();
  }
  // What is written last must be taken in time as well.
  response.setTimeout(httpStallMs, giveUp);
  response.end();
  return reply;
}

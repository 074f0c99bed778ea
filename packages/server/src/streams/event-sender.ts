/**
 * Tells a caller what happened and then what happens, from a cursor on.
 *
 * The reading has begun before the headers go out, so that a cursor that can't be served is an error response. Each record has
 * the cursor behind it, keepalives too, since what a filter leaves out moves it as well: whoever comes back with the last one
 * misses nothing and is told nothing twice. Only a stream with an `until` has an end of its own; any other lasts until one of
 * both has enough, or for as long as a stream may.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { EventPage, EventQuery } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "./context.ts";
import { OUTPUT_TYPES } from "./output-format.ts";
import { type RecordFormat, sendRecords } from "./record-sender.ts";
import { EventRecord } from "./schemas.ts";
import { scrubbed } from "./scrubbed.ts";

/** For the API document. */
export const EVENT_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.sse]: EventRecord,
  [OUTPUT_TYPES.ndjson]: EventRecord,
};

export async function sendEvents(
  reply: FastifyReply,
  context: RouteContext,
  { query, format }: { query: EventQuery; format: RecordFormat },
): Promise<FastifyReply> {
  const signal = context.callers.signal(reply.raw);
  const pages = context.engine.followEvents(query, signal)[Symbol.asyncIterator]();
  const first = await pages.next();
  return sendRecords<EventRecord>(reply, context, {
    records: recordsOf(first, pages, context.numbers.streamMaxMs),
    format,
    encode: (record) => ENCODE[format](scrubbed(record, context.scrub)),
    ending: (error) => ({ type: "end", error }),
    signal,
  });
}

type Pages = AsyncIterator<EventPage>;

async function* recordsOf(
  first: IteratorResult<EventPage>,
  pages: Pages,
  streamMaxMs: number,
): AsyncGenerator<EventRecord, void, undefined> {
  const endsAt = performance.now() + streamMaxMs;
  let isFirst = true;
  try {
    for (let step = first; !step.done; step = await pages.next()) {
      const { events, cursor } = step.value;
      for (const event of events) yield { type: "event", cursor: String(event.seq), event };
      if (events.length === 0) yield { type: isFirst ? "start" : "keepalive", cursor };
      isFirst = false;
      // Pages come every few seconds, so that this is noticed.
      if (performance.now() >= endsAt) return;
    }
    yield { type: "end", error: null };
  } finally {
    await pages.return?.();
  }
}

/** The cursor as event id, so that a browser's own reconnect carries on from there. */
const ENCODE: Readonly<Record<RecordFormat, (record: EventRecord) => string>> = {
  ndjson: (record) => `${JSON.stringify(record)}\n`,
  sse: (record) => {
    if (record.type === "event")
      return `id: ${record.cursor}\nevent: ${record.event.type}\ndata: ${JSON.stringify(record.event)}\n\n`;
    const id = record.type === "end" ? "" : `id: ${record.cursor}\n`;
    return `${id}event: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`;
  },
};

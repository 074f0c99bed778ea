/**
 * Streams stored events from a cursor, then new events.
 *
 * Reading starts before the headers are sent, so that an invalid cursor gets an error response. Every record, including
 * keepalives, carries the cursor from which the stream continues after that record. Keepalives carry it too because
 * events that the filter excludes also advance the cursor. A caller that reconnects with the last cursor misses nothing
 * and receives nothing twice. Only a stream with `until` has a natural end; other streams last until either side ends
 * them or their maximum age is reached.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { EventPage, EventQuery } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "../http/context.ts";
import { EventRecord } from "../http/schemas.ts";
import { scrubJson } from "../http/scrub-json.ts";
import { OUTPUT_TYPES } from "./output-format.ts";
import { type RecordFormat, sendRecords } from "./record-sender.ts";

/** Response content for the API document. */
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
    encode: (record) => ENCODE[format](scrubJson(record, context.scrub)),
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
      // A page of events arrives every few seconds, even if there are no new events, so this check ends the stream soon
      // after its maximum age.
      if (performance.now() >= endsAt) return;
    }
    yield { type: "end", error: null };
  } finally {
    await pages.return?.();
  }
}

/** The SSE event id is the cursor, so that a browser that reconnects continues after the last event it received. */
const ENCODE: Readonly<Record<RecordFormat, (record: EventRecord) => string>> = {
  ndjson: (record) => `${JSON.stringify(record)}\n`,
  sse: (record) => {
    if (record.type === "event")
      return `id: ${record.cursor}\nevent: ${record.event.type}\ndata: ${JSON.stringify(record.event)}\n\n`;
    const id = record.type === "end" ? "" : `id: ${record.cursor}\n`;
    return `${id}event: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`;
  },
};

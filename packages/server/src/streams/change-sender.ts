/**
 * Streams file changes to a caller until either side ends the stream.
 *
 * The watch is established before the headers are sent, so that a path that cannot be watched gets an error response.
 * From then on no change is lost silently: a slow reader delays no other reader, and if too many changes wait for it,
 * they are reported as an `overflow`. The stream has no natural end. Its last record gives the reason for the end; a
 * stream without that record was cut. In both cases the caller starts a new watch and re-reads the directory, because
 * changes in between were not reported.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { FileChange } from "@holdfast/contract";
import type { FileApi } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "../http/context.ts";
import { WatchRecord } from "../http/schemas.ts";
import { OUTPUT_TYPES } from "./output-format.ts";
import { type RecordFormat, sendRecords } from "./record-sender.ts";

/** Response content for the API document. */
export const CHANGE_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.sse]: WatchRecord,
  [OUTPUT_TYPES.ndjson]: WatchRecord,
};

const ENCODE: Readonly<Record<RecordFormat, (record: WatchRecord) => string>> = {
  sse: (record) => `event: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`,
  ndjson: (record) => `${JSON.stringify(record)}\n`,
};

interface Wanted {
  files: FileApi;
  ref: string;
  path: string;
  recursive: boolean;
  format: RecordFormat;
}

export async function sendChanges(
  reply: FastifyReply,
  context: RouteContext,
  { files, ref, path, recursive, format }: Wanted,
): Promise<FastifyReply> {
  const enough = new AbortController();
  const signal = AbortSignal.any([context.callers.signal(reply.raw), enough.signal]);
  const changes = await files.watch(ref, path, { recursive }, signal);
  try {
    return await sendRecords<WatchRecord>(reply, context, {
      records: recordsOf(path, changes, context.numbers),
      format,
      encode: ENCODE[format],
      ending: (error) => ({ type: "end", error }),
      signal,
    });
  } finally {
    enough.abort();
  }
}

/** Adds keepalives every few seconds, and ends the stream at its maximum age; connected callers then watch again. */
async function* recordsOf(
  path: string,
  changes: AsyncIterable<FileChange>,
  { streamKeepaliveMs, streamMaxMs }: RouteContext["numbers"],
): AsyncGenerator<WatchRecord, void, undefined> {
  yield { type: "start", path };
  const source = changes[Symbol.asyncIterator]();
  const endsAt = performance.now() + streamMaxMs;
  for (let next = takeNext(source); ; ) {
    const restMs = endsAt - performance.now();
    if (restMs <= 0) return;
    const step = await orNullAfter(next, Math.min(streamKeepaliveMs, restMs));
    if (step?.done) return;
    if (step === null) yield { type: "keepalive" };
    else {
      yield { type: "change", ...step.value };
      next = takeNext(source);
    }
  }
}

/**
 * Requests the next change. If the caller disconnects first, the returned promise is never awaited. The empty handler
 * then prevents that a failure is reported as an unhandled rejection.
 */
function takeNext<Value>(source: AsyncIterator<Value>): Promise<IteratorResult<Value>> {
  const next = source.next();
  next.catch(() => {});
  return next;
}

/** Resolves with the result of the work, or with null if the work takes longer than `ms`. */
function orNullAfter<Value>(work: Promise<Value>, ms: number): Promise<Value | null> {
  const silence = Promise.withResolvers<null>();
  const timer = setTimeout(() => silence.resolve(null), ms);
  return Promise.race([work, silence.promise]).finally(() => clearTimeout(timer));
}

/**
 * Tells a caller what changes, until one of them has enough.
 *
 * The watch stands before the headers go out, so that what can't be watched is an error response. From then on nothing is
 * missed silently: a slow reader slows nobody but itself, and what piles up meanwhile comes as an `overflow`. The stream has
 * no end of its own; the last record says why there is one. Without it the stream was cut. Either way the caller watches
 * again, and looks again, since nobody was told of what came in between.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { FileChange } from "@holdfast/contract";
import type { FileApi } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "./context.ts";
import { OUTPUT_TYPES } from "./output-format.ts";
import { type RecordFormat, sendRecords } from "./record-sender.ts";
import { WatchRecord } from "./schemas.ts";

/** For the API document. */
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

/** With something to say every few seconds at least, and not for ever: who is still there watches again. */
async function* recordsOf(
  path: string,
  changes: AsyncIterable<FileChange>,
  { streamKeepaliveMs, streamMaxMs }: RouteContext["numbers"],
): AsyncGenerator<WatchRecord, void, undefined> {
  yield { type: "start", path };
  const source = changes[Symbol.asyncIterator]();
  const endsAt = performance.now() + streamMaxMs;
  for (let next = asked(source); ; ) {
    const restMs = endsAt - performance.now();
    if (restMs <= 0) return;
    const step = await orSilence(next, Math.min(streamKeepaliveMs, restMs));
    if (step?.done) return;
    if (step === null) yield { type: "keepalive" };
    else {
      yield { type: "change", ...step.value };
      next = asked(source);
    }
  }
}

/** Nobody may be there any more to hear that it failed. */
function asked<Value>(source: AsyncIterator<Value>): Promise<IteratorResult<Value>> {
  const next = source.next();
  next.catch(() => {});
  return next;
}

/** Null where nothing has come of it in time. */
function orSilence<Value>(work: Promise<Value>, ms: number): Promise<Value | null> {
  const silence = Promise.withResolvers<null>();
  const timer = setTimeout(() => silence.resolve(null), ms);
  return Promise.race([work, silence.promise]).finally(() => clearTimeout(timer));
}

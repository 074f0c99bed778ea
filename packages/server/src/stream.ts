/** Writing to callers who may be slow, or gone. */
import type { ServerResponse } from "node:http";
import type { StreamRecord } from "@holdfast/contract";

export type StreamFormat = "ndjson" | "sse";

export const STREAM_TYPES: Readonly<Record<StreamFormat, string>> = {
  ndjson: "application/x-ndjson",
  sse: "text/event-stream",
};

/** What the Accept header asks for by name; null where it names neither. */
export function acceptedStream(accept: string | undefined): StreamFormat | null {
  if (accept === undefined || accept === "*/*") return null;
  if (accept.includes(STREAM_TYPES.sse)) return "sse";
  return accept.includes(STREAM_TYPES.ndjson) ? "ndjson" : null;
}

const ENCODE: Readonly<Record<StreamFormat, (record: StreamRecord) => string>> = {
  ndjson: (record) => `${JSON.stringify(record)}\n`,
  /** The cursor as event id, so that a browser's own reconnect carries on from there. */
  sse: (record) => `id: ${record.cursor}\nevent: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`,
};

async function* encode(
  records: AsyncIterable<StreamRecord>,
  format: StreamFormat,
): AsyncGenerator<string, void, undefined> {
  for await (const record of records) yield ENCODE[format](record);
}

/**
 * Streams an exec's records. The first one is awaited before the headers go out, so that an exec or cursor that isn't
 * there is still an error response. After that, whatever ends the records early ends the response without an `end`
 * record, which tells the caller to come back with its last cursor. Rejects with what ended it.
 */
export async function sendRecords(
  response: ServerResponse,
  records: AsyncIterable<StreamRecord>,
  options: { format: StreamFormat; stallMs: number; headers: Record<string, string>; onOpen: () => void },
): Promise<void> {
  const lines = encode(records, options.format);
  const first = await lines.next();
  options.onOpen();
  response.writeHead(200, {
    ...options.headers,
    "content-type": `${STREAM_TYPES[options.format]}; charset=utf-8`,
    "cache-control": "no-store",
    "x-accel-buffering": "no",
  });
  try {
    if (!first.done) await send(response, first.value, options.stallMs);
    await sendAll(response, lines, options.stallMs);
  } finally {
    await lines.return();
    response.end();
  }
}

/** Every chunk, at the reader's pace: nothing is asked of the source before the last chunk was taken. */
export async function sendAll(
  response: ServerResponse,
  chunks: AsyncIterable<string | Uint8Array>,
  stallMs: number,
): Promise<void> {
  for await (const chunk of chunks) await send(response, chunk, stallMs);
}

export class ReaderStalled extends Error {
  constructor(stallMs: number) {
    super(`the caller took nothing for ${stallMs} ms`);
    this.name = "ReaderStalled";
  }
}

function send(response: ServerResponse, chunk: string | Uint8Array, stallMs: number): Promise<void> | void {
  if (response.destroyed) throw new Error("the caller has left");
  if (response.write(chunk)) return;
  return drained(response, stallMs);
}

/** Resolves when the response takes more or is closed. A reader that takes nothing is cut off. */
function drained(response: ServerResponse, stallMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const finish = (error?: Error) => {
      clearTimeout(timer);
      response.off("drain", done);
      response.off("close", done);
      error ? reject(error) : resolve();
    };
    const done = () => finish();
    const timer = setTimeout(() => {
      response.destroy();
      finish(new ReaderStalled(stallMs));
    }, stallMs);
    response.once("drain", done);
    response.once("close", done);
  });
}

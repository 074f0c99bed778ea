/** The forms in which an exec's output leaves the server. */

import type { TSchema } from "@fastify/type-provider-typebox";
import { StreamRecord } from "@holdfast/contract";
import type { OutputRecord } from "@holdfast/engine";
import { frameOf, timeWithin } from "./frames.ts";
import { bytes } from "./schemas.ts";

export const OUTPUT_FORMATS = ["ndjson", "sse", "frames", "raw"] as const;
export type OutputFormat = (typeof OUTPUT_FORMATS)[number];

export const OUTPUT_TYPES: Readonly<Record<OutputFormat, string>> = {
  ndjson: "application/x-ndjson",
  sse: "text/event-stream",
  frames: "application/vnd.holdfast.frames",
  raw: "application/octet-stream",
};

const ANY = { "cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff" };
export const OUTPUT_HEADERS: Readonly<Record<OutputFormat, Readonly<Record<string, string>>>> = {
  ndjson: { ...ANY, "content-type": `${OUTPUT_TYPES.ndjson}; charset=utf-8` },
  sse: { ...ANY, "content-type": `${OUTPUT_TYPES.sse}; charset=utf-8` },
  frames: { ...ANY, "content-type": OUTPUT_TYPES.frames },
  raw: {
    ...ANY,
    "content-type": OUTPUT_TYPES.raw,
    trailer: "Holdfast-End, Holdfast-Cursor, Holdfast-Truncated",
  },
};

/** For the API document. */
export const OUTPUT_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.ndjson]: StreamRecord,
  [OUTPUT_TYPES.sse]: StreamRecord,
  [OUTPUT_TYPES.frames]: bytes("records as length-prefixed binary frames"),
  [OUTPUT_TYPES.raw]: bytes("the output's bytes and nothing else; trailers tell how it ended"),
};

/** The first of the given forms that the Accept header names; null where it names none of them. */
export function acceptedFormat<Format extends OutputFormat>(
  accept: string | undefined,
  among: readonly Format[],
): Format | null {
  for (const range of accept?.split(",") ?? []) {
    const type = range.split(";", 1)[0]?.trim().toLowerCase();
    const format = among.find((known) => OUTPUT_TYPES[known] === type);
    if (format) return format;
  }
  return null;
}

/** What is written for a record, piece by piece. Raw has no place for records that carry no output. */
export const ENCODE: Readonly<Record<OutputFormat, (record: OutputRecord) => readonly Uint8Array[]>> = {
  ndjson: (record) => [Buffer.from(`${JSON.stringify(wireRecord(record))}\n`)],
  /** The cursor as event id, so that a browser's own reconnect carries on from there. */
  sse: (record) => [
    Buffer.from(
      `id: ${record.cursor}\nevent: ${record.type}\ndata: ${JSON.stringify(wireRecord(record))}\n\n`,
    ),
  ],
  frames: frameOf,
  raw: (record) => ("data" in record ? [record.data] : []),
};

/** Bytes become base64 and times text. */
function wireRecord(record: OutputRecord): StreamRecord {
  if (!("data" in record)) return record;
  const { type, cursor, at, data } = record;
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return { type, cursor, at: new Date(timeWithin(at)).toISOString(), data: bytes.toString("base64") };
}

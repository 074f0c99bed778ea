/** The formats in which an exec's output can be sent. */

import type { TSchema } from "@fastify/type-provider-typebox";
import { StreamRecord } from "@holdfast/contract";
import type { OutputRecord } from "@holdfast/engine";
import { bytes } from "../http/schemas.ts";
import { frameOf, timeWithin } from "./frames.ts";

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

/** Response content for the API document. */
export const OUTPUT_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.ndjson]: StreamRecord,
  [OUTPUT_TYPES.sse]: StreamRecord,
  [OUTPUT_TYPES.frames]: bytes("records as length-prefixed binary frames"),
  [OUTPUT_TYPES.raw]: bytes("the raw output bytes; trailers report how the output ended"),
};

/** Returns the first of the given formats that the Accept header names; null if it names none. */
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

/** Encodes a record as pieces. The raw format omits records without output. */
export const ENCODE: Readonly<Record<OutputFormat, (record: OutputRecord) => readonly Uint8Array[]>> = {
  ndjson: (record) => [Buffer.from(`${JSON.stringify(wireRecord(record))}\n`)],
  /** The SSE event id is the cursor, so that a browser that reconnects continues after the last chunk it received. */
  sse: (record) => [
    Buffer.from(
      `id: ${record.cursor}\nevent: ${record.type}\ndata: ${JSON.stringify(wireRecord(record))}\n\n`,
    ),
  ],
  frames: frameOf,
  raw: (record) => ("data" in record ? [record.data] : []),
};

/** Converts a record to JSON: bytes to base64, and times to text. */
function wireRecord(record: OutputRecord): StreamRecord {
  if (!("data" in record)) return record;
  const { type, cursor, at, data } = record;
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return { type, cursor, at: new Date(timeWithin(at)).toISOString(), data: bytes.toString("base64") };
}

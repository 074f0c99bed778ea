export const NDJSON_TYPE = "application/x-ndjson";

/**
 * Maximum line length that is accepted, far above what a server sends. A longer line means that the stream is not
 * NDJSON.
 */
const LINE_LIMIT = 4 * 1_048_576;

/**
 * Parses a stream with one JSON record per line. The pieces of the stream may begin and end anywhere in a line. Throws
 * if a line is not a record.
 */
export async function* recordsOf(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<object, void, undefined> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of pieces) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    if (rest.length > LINE_LIMIT) throw new RangeError("the stream is not NDJSON");
    for (const line of lines) {
      if (line !== "") yield recordOf(line);
    }
  }
}

function recordOf(line: string): object {
  const record: unknown = JSON.parse(line);
  if (typeof record !== "object" || record === null) throw new SyntaxError("a line is not a record");
  return record;
}

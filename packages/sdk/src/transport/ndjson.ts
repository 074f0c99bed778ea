export const NDJSON_TYPE = "application/x-ndjson";

/** Far above what a server sends: a line beyond it means that the stream is not what it should be. */
const LINE_LIMIT = 4 * 1_048_576;

/** The records of a stream that has one on each line, cut anywhere. Throws where a line is none. */
export async function* recordsOf(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<object, void, undefined> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of pieces) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    if (rest.length > LINE_LIMIT) throw new RangeError("the stream is not one of lines");
    for (const line of lines) {
      if (line !== "") yield recordOf(line);
    }
  }
}

function recordOf(line: string): object {
  const record: unknown = JSON.parse(line);
  if (typeof record !== "object" || record === null) throw new SyntaxError("a line is no record");
  return record;
}

import { pipeline, Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { HoldfastError } from "@holdfast/contract";

/** The magic number of gzip; no other accepted body starts with it. */
const MAGIC = [0x1f, 0x8b] as const;
const CHUNK_BYTES = 262_144;

/** Decompresses the body if it begins with gzip's magic number. The headers of the request are not considered. */
export async function* gunzipBody(
  body: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  const chunks = body[Symbol.asyncIterator]();
  try {
    let head = Buffer.alloc(0);
    for (let step = await chunks.next(); ; step = await chunks.next()) {
      if (!step.done) head = Buffer.concat([head, step.value]);
      if (step.done || head.length >= MAGIC.length) break;
    }
    const isZipped = MAGIC.every((byte, at) => head[at] === byte);
    const whole = resumed(head, chunks);
    yield* isZipped ? gunzipStream(whole) : whole;
  } finally {
    await chunks.return?.();
  }
}

async function* resumed(
  head: Uint8Array,
  rest: AsyncIterator<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  if (head.length > 0) yield head;
  for (let step = await rest.next(); !step.done; step = await rest.next()) yield step.value;
}

async function* gunzipStream(zipped: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const gunzip = createGunzip({ chunkSize: CHUNK_BYTES });
  pipeline(Readable.from(zipped), gunzip, () => {});
  try {
    yield* gunzip as AsyncIterable<Uint8Array>;
  } catch (error) {
    if (!isDamage(error)) throw error;
    throw new HoldfastError("invalid_request", {
      message: `The body could not be decompressed: ${error.message}.`,
      cause: error,
    });
  }
}

const isDamage = (error: unknown): error is Error =>
  error instanceof Error && "code" in error && String(error.code).startsWith("Z_");

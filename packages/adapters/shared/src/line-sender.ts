import type { RouteContext } from "@holdfast/server/adapter";
import { sendAll } from "@holdfast/server/adapter";
import type { FastifyReply } from "fastify";

/**
 * Sends lines or bytes as they arrive. The headers are sent only with the first line, so that a stream that can't start
 * gets an error response. A later failure destroys the connection, because the client would take a normal end for a
 * complete result.
 */
export async function sendLines(
  reply: FastifyReply,
  { numbers, peers, log }: RouteContext,
  { type, lines, signal }: { type: string; lines: AsyncIterable<string | Uint8Array>; signal: AbortSignal },
): Promise<FastifyReply> {
  const source = lines[Symbol.asyncIterator]();
  const first = await source.next();
  reply.hijack();
  const { raw: response, request } = reply;
  const giveUp = () => response.destroy();
  const unwatch = peers.watch(request.raw.socket, giveUp);
  response.writeHead(200, {
    "x-request-id": request.id,
    "content-type": `${type}; charset=utf-8`,
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
  });
  try {
    await sendAll(response, bytesOf(first, source), { stallMs: numbers.httpStallMs, signal });
    // After `end`, the timeout also applies to the last bytes, which are still being sent.
    response.setTimeout(numbers.httpStallMs, giveUp);
    response.end();
  } catch (error) {
    log.debug({ requestId: request.id, err: error }, "line stream ended early");
    // The connection is destroyed when the lines written so far were sent, or when the reader accepts no data for this
    // time.
    response.setTimeout(numbers.httpStallMs, giveUp);
    if (!signal.aborted) response.write("", giveUp);
    else giveUp();
  } finally {
    unwatch();
    await source.return?.();
  }
  return reply;
}

async function* bytesOf(
  first: IteratorResult<string | Uint8Array>,
  source: AsyncIterator<string | Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  for (let step = first; !step.done; step = await source.next()) {
    yield typeof step.value === "string" ? Buffer.from(step.value) : step.value;
  }
}

import type { FastifyReply } from "fastify";
import type { RouteContext } from "../context.ts";
import { sendAll } from "../stream.ts";

/**
 * Sends lines, or bytes, as they come. The first is awaited before the headers go out, so that what can't begin is an error
 * response; what breaks off later breaks the connection too, because the client takes an orderly end for the end.
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
    // What is written last must be taken in time as well.
    response.setTimeout(numbers.httpStallMs, giveUp);
    response.end();
  } catch (error) {
    log.debug({ requestId: request.id, err: error }, "stream ended early");
    giveUp();
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

/**
 * Sends an archive while it is made. Its first bytes are awaited before the headers go out, so that what can't be packed at
 * all is an error response. An archive that breaks off later lacks its end, and so does the response.
 */
import { posix } from "node:path";
import type { FastifyReply } from "fastify";
import { ChunkWriter } from "./chunk-writer.ts";
import type { RouteContext } from "./context.ts";

export const ARCHIVE_TYPE = "application/x-tar";

export async function sendArchive(
  reply: FastifyReply,
  { numbers, log }: RouteContext,
  { archive, path, signal }: { archive: AsyncIterable<Uint8Array>; path: string; signal: AbortSignal },
): Promise<FastifyReply> {
  const { raw: response, request } = reply;
  const chunks = archive[Symbol.asyncIterator]();
  try {
    let step = await chunks.next();
    reply.hijack();
    response.writeHead(200, { "x-request-id": request.id, ...headersFor(path) });
    const writer = new ChunkWriter(response, { stallMs: numbers.httpStallMs, signal });
    for (; !step.done; step = await chunks.next()) await writer.write([step.value]);
    writer.flush();
    response.end();
  } catch (error) {
    if (!response.headersSent) throw error;
    log.debug({ requestId: request.id, err: error }, "archive not sent to its end");
    response.destroy();
  } finally {
    await chunks.return?.();
  }
  return reply;
}

function headersFor(path: string): Record<string, string> {
  const name = posix.basename(path).replaceAll(/[^\w.-]/g, "_") || "files";
  return {
    "content-type": ARCHIVE_TYPE,
    "content-disposition": `attachment; filename="${name}.tar"`,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  };
}

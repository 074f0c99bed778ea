/**
 * Sends an archive while it is made. Its first bytes are awaited before the headers go out, so that what can't be packed at
 * all is an error response. An archive that breaks off later lacks its end, and so does the response.
 */
import { posix } from "node:path";
import type { FastifyReply } from "fastify";
import { ChunkWriter } from "./chunk-writer.ts";
import type { RouteContext } from "./context.ts";

export const ARCHIVE_TYPE = "application/x-tar";

interface Sent {
  archive: AsyncIterable<Uint8Array>;
  /** What is in it. */
  path: string;
  /** What it is, and what a file of that kind is called by. Default: a tar archive as it is. */
  type?: string;
  suffix?: string;
  signal: AbortSignal;
}

export async function sendArchive(
  reply: FastifyReply,
  { numbers, log }: RouteContext,
  { archive, path, type = ARCHIVE_TYPE, suffix = ".tar", signal }: Sent,
): Promise<FastifyReply> {
  const { raw: response, request } = reply;
  const chunks = archive[Symbol.asyncIterator]();
  try {
    let step = await chunks.next();
    reply.hijack();
    response.writeHead(200, { "x-request-id": request.id, ...headersFor(path, type, suffix) });
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

function headersFor(path: string, type: string, suffix: string): Record<string, string> {
  const name = posix.basename(path).replaceAll(/[^\w.-]/g, "_") || "files";
  return {
    "content-type": type,
    "content-disposition": `attachment; filename="${name}${suffix}"`,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  };
}

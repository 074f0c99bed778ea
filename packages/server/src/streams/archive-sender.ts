/**
 * Streams an archive while it is built. The first bytes are awaited before the headers are sent, so that a path that
 * cannot be packed gets an error response. If packing fails later, the response is cut, so that the archive is
 * recognizably incomplete.
 */
import { posix } from "node:path";
import type { FastifyReply } from "fastify";
import type { RouteContext } from "../http/context.ts";
import { ChunkWriter } from "./chunk-writer.ts";

export const ARCHIVE_TYPE = "application/x-tar";

interface Sent {
  archive: AsyncIterable<Uint8Array>;
  /** Path of the packed file or directory, from which the archive's name is derived. */
  path: string;
  /** Media type and file suffix. Default: an uncompressed tar archive. */
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
    log.debug({ requestId: request.id, err: error }, "failed to send a whole archive");
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

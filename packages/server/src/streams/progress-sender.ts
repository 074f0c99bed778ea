/**
 * Tells a caller the steps of a create as they happen.
 *
 * What is refused before there was anything to tell is an ordinary error response, with its own status and Retry-After.
 * From the first record on the status is sent, and the last record says how it ended. A stream that ends without a
 * `sandbox` or an `error` was cut; the create goes on.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { Sandbox } from "@holdfast/contract";
import type { Progress } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import { CallerLeft } from "./callers.ts";
import type { RouteContext } from "./context.ts";
import { OUTPUT_HEADERS, OUTPUT_TYPES } from "./output-format.ts";
import { CreateRecord } from "./schemas.ts";

export const PROGRESS_FORMATS = ["ndjson", "sse"] as const;
export type ProgressFormat = (typeof PROGRESS_FORMATS)[number];

/** For the API document. */
export const PROGRESS_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.ndjson]: CreateRecord,
  [OUTPUT_TYPES.sse]: CreateRecord,
};

const ENCODE: Readonly<Record<ProgressFormat, (record: CreateRecord) => string>> = {
  ndjson: (record) => `${JSON.stringify(record)}\n`,
  sse: (record) => `event: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`,
};

type Create = (onProgress: (progress: Progress) => void) => Promise<{ sandbox: Sandbox; existed: boolean }>;

/** A create has few steps and a deadline, so there is little that a caller who takes nothing could leave lying. */
export async function sendProgress(
  reply: FastifyReply,
  context: RouteContext,
  format: ProgressFormat,
  create: Create,
): Promise<FastifyReply> {
  const { streamKeepaliveMs, httpStallMs } = context.numbers;
  const { raw: response, request } = reply;
  let isOver = false;
  const tell = (record: CreateRecord) => {
    if (isOver) return;
    if (!response.headersSent) {
      reply.hijack();
      response.writeHead(200, { "x-request-id": request.id, ...OUTPUT_HEADERS[format] });
    }
    if (!response.destroyed) response.write(ENCODE[format](record));
    keepalive.refresh();
  };
  const keepalive = setInterval(() => tell({ type: "keepalive" }), streamKeepaliveMs);
  try {
    const { sandbox, existed } = await create(({ step, at }) => {
      tell({ type: "progress", step, at: new Date(at).toISOString() });
    });
    tell({ type: "sandbox", sandbox, existed });
  } catch (error) {
    if (!response.headersSent) throw error;
    const left = error instanceof CallerLeft || response.destroyed;
    tell({ type: "error", error: context.report(error, request, left).body.error });
  } finally {
    clearInterval(keepalive);
    isOver = true;
  }
  // What is written last must be taken in time as well.
  response.setTimeout(httpStallMs);
  response.end();
  return reply;
}

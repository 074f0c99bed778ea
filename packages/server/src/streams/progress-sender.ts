/**
 * Streams the steps of a create as they happen.
 *
 * A request that is rejected before the first step gets an ordinary error response with its own status and Retry-After.
 * When the first record is sent, the status 200 has been sent too, so from then on the last record gives the outcome. A
 * stream that ends without a `sandbox` or `error` record was cut, and the create continues.
 */
import type { TSchema } from "@fastify/type-provider-typebox";
import type { Sandbox } from "@holdfast/contract";
import type { Progress } from "@holdfast/engine";
import type { FastifyReply } from "fastify";
import { CallerLeft } from "../http/callers.ts";
import type { RouteContext } from "../http/context.ts";
import { CreateRecord } from "../http/schemas.ts";
import { OUTPUT_HEADERS, OUTPUT_TYPES } from "./output-format.ts";

export const PROGRESS_FORMATS = ["ndjson", "sse"] as const;
type ProgressFormat = (typeof PROGRESS_FORMATS)[number];

/** Response content for the API document. */
export const PROGRESS_CONTENT: Readonly<Record<string, TSchema>> = {
  [OUTPUT_TYPES.ndjson]: CreateRecord,
  [OUTPUT_TYPES.sse]: CreateRecord,
};

const ENCODE: Readonly<Record<ProgressFormat, (record: CreateRecord) => string>> = {
  ndjson: (record) => `${JSON.stringify(record)}\n`,
  sse: (record) => `event: ${record.type}\ndata: ${JSON.stringify(record)}\n\n`,
};

type Create = (onProgress: (progress: Progress) => void) => Promise<{ sandbox: Sandbox; existed: boolean }>;

/**
 * Sends the steps of a create. A create has few steps and a deadline, so little data is queued even if the caller reads
 * nothing.
 */
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
  // The time limit for a stalled reader also applies while the last bytes are sent.
  response.setTimeout(httpStallMs);
  response.end();
  return reply;
}

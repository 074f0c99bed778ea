import type { IncomingHttpHeaders } from "node:http";
import { type Static, Type } from "@fastify/type-provider-typebox";
import type { FastifyReply } from "fastify";
import type { App, RouteContext } from "../http/context.ts";
import { ExecRef, OutputQuery } from "../http/schemas.ts";
import { acceptedFormat, OUTPUT_CONTENT, OUTPUT_FORMATS } from "../streams/output-format.ts";
import { sendOutput } from "../streams/output-sender.ts";

/** Error codes that reading an exec's output can return. */
export const OUTPUT_ERRORS = [
  "exec_not_found",
  "bad_cursor",
  "output_dropped",
  "too_many_readers",
  "link_lost",
  "deadline",
] as const;

export const ReadQuery = Type.Object({
  ...OutputQuery,
  follow: Type.Optional(Type.Boolean({ default: false, description: "keep streaming until the exec ends" })),
});
type ReadQuery = Static<typeof ReadQuery>;

export function execOutputRoutes(app: App, context: RouteContext): void {
  app.get(
    "/v1/execs/:id/output",
    {
      schema: {
        operationId: "readExecOutput",
        summary: "Stream an exec's output from a cursor.",
        description:
          "The Accept header chooses the format; the default is x-ndjson. A stream of records without an `end` record was cut: reconnect with the last cursor. A raw stream (octet-stream) has the trailer Holdfast-Cursor, Holdfast-End if the exec has ended, and Holdfast-Truncated if output is missing; a raw stream that was cut ends without its final chunk. A Last-Event-ID header is used as the cursor.",
        tags: ["execs"],
        params: ExecRef,
        querystring: ReadQuery,
      },
      config: { content: { 200: OUTPUT_CONTENT }, errors: OUTPUT_ERRORS },
    },
    ({ params, query, headers }, reply) => forwardOutput(context, reply, params.id, { query, headers }),
  );
}

/** Streams the output of one exec, in the requested format, from the requested cursor. */
export function forwardOutput(
  context: RouteContext,
  reply: FastifyReply,
  id: string,
  { query, headers }: { query: ReadQuery; headers: IncomingHttpHeaders },
) {
  const lastSeen = headers["last-event-id"];
  return sendOutput(reply, context, {
    id,
    format: acceptedFormat(headers.accept, OUTPUT_FORMATS) ?? "ndjson",
    // The header takes precedence over the query: a browser that reconnects repeats the same URL, and sends the last
    // cursor that it received in the header.
    cursor: typeof lastSeen === "string" ? lastSeen : query.cursor,
    stream: query.stream,
    hold: query.hold,
    follow: query.follow ?? false,
    signal: context.callers.signal(reply.raw),
  });
}

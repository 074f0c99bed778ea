import type { IncomingHttpHeaders } from "node:http";
import { type Static, Type } from "@fastify/type-provider-typebox";
import type { FastifyReply } from "fastify";
import type { App, RouteContext } from "../context.ts";
import { acceptedFormat, OUTPUT_CONTENT, OUTPUT_FORMATS } from "../output-format.ts";
import { sendOutput } from "../output-sender.ts";
import { ExecRef, OutputQuery } from "../schemas.ts";

/** What reading output can meet. */
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
  follow: Type.Optional(Type.Boolean({ default: false, description: "go on until the exec ends" })),
});
type ReadQuery = Static<typeof ReadQuery>;

export function execOutputRoutes(app: App, context: RouteContext): void {
  app.get(
    "/v1/execs/:id/output",
    {
      schema: {
        operationId: "readExecOutput",
        summary: "An exec's output from a cursor on, as a stream.",
        description:
          "The Accept header chooses the form; without one it is x-ndjson. A stream of records that ends without an `end` record was cut: come back with the last cursor. A raw one (octet-stream) has the trailers Holdfast-Cursor, once the exec has ended Holdfast-End, and where it was not all Holdfast-Truncated; one that was cut breaks off. A Last-Event-ID header is taken as cursor.",
        tags: ["execs"],
        params: ExecRef,
        querystring: ReadQuery,
      },
      config: { content: { 200: OUTPUT_CONTENT }, errors: OUTPUT_ERRORS },
    },
    ({ params, query, headers }, reply) => forwardOutput(context, reply, params.id, { query, headers }),
  );
}

/** The output of one exec, in the form and from the place that a request asks for. */
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
    // A browser that reconnects repeats its URL; what it has seen since is in the header.
    cursor: typeof lastSeen === "string" ? lastSeen : query.cursor,
    stream: query.stream,
    follow: query.follow ?? false,
    signal: context.callers.signal(reply.raw),
  });
}

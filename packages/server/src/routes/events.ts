import { Type } from "@fastify/type-provider-typebox";
import { EVENT_TYPES, EventList, type EventType, type ExecId, HoldfastError } from "@holdfast/contract";
import type { EventOrder, EventQuery as EventQuestion } from "@holdfast/engine";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../http/context.ts";
import { oneOfEach, timeFilter } from "../http/filters.ts";
import { EventQuery, Page, pageOf, SandboxRef } from "../http/schemas.ts";
import { scrubJson } from "../http/scrub-json.ts";
import { EVENT_CONTENT, sendEvents } from "../streams/event-sender.ts";
import { acceptedFormat } from "../streams/output-format.ts";
import { RECORD_FORMATS } from "../streams/record-sender.ts";

const STREAMED =
  "With an Accept header that names a stream type, the response is a stream: stored events from the cursor or `since` (without either, none), followed by new events as they happen. A Last-Event-ID header is used as the cursor.";
const ERRORS = [
  "sandbox_not_found",
  "pending_cleanup",
  "drive_not_found",
  "events_dropped",
  "too_many_readers",
] as const;

/**
 * The timeline of events. The events of a deleted sandbox or drive can be read by its id for as long as they are kept.
 */
export function eventRoutes(app: App, context: RouteContext): void {
  app.get(
    "/v1/events",
    {
      schema: {
        operationId: "listEvents",
        summary: "List events, oldest first.",
        description: STREAMED,
        tags: ["operators"],
        querystring: Type.Object({
          sandbox: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a sandbox" })),
          ...EventQuery,
          ...Page,
        }),
        response: { 200: EventList },
      },
      config: { content: { 200: EVENT_CONTENT }, errors: ERRORS },
    },
    async (request, reply) => (await answer(context, request, reply, request.query.sandbox)) ?? reply,
  );

  app.get(
    "/v1/sandboxes/:ref/events",
    {
      schema: {
        operationId: "listSandboxEvents",
        summary: "List the events of a sandbox, oldest first.",
        description: STREAMED,
        tags: ["sandboxes"],
        params: SandboxRef,
        querystring: Type.Object({ ...EventQuery, ...Page }),
        response: { 200: EventList },
      },
      config: { content: { 200: EVENT_CONTENT }, errors: ERRORS },
    },
    async (request, reply) => (await answer(context, request, reply, request.params.ref)) ?? reply,
  );
}

interface Query {
  exec?: string;
  drive?: string;
  type?: string[];
  since?: string;
  until?: string;
  order?: EventOrder;
  limit?: number;
  cursor?: string;
}

type Asked = Pick<FastifyRequest, "headers"> & { query: Query };

/** Returns the list of events, or null if the response was sent as a stream. */
async function answer(
  context: RouteContext,
  { query, headers }: Asked,
  reply: FastifyReply,
  ref: string | undefined,
): Promise<EventList | null> {
  const { order } = query;
  const asked: EventQuestion = {
    ref,
    execId: query.exec as ExecId | undefined,
    drive: query.drive,
    types: oneOfEach<EventType>("type", query.type, EVENT_TYPES),
    since: timeFilter("since", query.since),
    until: timeFilter("until", query.until),
    cursor: query.cursor,
  };
  const format = acceptedFormat(headers.accept, RECORD_FORMATS);
  if (format === null) {
    const { items, nextCursor } = await context.engine.events({ ...pageOf(query), ...asked, order });
    // Events quote error messages of the host, which can contain host paths, so these paths are removed.
    return { items: scrubJson(items, context.scrub), nextCursor };
  }
  if (order === "newest")
    throw new HoldfastError("invalid_request", {
      message: "A stream sends the oldest events first; remove order=newest.",
    });
  // The header takes precedence over the query: a browser that reconnects repeats the same URL, and sends the last
  // cursor that it received in the header.
  const cursor = lastSeen(headers) ?? query.cursor;
  await sendEvents(reply, context, { query: { ...asked, cursor }, format });
  return null;
}

function lastSeen({ "last-event-id": id }: FastifyRequest["headers"]): string | undefined {
  return typeof id === "string" && id !== "" ? id : undefined;
}

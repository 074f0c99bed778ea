import { Type } from "@fastify/type-provider-typebox";
import { EVENT_TYPES, EventList, type EventType, type ExecId, HoldfastError } from "@holdfast/contract";
import type { EventOrder, EventQuery as EventQuestion } from "@holdfast/engine";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../context.ts";
import { EVENT_CONTENT, sendEvents } from "../event-sender.ts";
import { oneOfEach, timeFilter } from "../filters.ts";
import { acceptedFormat } from "../output-format.ts";
import { RECORD_FORMATS } from "../record-sender.ts";
import { EventQuery, Page, pageOf, SandboxRef } from "../schemas.ts";
import { scrubbed } from "../scrubbed.ts";

const STREAMED =
  "With an Accept header that names a stream type it is a stream: what is listed from the cursor or `since` on, or without either from now on, and then what happens. It goes on from a Last-Event-ID header as from a cursor.";
const ERRORS = [
  "sandbox_not_found",
  "pending_cleanup",
  "drive_not_found",
  "events_dropped",
  "too_many_readers",
] as const;

/** The timeline. A sandbox or drive that is gone is found by its id, for as long as its events are kept. */
export function eventRoutes(app: App, context: RouteContext): void {
  app.get(
    "/v1/events",
    {
      schema: {
        operationId: "listEvents",
        summary: "What happened, oldest first.",
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
        summary: "The sandbox's timeline, oldest first.",
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

/** The list; or null where it was sent as a stream. */
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
    // Events quote errors of the host: its paths are nobody's business.
    return { items: scrubbed(items, context.scrub), nextCursor };
  }
  if (order === "newest")
    throw new HoldfastError("invalid_request", { message: "A stream tells the oldest first." });
  // A browser that reconnects repeats its URL; what it has seen since is in the header.
  const cursor = lastSeen(headers) ?? query.cursor;
  await sendEvents(reply, context, { query: { ...asked, cursor }, format });
  return null;
}

function lastSeen({ "last-event-id": id }: FastifyRequest["headers"]): string | undefined {
  return typeof id === "string" && id !== "" ? id : undefined;
}

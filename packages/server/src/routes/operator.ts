import { Type } from "@fastify/type-provider-typebox";
import {
  EVENT_TYPES,
  EventList,
  type EventType,
  EXEC_ID_PATTERN,
  type ExecId,
  Health,
  Stats,
} from "@holdfast/contract";
import type { App, RouteContext } from "../context.ts";
import { oneOfEach } from "../filters.ts";
import { Page, pageOf } from "../schemas.ts";

const tags = ["operators"];
const open = { public: true, early: true } as const;

export function operatorRoutes(app: App, { engine, metrics, version, installation }: RouteContext): void {
  const health = (reasons: string[], status: string) => ({ status, version, installation, reasons });

  app.get(
    "/healthz",
    {
      schema: { operationId: "healthz", summary: "The server runs.", tags, response: { 200: Health } },
      config: open,
      exposeHeadRoute: true,
    },
    async () => health([], "ok"),
  );

  app.get(
    "/readyz",
    {
      schema: {
        operationId: "readyz",
        summary: "The server takes work, or why not.",
        tags,
        response: { 200: Health, 503: Health },
      },
      config: open,
      exposeHeadRoute: true,
    },
    async (_request, reply) => {
      const reasons = engine.unreadiness();
      const ready = reasons.length === 0;
      return reply.code(ready ? 200 : 503).send(health(reasons, ready ? "ready" : "unready"));
    },
  );

  app.get(
    "/metrics",
    {
      schema: { operationId: "metrics", summary: "Figures in the Prometheus format.", tags },
      config: { content: { 200: { "text/plain": Type.String() } } },
    },
    async (_request, reply) => {
      reply.header("content-type", metrics.registry.contentType);
      return reply.send(await metrics.render(engine));
    },
  );

  app.get(
    "/v1/stats",
    { schema: { operationId: "getStats", summary: "Exact counts.", tags, response: { 200: Stats } } },
    () => engine.stats(),
  );

  app.get(
    "/v1/events",
    {
      schema: {
        operationId: "listEvents",
        summary: "What happened, oldest first.",
        tags,
        querystring: Type.Object({
          sandbox: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a sandbox" })),
          exec: Type.Optional(Type.String({ pattern: EXEC_ID_PATTERN })),
          drive: Type.Optional(Type.String({ maxLength: 64, description: "id or name of a drive" })),
          type: Type.Optional(
            Type.Array(Type.String(), { description: `any of: ${EVENT_TYPES.join(", ")}` }),
          ),
          ...Page,
        }),
        response: { 200: EventList },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup", "drive_not_found"] },
    },
    ({ query }) =>
      engine.events({
        ...pageOf(query),
        ref: query.sandbox,
        execId: query.exec as ExecId | undefined,
        drive: query.drive,
        types: oneOfEach<EventType>("type", query.type, EVENT_TYPES),
      }),
  );
}

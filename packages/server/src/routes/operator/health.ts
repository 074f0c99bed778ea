import { Type } from "@fastify/type-provider-typebox";
import { Health, Stats } from "@holdfast/contract";
import type { App, RouteContext } from "../../http/context.ts";

const tags = ["operators"];
const open = { public: true, early: true } as const;

export function healthRoutes(app: App, { engine, metrics, version, installation }: RouteContext): void {
  const health = (reasons: string[], status: string) => ({ status, version, installation, reasons });

  app.get(
    "/healthz",
    {
      schema: {
        operationId: "healthz",
        summary: "Check that the server process is running.",
        tags,
        response: { 200: Health },
      },
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
        summary: "Check whether the server accepts work, with the reason if not.",
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
      schema: { operationId: "metrics", summary: "Get metrics in the Prometheus format.", tags },
      config: { content: { 200: { "text/plain": Type.String() } } },
    },
    async (_request, reply) => {
      reply.header("content-type", metrics.contentType);
      return reply.send(await metrics.render(engine));
    },
  );

  app.get(
    "/v1/stats",
    { schema: { operationId: "getStats", summary: "Get exact counts.", tags, response: { 200: Stats } } },
    () => engine.stats(),
  );
}

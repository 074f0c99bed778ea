import { Type } from "@fastify/type-provider-typebox";
import { AlertList, DELIVERY_STATES, Delivery, DeliveryList, OneOf } from "@holdfast/contract";
import type { App, RouteContext } from "../../http/context.ts";
import { Page, pageOf } from "../../http/schemas.ts";
import { scrubJson } from "../../http/scrub-json.ts";

const tags = ["operators"];

/**
 * Alerts and webhook deliveries. Their messages quote error messages of the host, which can contain host paths, so
 * these paths are removed.
 */
export function alertRoutes(app: App, { engine, scrub }: RouteContext): void {
  app.get(
    "/v1/alerts",
    {
      schema: {
        operationId: "listAlerts",
        summary: "List active alerts, most severe first.",
        tags,
        querystring: Type.Object({
          cleared: Type.Optional(
            Type.Boolean({
              default: false,
              description: "include recently cleared alerts, newest first",
            }),
          ),
        }),
        response: { 200: AlertList },
      },
    },
    async ({ query }) => scrubJson(await engine.alerts.list({ cleared: query.cleared ?? false }), scrub),
  );

  app.get(
    "/v1/alerts/deliveries",
    {
      schema: {
        operationId: "listDeliveries",
        summary: "List webhook deliveries, newest first.",
        tags,
        querystring: Type.Object({ state: Type.Optional(OneOf(DELIVERY_STATES)), ...Page }),
        response: { 200: DeliveryList },
      },
    },
    async ({ query }) =>
      scrubJson(await engine.alerts.deliveries({ ...pageOf(query), state: query.state }), scrub),
  );

  app.post(
    "/v1/alerts/deliveries/:id/retry",
    {
      schema: {
        operationId: "retryDelivery",
        summary: "Retry a dead delivery.",
        description:
          "Also retries the other dead deliveries of the same alert, in order. A pending or delivered delivery is returned unchanged.",
        tags,
        params: Type.Object({ id: Type.String({ minLength: 1, maxLength: 64 }) }),
        response: { 200: Delivery },
      },
      config: { errors: ["delivery_not_found", "no_webhook", "capacity"] },
    },
    async ({ params }) => scrubJson(await engine.alerts.redeliver(params.id), scrub),
  );
}

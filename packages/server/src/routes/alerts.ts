import { Type } from "@fastify/type-provider-typebox";
import { AlertList, DELIVERY_STATES, Delivery, DeliveryList, OneOf } from "@holdfast/contract";
import type { App, RouteContext } from "../context.ts";
import { Page, pageOf } from "../schemas.ts";
import { scrubbed } from "../scrubbed.ts";

const tags = ["operators"];

/** What is wrong, and who was told. Messages quote errors of the host: its paths are nobody's business. */
export function alertRoutes(app: App, { engine, scrub }: RouteContext): void {
  app.get(
    "/v1/alerts",
    {
      schema: {
        operationId: "listAlerts",
        summary: "What is wrong now, the worst first.",
        tags,
        querystring: Type.Object({
          cleared: Type.Optional(
            Type.Boolean({
              default: false,
              description: "with the last ones that have cleared, newest first",
            }),
          ),
        }),
        response: { 200: AlertList },
      },
    },
    async ({ query }) => scrubbed(await engine.alerts.list({ cleared: query.cleared ?? false }), scrub),
  );

  app.get(
    "/v1/alerts/deliveries",
    {
      schema: {
        operationId: "listDeliveries",
        summary: "Messages about alerts to the webhook, newest first.",
        tags,
        querystring: Type.Object({ state: Type.Optional(OneOf(DELIVERY_STATES)), ...Page }),
        response: { 200: DeliveryList },
      },
    },
    async ({ query }) =>
      scrubbed(await engine.alerts.deliveries({ ...pageOf(query), state: query.state }), scrub),
  );

  app.post(
    "/v1/alerts/deliveries/:id/retry",
    {
      schema: {
        operationId: "retryDelivery",
        summary: "Try a dead delivery again.",
        description:
          "With it goes what else of its alert is dead, in order. One that is pending or delivered is answered as it is.",
        tags,
        params: Type.Object({ id: Type.String({ minLength: 1, maxLength: 64 }) }),
        response: { 200: Delivery },
      },
      config: { errors: ["delivery_not_found", "no_webhook", "capacity"] },
    },
    async ({ params }) => scrubbed(await engine.alerts.redeliver(params.id), scrub),
  );
}

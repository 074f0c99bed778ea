import { Type } from "@fastify/type-provider-typebox";
import type { App } from "@holdfast/server/adapter";
import { scrubJson } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, succeeded } from "../adapter-context.ts";
import { LimitQuery, limitOf } from "../executions/executions.ts";
import { eventShape } from "../shapes.ts";

const EventQuery = Type.Object({
  ...LimitQuery.properties,
  direction: Type.Optional(Type.Union([Type.Literal("asc"), Type.Literal("desc")])),
});

/** Routes that list a sandbox's events, even after the sandbox was deleted. */
export function eventRoutes(app: App, { engine, scrub }: AdapterContext): void {
  app.get(
    "/sandbox/sandboxes/:id/events",
    { schema: { params: InSandbox, querystring: EventQuery } },
    async ({ params, query }) => {
      const { id } = await engine.sandboxes.get(params.id);
      const order = query.direction === "desc" ? "newest" : "oldest";
      const { items } = await engine.events({ ref: id, limit: limitOf(query), order });
      return succeeded({ events: scrubJson(items.map(eventShape), scrub) });
    },
  );
}

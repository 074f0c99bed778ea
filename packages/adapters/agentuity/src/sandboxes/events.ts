import { Type } from "@fastify/type-provider-typebox";
import type { App } from "../../context.ts";
import { scrubbed } from "../../scrubbed.ts";
import { LimitQuery, limitOf } from "./executions.ts";
import { InSandbox, type Parts, succeeded } from "./parts.ts";
import { eventShape } from "./shapes.ts";

const EventQuery = Type.Object({
  ...LimitQuery.properties,
  direction: Type.Optional(Type.Union([Type.Literal("asc"), Type.Literal("desc")])),
});

/** The timeline of a sandbox, also of one that is gone. */
export function eventRoutes(app: App, { engine, scrub }: Parts): void {
  app.get(
    "/sandbox/sandboxes/:id/events",
    { schema: { params: InSandbox, querystring: EventQuery } },
    async ({ params, query }) => {
      const { id } = await engine.sandboxes.get(params.id);
      const order = query.direction === "desc" ? "newest" : "oldest";
      const { items } = await engine.events({ ref: id, limit: limitOf(query), order });
      return succeeded({ events: scrubbed(items.map(eventShape), scrub) });
    },
  );
}

import { Type } from "@fastify/type-provider-typebox";
import type { App } from "@holdfast/server/adapter";
import { type AdapterContext, succeeded } from "../adapter-context.ts";
import { pageOf, SortQuery } from "../pages.ts";
import { runtimeShape } from "../shapes.ts";

const RuntimeQuery = Type.Object(SortQuery);

/** Lists images as runtimes. */
export function runtimeRoutes(app: App, { engine }: AdapterContext): void {
  app.get("/sandbox/runtimes", { schema: { querystring: RuntimeQuery } }, async ({ query }) => {
    const { page, total } = pageOf(await engine.images.list(), query, {
      name: ({ name }) => name,
      created: ({ createdAt }) => createdAt,
    });
    return succeeded({ runtimes: page.map(runtimeShape), total });
  });
}

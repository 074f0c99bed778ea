import { Type } from "@fastify/type-provider-typebox";
import type { App } from "../../context.ts";
import { pageOf, SortQuery } from "./pages.ts";
import { type Parts, succeeded } from "./parts.ts";
import { runtimeShape } from "./shapes.ts";

const RuntimeQuery = Type.Object(SortQuery);

/** Images, as runtimes. */
export function runtimeRoutes(app: App, { engine }: Parts): void {
  app.get("/sandbox/runtimes", { schema: { querystring: RuntimeQuery } }, async ({ query }) => {
    const { page, total } = pageOf(await engine.images.list(), query, {
      name: ({ name }) => name,
      created: ({ createdAt }) => createdAt,
    });
    return succeeded({ runtimes: page.map(runtimeShape), total });
  });
}

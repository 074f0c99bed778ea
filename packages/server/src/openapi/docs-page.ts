import swagger from "@fastify/swagger";
import swaggerUi from "@fastify/swagger-ui";
import type { App } from "../http/context.ts";
import { createDocument } from "./document.ts";
import type { RouteTable } from "./route-table.ts";

/**
 * Removes the directive that upgrades requests to HTTPS from a content security policy. The server speaks plain HTTP,
 * so with that directive the page's own files would not load.
 */
const withoutUpgrade = (policy: string) => policy.replace(/\s*upgrade-insecure-requests;?/, "");

/**
 * Registers `/openapi.json` and the page at `/docs`. Both are public: they contain nothing that is not in the
 * repository.
 */
export function registerDocs(app: App, table: RouteTable, version: string): void {
  app.register(async (scope) => {
    const document = createDocument(table.described, version);
    const text = JSON.stringify(document);
    scope.addHook("onRoute", (route) => {
      route.config = { ...route.config, public: true, early: true };
    });
    scope.get("/openapi.json", (_request, reply) => {
      reply.header("content-type", "application/json; charset=utf-8").send(text);
    });
    await scope.register(swagger, { mode: "static", specification: { document: document as never } });
    await scope.register(swaggerUi, {
      routePrefix: "/docs",
      uiConfig: { validatorUrl: null },
      staticCSP: true,
      transformStaticCSP: withoutUpgrade,
    });
  });
}

/**
 * Agentuity's sandbox API, for its published client as it is. Everything here is translation: names, shapes and errors. A
 * sandbox's id and name are the core's own, an execution and a job are execs, a pause is standby, and whatever holds, wakes or
 * fences a call is the engine's. What the client repeats by itself is not carried out twice: see `lost-answers.ts`.
 *
 * These routes have no operation ids, and so no place in the API document: Holdfast's own API is what is described there.
 */
import type { App, RouteContext } from "../../context.ts";
import { archiveRoutes } from "./archives.ts";
import { checkpointRoutes } from "./checkpoints.ts";
import { AGENTUITY } from "./errors.ts";
import { eventRoutes } from "./events.ts";
import { executionRoutes } from "./executions.ts";
import { fileRoutes } from "./files.ts";
import { jobRoutes } from "./jobs.ts";
import { listingRoutes } from "./listings.ts";
import { LostAnswers } from "./lost-answers.ts";
import { unsupportedRoutes } from "./not-supported.ts";
import { endOneshot } from "./oneshot.ts";
import { MOUNTED_AT, type Parts } from "./parts.ts";
import { runtimeRoutes } from "./runtimes.ts";
import { SandboxViews } from "./sandbox-views.ts";
import { sandboxRoutes } from "./sandboxes.ts";
import { StreamLinks } from "./stream-links.ts";
import { streamRoutes } from "./streams.ts";

const ROUTES: readonly ((app: App, parts: Parts) => void)[] = [
  sandboxRoutes,
  listingRoutes,
  executionRoutes,
  jobRoutes,
  eventRoutes,
  fileRoutes,
  archiveRoutes,
  checkpointRoutes,
  runtimeRoutes,
  streamRoutes,
  unsupportedRoutes,
];

export function agentuityRoutes(app: App, context: RouteContext): void {
  app.addHook("onRoute", (route) => {
    route.config = { dialect: AGENTUITY, ...route.config };
  });
  const parts: Parts = {
    ...context,
    links: new StreamLinks(context.linkSecret),
    lost: new LostAnswers(),
    views: new SandboxViews(context.engine, (shown) => endOneshot(context, shown)),
  };
  for (const routes of ROUTES) {
    app.register(async (scope) => routes(scope as App, parts), { prefix: MOUNTED_AT });
  }
}

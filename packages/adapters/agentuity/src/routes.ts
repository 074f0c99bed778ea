/**
 * Agentuity's sandbox API, for its published, unmodified client. This adapter only translates names, shapes and errors:
 * sandbox ids and names are those of Holdfast, executions and jobs are execs, and a pause is standby. The engine holds
 * calls, wakes sandboxes and fences old instances, as for calls to `/v1`. Requests that the client repeats on its own
 * are not carried out twice: see `lost-answers.ts`. These routes have no operation ids and are not in the API document,
 * which describes Holdfast's own API.
 */
import type { App, RouteContext } from "@holdfast/server/adapter";
import { type AdapterContext, MOUNTED_AT } from "./adapter-context.ts";
import { AGENTUITY } from "./errors.ts";
import { executionRoutes } from "./executions/executions.ts";
import { jobRoutes } from "./executions/jobs.ts";
import { endOneshot } from "./executions/oneshot.ts";
import { StreamLinks } from "./executions/stream-links.ts";
import { streamRoutes } from "./executions/streams.ts";
import { archiveRoutes } from "./files/archives.ts";
import { fileRoutes } from "./files/files.ts";
import { LostAnswers } from "./lost-answers.ts";
import { unsupportedRoutes } from "./not-supported.ts";
import { checkpointRoutes } from "./sandboxes/checkpoints.ts";
import { eventRoutes } from "./sandboxes/events.ts";
import { listingRoutes } from "./sandboxes/listings.ts";
import { runtimeRoutes } from "./sandboxes/runtimes.ts";
import { SandboxViews } from "./sandboxes/sandbox-views.ts";
import { sandboxRoutes } from "./sandboxes/sandboxes.ts";

const ROUTES: readonly ((app: App, adapterContext: AdapterContext) => void)[] = [
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
  const adapterContext: AdapterContext = {
    ...context,
    links: new StreamLinks(context.linkSecret),
    lost: new LostAnswers(),
    views: new SandboxViews(context.engine, (shown) => endOneshot(context, shown)),
  };
  for (const routes of ROUTES) {
    app.register(async (scope) => routes(scope as App, adapterContext), { prefix: MOUNTED_AT });
  }
}

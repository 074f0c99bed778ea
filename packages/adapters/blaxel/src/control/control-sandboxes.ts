import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, isHoldfastError, type Sandbox, STATUSES, type Status } from "@holdfast/contract";
import { orMaybeDispatched } from "../../callers.ts";
import type { App, RouteContext } from "../../context.ts";
import { externalIdLabel } from "./labels.ts";
import { everything, factsOf, ListQuery, listed } from "./listing.ts";
import { InSandbox } from "./process.ts";
import { ByExternalId, SandboxRequest, sandboxRequest } from "./sandbox-request.ts";
import { sandboxUpdate } from "./sandbox-update.ts";
import { SHOWN_EVENTS, type Site, sandboxShape, statusesCalled } from "./shapes.ts";
import { siteOf } from "./site.ts";

const CreateQuery = Type.Object({ createIfNotExist: Type.Optional(Type.Boolean()) });

const EVENTS_MAX = 200;

export function controlSandboxRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.post(
    "/sandboxes",
    { schema: { querystring: CreateQuery, body: SandboxRequest } },
    async (request, reply) => {
      const { body, query, owner } = request;
      const reading = {
        aliases: context.imageAliases,
        now: Date.now(),
        createIfNotExist: query.createIfNotExist ?? false,
      };
      const options = { wait: true, owner, signal: callers.signal(reply.raw) };
      const asked = engine.sandboxes.create(sandboxRequest(body, reading), options);
      const { sandbox } = await orMaybeDispatched(callers, asked.catch(stillThere));
      return shown(sandbox, siteOf(request));
    },
  );

  /** A sandbox with its timeline, as only one that is asked for by itself comes. */
  async function shown(sandbox: Sandbox, site: Site) {
    const { items } = await engine.events({ ref: sandbox.id, types: SHOWN_EVENTS, limit: EVENTS_MAX });
    return sandboxShape(sandbox, site, items);
  }

  app.get("/sandboxes", { schema: { querystring: ListQuery } }, async (request) => {
    const { query } = request;
    const filter = {
      status: statusFilter(query),
      labels: query.externalId === undefined ? undefined : externalIdLabel(query.externalId),
    };
    const site = siteOf(request);
    const all = await everything((page) => engine.sandboxes.list({ ...filter, ...page }));
    return listed(
      request,
      all.map((sandbox) => sandboxShape(sandbox, site)),
      ({ metadata, holdfast }) => factsOf(metadata, holdfast),
    );
  });

  app.get("/sandboxes/:name", { schema: { params: InSandbox } }, async (request) =>
    shown(await engine.sandboxes.get(request.params.name), siteOf(request)),
  );

  app.get("/sandboxes/by-external-id/:externalId", { schema: { params: ByExternalId } }, async (request) => {
    const { externalId } = request.params;
    const { items } = await engine.sandboxes.list({ labels: externalIdLabel(externalId), limit: 1 });
    const found = items[0];
    if (found !== undefined) return shown(found, siteOf(request));
    const message = `No sandbox has the external id ${JSON.stringify(externalId)}.`;
    throw new HoldfastError("sandbox_not_found", { message });
  });

  app.put("/sandboxes/:name", { schema: { params: InSandbox, body: SandboxRequest } }, async (request) => {
    const { params, body } = request;
    const sandbox = await engine.sandboxes.get(params.name);
    const changed = await engine.sandboxes.update(sandbox.id, sandboxUpdate(body, sandbox, Date.now()));
    return shown(changed, siteOf(request));
  });

  app.delete("/sandboxes/:name", { schema: { params: InSandbox } }, async (request, reply) => {
    const options = { graceMs: 0, signal: callers.signal(reply.raw) };
    const order = engine.sandboxes.remove(request.params.name, options);
    const sandbox = await orMaybeDispatched(callers, order);
    return shown(sandbox, siteOf(request));
  });
}

/** The client waits for a delete that is under way where it is told that the name is taken, and asks again. */
function stillThere(error: unknown): never {
  if (!isHoldfastError(error) || error.code !== "sandbox_gone") throw error;
  const message = "The sandbox that has that name is being deleted.";
  throw new HoldfastError("name_taken", { message, ...(error.sandboxId && { sandboxId: error.sandboxId }) });
}

function statusFilter({ status, showTerminated }: ListQuery): Status[] | undefined {
  if (!status) return showTerminated ? [...STATUSES] : undefined;
  return status.split(",").flatMap((name) => {
    const known = statusesCalled(name.trim());
    if (known.length > 0) return known;
    throw new HoldfastError("invalid_request", {
      message: `query/status is ${JSON.stringify(name.slice(0, 40))}, which no sandbox here is ever in.`,
    });
  });
}

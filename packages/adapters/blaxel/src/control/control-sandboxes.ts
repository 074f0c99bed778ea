import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, isHoldfastError, type Sandbox, STATUSES, type Status } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import { InSandbox } from "../process/process.ts";
import { type PublicOrigin, SHOWN_EVENTS, sandboxShape, statusesCalled } from "../shapes.ts";
import { externalIdLabel } from "./labels.ts";
import { everything, factsOf, ListQuery, listed } from "./listing.ts";
import { publicOrigin } from "./public-origin.ts";
import { ByExternalId, SandboxRequest, sandboxRequest } from "./sandbox-request.ts";
import { sandboxUpdate } from "./sandbox-update.ts";

const CreateQuery = Type.Object({ createIfNotExist: Type.Optional(Type.Boolean()) });

const EVENTS_MAX = 200;
const ENDING: readonly Status[] = ["failed", "stopping", "terminated"];

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
      const options = { wait: true, owner, beyondHost: true, signal: callers.signal(reply.raw) };
      const asked = engine.sandboxes.create(sandboxRequest(body, reading), options);
      const { sandbox } = await orMaybeDispatched(callers, asked.catch(rethrowNameTaken));
      return shown(sandbox, publicOrigin(request));
    },
  );

  /** Returns a sandbox with its timeline and environment, which listings omit. */
  async function shown(sandbox: Sandbox, site: PublicOrigin) {
    const { items } = await engine.events({ ref: sandbox.id, types: SHOWN_EVENTS, limit: EVENTS_MAX });
    return sandboxShape(sandbox, site, {
      events: items,
      env: await engine.sandboxes.environment(sandbox.id),
    });
  }

  app.get("/sandboxes", { schema: { querystring: ListQuery } }, async (request) => {
    const { query } = request;
    const filter = {
      status: statusFilter(query),
      labels: query.externalId === undefined ? undefined : externalIdLabel(query.externalId),
    };
    const site = publicOrigin(request);
    const all = await everything((page) => engine.sandboxes.list({ ...filter, ...page }));
    return listed(
      request,
      all.map((sandbox) => sandboxShape(sandbox, site)),
      ({ metadata, holdfast }) => factsOf(metadata, holdfast),
    );
  });

  app.get("/sandboxes/:name", { schema: { params: InSandbox } }, async (request) =>
    shown(await engine.sandboxes.get(request.params.name), publicOrigin(request)),
  );

  app.get("/sandboxes/by-external-id/:externalId", { schema: { params: ByExternalId } }, async (request) => {
    const { externalId } = request.params;
    const all = await everything((page) =>
      engine.sandboxes.list({ labels: externalIdLabel(externalId), ...page }),
    );
    // Several sandboxes can have the same external id, because a sandbox that failed or is being deleted keeps it for a
    // while. A sandbox that is neither is preferred.
    const found = all.find(({ status }) => !ENDING.includes(status)) ?? all.at(-1);
    if (found !== undefined) return shown(found, publicOrigin(request));
    const message = `No sandbox has the external id ${JSON.stringify(externalId)}.`;
    throw new HoldfastError("sandbox_not_found", { message });
  });

  app.put("/sandboxes/:name", { schema: { params: InSandbox, body: SandboxRequest } }, async (request) => {
    const { params, body } = request;
    const sandbox = await engine.sandboxes.get(params.name);
    const changed = await engine.sandboxes.update(sandbox.id, sandboxUpdate(body, sandbox, Date.now()));
    return shown(changed, publicOrigin(request));
  });

  app.delete("/sandboxes/:name", { schema: { params: InSandbox } }, async (request, reply) => {
    const options = { graceMs: 0, signal: callers.signal(reply.raw) };
    const order = engine.sandboxes.remove(request.params.name, options);
    const sandbox = await orMaybeDispatched(callers, order);
    return shown(sandbox, publicOrigin(request));
  });
}

/**
 * Rethrows an error of a create. If the name belongs to a sandbox that is being deleted, throws `name_taken` instead,
 * because the client then waits for the delete and asks again.
 */
function rethrowNameTaken(error: unknown): never {
  if (!isHoldfastError(error) || error.code !== "sandbox_gone") throw error;
  const message = "The sandbox with that name is being deleted.";
  throw new HoldfastError("name_taken", { message, ...(error.sandboxId && { sandboxId: error.sandboxId }) });
}

function statusFilter({ status, showTerminated }: ListQuery): Status[] | undefined {
  if (!status) return showTerminated ? [...STATUSES] : undefined;
  return status.split(",").flatMap((name) => {
    const known = statusesCalled(name.trim());
    if (known.length > 0) return known;
    throw new HoldfastError("invalid_request", {
      message: `query/status is ${JSON.stringify(name.slice(0, 40))}; no sandbox of this server ever has that status.`,
    });
  });
}

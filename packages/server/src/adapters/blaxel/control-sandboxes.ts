import { type Static, Type } from "@fastify/type-provider-typebox";
import { HoldfastError, isHoldfastError, type Sandbox, STATUSES, type Status } from "@holdfast/contract";
import { orMaybeDispatched } from "../../callers.ts";
import type { App, RouteContext } from "../../context.ts";
import { externalIdLabel } from "./labels.ts";
import { notSupported } from "./not-supported.ts";
import { InSandbox } from "./process.ts";
import { SandboxRequest, sandboxRequest } from "./sandbox-request.ts";
import { SHOWN_EVENTS, type Site, sandboxShape, statusesCalled } from "./shapes.ts";
import { siteOf } from "./site.ts";

export const ListQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
  cursor: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
  sort: Type.Optional(Type.String()),
  q: Type.Optional(Type.String()),
  anchor: Type.Optional(Type.String()),
  externalId: Type.Optional(Type.String({ minLength: 1, maxLength: 64 })),
  status: Type.Optional(Type.String()),
  showTerminated: Type.Optional(Type.Boolean()),
});
export type ListQuery = Static<typeof ListQuery>;

const CreateQuery = Type.Object({ createIfNotExist: Type.Optional(Type.Boolean()) });
const ByExternalId = Type.Object({ externalId: Type.String({ minLength: 1, maxLength: 64 }) });

/** The platform's own. */
const PAGE = 50;
const PAGE_MAX = 200;
const ALL_AT_ONCE = 1_000;
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
    refuseListing(query);
    const filter = {
      status: statusFilter(query),
      labels: query.externalId === undefined ? undefined : externalIdLabel(query.externalId),
    };
    const site = siteOf(request);
    return paged(request.headers["blaxel-version"], query, async (page) => {
      const { items, nextCursor } = await engine.sandboxes.list({ ...filter, ...page });
      return { items: items.map((sandbox) => sandboxShape(sandbox, site)), nextCursor };
    });
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

  app.put("/sandboxes/:name", { schema: { params: InSandbox } }, async ({ params }) => {
    await engine.sandboxes.get(params.name);
    throw notSupported(
      "changing a sandbox's labels, ttl, lifecycle or network",
      "They are what they were when it was created.",
    );
  });

  app.delete("/sandboxes/:name", { schema: { params: InSandbox } }, async (request, reply) => {
    const options = { graceMs: 0, signal: callers.signal(reply.raw) };
    const sandbox = await engine.sandboxes.remove(request.params.name, options);
    return shown(sandbox, siteOf(request));
  });
}

/** The client waits for a delete that is under way where it is told that the name is taken, and asks again. */
function stillThere(error: unknown): never {
  if (!isHoldfastError(error) || error.code !== "sandbox_gone") throw error;
  const message = "The sandbox that has that name is being deleted.";
  throw new HoldfastError("name_taken", { message, ...(error.sandboxId && { sandboxId: error.sandboxId }) });
}

/** What a listing can't be asked for; given in the order of creation, it needs no other. */
export function refuseListing({ sort, q, anchor }: ListQuery): void {
  if (sort !== undefined && sort !== "createdAt:asc") throw notSupported(`listing with sort=${sort}`);
  if (q) throw notSupported("listing with q");
  if (anchor !== undefined) throw notSupported(`listing with anchor=${anchor}`);
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

type Page = { cursor: string | undefined; limit: number };

/** Clients that send a version of the API expect pages, and older ones all of it as an array. */
export async function paged<Item>(
  version: string | string[] | undefined,
  { limit, cursor }: ListQuery,
  read: (page: Page) => Promise<{ items: Item[]; nextCursor: string | null }>,
) {
  if (version !== undefined) {
    const { items, nextCursor } = await read({ cursor, limit: Math.min(limit ?? PAGE, PAGE_MAX) });
    const hasMore = nextCursor !== null;
    return { data: items, meta: { hasMore, ...(hasMore ? { nextCursor } : {}) } };
  }
  const all: Item[] = [];
  for (let next: string | undefined; ; ) {
    const { items, nextCursor } = await read({ cursor: next, limit: ALL_AT_ONCE });
    all.push(...items);
    if (nextCursor === null) return all;
    next = nextCursor;
  }
}

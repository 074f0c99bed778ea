import { type Static, Type } from "@fastify/type-provider-typebox";
import { type Sandbox, STATUSES, type Status } from "@holdfast/contract";
import type { SandboxApi } from "@holdfast/engine";
import type { App } from "@holdfast/server/adapter";
import { MAX_LIMIT } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, OrgQuery, succeeded } from "../adapter-context.ts";
import { type Orders, pageOf, SortQuery } from "../pages.ts";
import { type Shown, summaryShape } from "../shapes.ts";
import { viewForRequest } from "../view-for-request.ts";
import { detailsOf } from "./details.ts";

const ListQuery = Type.Object({
  ...OrgQuery,
  ...SortQuery,
  name: Type.Optional(Type.String()),
  mode: Type.Optional(Type.String()),
  projectId: Type.Optional(Type.String()),
  snapshotId: Type.Optional(Type.String()),
  status: Type.Optional(Type.String()),
  live: Type.Optional(Type.Boolean()),
  deletedOnly: Type.Optional(Type.Boolean()),
});
type ListQuery = Static<typeof ListQuery>;

const REGION = "local";

const ORDERS: Orders<Sandbox> = {
  name: ({ name }) => name,
  created: ({ createdAt }) => createdAt,
  updated: ({ lastActivityAt }) => lastActivityAt,
  mode: ({ labels }) => detailsOf(labels).mode ?? "",
  execution_count: ({ execsStarted }) => execsStarted,
};
const SHOWN_ORDERS: Orders<Shown> = Object.fromEntries(
  Object.entries(ORDERS).map(([name, by]) => [name, ({ sandbox }: Shown) => by(sandbox)]),
);

/**
 * Routes that list sandboxes. The client requests pages by number and chooses the order, so the adapter reads all
 * matches, sorts them and returns one page.
 */
export function listingRoutes(app: App, context: AdapterContext): void {
  const { engine, views } = context;
  const shownAll = (sandboxes: readonly Sandbox[]): Promise<Shown[]> =>
    Promise.all(sandboxes.map((sandbox) => views.show(sandbox)));

  async function found(query: ListQuery): Promise<{ page: Shown[]; total: number }> {
    const all = await every(engine.sandboxes, statusesOf(query));
    const matching = all.filter((sandbox) => matches(sandbox, query));
    // The reported status is the only property that needs more than a sandbox's record. If the request neither filters
    // nor sorts by it, the page is selected by records, and only the sandboxes of this page are read in full.
    if (query.status === undefined && query.sort !== "status") {
      const { page, total } = pageOf(matching, query, ORDERS);
      return { page: await shownAll(page), total };
    }
    const shown = await shownAll(matching);
    const called = shown.filter(({ status }) => query.status === undefined || status === query.status);
    return pageOf(called, query, { ...SHOWN_ORDERS, status: ({ status }) => status });
  }

  app.get("/sandbox", { schema: { querystring: ListQuery } }, async (request) => {
    const { page, total } = await found(request.query);
    const view = viewForRequest(request, context);
    return succeeded({ sandboxes: page.map((shown) => summaryShape(shown, view)), total });
  });

  /** Agentuity's command line reads the list of regions before any other request. */
  app.get("/cli/region", async () => succeeded([{ region: REGION, description: "This Holdfast server" }]));

  /**
   * Agentuity's command line reads the organizations before it creates a sandbox. If there is exactly one, it does not
   * ask the user to choose.
   */
  app.get("/cli/organization", async (request) => succeeded([viewForRequest(request, context).org]));

  app.get("/cli/sandbox", { schema: { querystring: ListQuery } }, async (request) => {
    const { page, total } = await found(request.query);
    const { org } = viewForRequest(request, context);
    const rows = page.map((shown) => ({
      ...rowShape(shown, org.id),
      description: shown.details.description ?? null,
      createdAt: shown.sandbox.createdAt,
      orgName: org.name,
    }));
    return succeeded({ sandboxes: rows, total });
  });

  app.get(
    "/cli/sandbox/:id",
    { schema: { params: InSandbox, querystring: Type.Object(OrgQuery) } },
    async (request) =>
      succeeded(rowShape(await views.get(request.params.id), viewForRequest(request, context).org.id)),
  );
}

const rowShape = ({ sandbox, status, details }: Shown, orgId: string) => ({
  id: sandbox.id,
  name: sandbox.name,
  region: REGION,
  status,
  orgId,
  projectId: details.projectId ?? null,
});

/** Returns the statuses of the sandboxes to list. Deleted sandboxes are listed only on request. */
function statusesOf({ status, deletedOnly, live }: ListQuery): Status[] | undefined {
  if (deletedOnly || live === false) return ["terminated"];
  return status === "terminated" || status === "deleted" || status === "failed" ? [...STATUSES] : undefined;
}

function matches(sandbox: Sandbox, { name, mode, projectId, snapshotId }: ListQuery): boolean {
  const details = detailsOf(sandbox.labels);
  return (
    (name === undefined || sandbox.name === name) &&
    (mode === undefined || (details.mode ?? "interactive") === mode) &&
    (projectId === undefined || details.projectId === projectId) &&
    (snapshotId === undefined || sandbox.forkedFrom?.checkpointId === snapshotId)
  );
}

async function every(sandboxes: SandboxApi, status: Status[] | undefined): Promise<Sandbox[]> {
  const all: Sandbox[] = [];
  for (let cursor: string | undefined; ; ) {
    const { items, nextCursor } = await sandboxes.list({ status, cursor, limit: MAX_LIMIT });
    all.push(...items);
    if (nextCursor === null) return all;
    cursor = nextCursor;
  }
}

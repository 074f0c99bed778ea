import { type Static, Type } from "@fastify/type-provider-typebox";
import { type Sandbox, STATUSES, type Status } from "@holdfast/contract";
import type { SandboxApi } from "@holdfast/engine";
import type { App } from "../../context.ts";
import { MAX_LIMIT } from "../../schemas.ts";
import { detailsOf } from "./details.ts";
import { type Orders, pageOf, SortQuery } from "./pages.ts";
import { InSandbox, OrgQuery, type Parts, succeeded } from "./parts.ts";
import { type Shown, summaryShape } from "./shapes.ts";
import { toldTo } from "./told.ts";

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

/** Sandboxes in numbers. The client pages by number and sorts, so all that match are read, and those of the page told. */
export function listingRoutes(app: App, parts: Parts): void {
  const { engine, views } = parts;
  const shownAll = (sandboxes: readonly Sandbox[]): Promise<Shown[]> =>
    Promise.all(sandboxes.map((sandbox) => views.show(sandbox)));

  async function found(query: ListQuery): Promise<{ page: Shown[]; total: number }> {
    const all = await every(engine.sandboxes, statusesOf(query));
    const matching = all.filter((sandbox) => matches(sandbox, query));
    // Only what a sandbox is called takes more than its record.
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
    const told = toldTo(request, parts);
    return succeeded({ sandboxes: page.map((shown) => summaryShape(shown, told)), total });
  });

  app.get("/cli/sandbox", { schema: { querystring: ListQuery } }, async (request) => {
    const { page, total } = await found(request.query);
    const { org } = toldTo(request, parts);
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
    async (request) => succeeded(rowShape(await views.get(request.params.id), toldTo(request, parts).org.id)),
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

/** The gone are told of only where they are asked for. */
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

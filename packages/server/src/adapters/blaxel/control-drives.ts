import { Type } from "@fastify/type-provider-typebox";
import { CreateDrive, Nullable } from "@holdfast/contract";
import type { App, RouteContext } from "../../context.ts";
import { checker } from "./checked.ts";
import { ListQuery, paged, refuseListing } from "./control-sandboxes.ts";
import { externalIdLabel, toLabels } from "./labels.ts";
import { isAnything, type Known, notSupported, refuseFields } from "./not-supported.ts";
import { Metadata } from "./sandbox-request.ts";
import { driveShape } from "./shapes.ts";
import { siteOf } from "./site.ts";

const DriveRequest = Type.Object({
  metadata: Metadata,
  spec: Type.Optional(
    Type.Object({
      size: Type.Optional(Nullable(Type.Number({ exclusiveMinimum: 0, description: "in GB" }))),
      permissions: Type.Optional(Nullable(Type.Array(Type.Unknown()))),
    }),
  ),
});
const DriveName = Type.Object({ driveName: Type.String({ minLength: 1, maxLength: 64 }) });
/** There is one region, and what else is made of a drive is told, not asked for. */
const KNOWN: Known = { size: isAnything, permissions: isAnything, region: isAnything };
const MB_PER_GB = 1_024;
const check = checker(CreateDrive);

export function controlDriveRoutes(app: App, { engine, callers }: RouteContext): void {
  app.post("/drives", { schema: { body: DriveRequest } }, async (request, reply) => {
    const { metadata, spec = {} } = request.body;
    refuseFields("spec", spec, KNOWN);
    if (spec.permissions?.length) {
      throw notSupported("spec.permissions", "Whoever has a key may mount every drive.");
    }
    const { name, displayName, externalId, labels } = metadata;
    const kept = {
      labels: labels ?? {},
      externalId: externalId || undefined,
      displayName: displayName || undefined,
    };
    const wanted = check(
      {
        ...(name ? { name } : {}),
        ...(spec.size ? { sizeMb: Math.ceil(spec.size * MB_PER_GB) } : {}),
        labels: toLabels(kept),
      },
      "The drive that was asked for can't be had",
    );
    const options = { owner: request.owner, signal: callers.signal(reply.raw) };
    const { drive } = await engine.drives.create(wanted, options);
    return driveShape(drive, siteOf(request));
  });

  app.get("/drives", { schema: { querystring: ListQuery } }, async (request) => {
    const { query } = request;
    refuseListing(query);
    if (query.status) throw notSupported("listing drives with status");
    const labels = query.externalId === undefined ? undefined : externalIdLabel(query.externalId);
    const site = siteOf(request);
    return paged(request.headers["blaxel-version"], query, async (page) => {
      const { items, nextCursor } = await engine.drives.list({ labels, ...page });
      return { items: items.map((drive) => driveShape(drive, site)), nextCursor };
    });
  });

  app.get("/drives/:driveName", { schema: { params: DriveName } }, async (request, reply) =>
    driveShape(await engine.drives.get(request.params.driveName, callers.signal(reply.raw)), siteOf(request)),
  );

  app.put("/drives/:driveName", { schema: { params: DriveName } }, async ({ params }, reply) => {
    await engine.drives.get(params.driveName, callers.signal(reply.raw));
    throw notSupported("changing a drive", "It is what it was when it was created.");
  });

  app.delete("/drives/:driveName", { schema: { params: DriveName } }, async (request, reply) => {
    const signal = callers.signal(reply.raw);
    const { driveName } = request.params;
    const before = await engine.drives.get(driveName, signal);
    const left = await engine.drives.remove(driveName, { force: false, signal });
    const shape = driveShape(left ?? before, siteOf(request));
    return left === null ? { ...shape, status: "TERMINATED" } : shape;
  });
}

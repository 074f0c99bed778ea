/** Drives, and volumes, which are drives with a size: both are persistent, have a name, and are mounted by it. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { CreateDrive, type Drive, HoldfastError, type Labels, Nullable } from "@holdfast/contract";
import { orMaybeDispatched } from "../../callers.ts";
import type { App, RouteContext } from "../../context.ts";
import { checker } from "../checked.ts";
import { isAnything, type Known, notSupported, refuseFields } from "../refusals.ts";
import { chosenTags, externalIdLabel, fromLabels, replacing, toLabels, VOLUME } from "./labels.ts";
import { everything, factsOf, ListQuery, listed } from "./listing.ts";
import { NO_KEYS } from "./not-supported.ts";
import { ByExternalId, Metadata } from "./sandbox-request.ts";
import { driveShape, type Site, volumeShape } from "./shapes.ts";
import { siteOf } from "./site.ts";

const DriveRequest = Type.Object({
  metadata: Metadata,
  spec: Type.Optional(
    Type.Object({
      size: Type.Optional(Nullable(Type.Number({ exclusiveMinimum: 0 }))),
      permissions: Type.Optional(Nullable(Type.Array(Type.Unknown()))),
    }),
  ),
});
type Spec = NonNullable<Static<typeof DriveRequest>["spec"]>;
const Called = Type.Object({ called: Type.String({ minLength: 1, maxLength: 64 }) });

/** How one of the two is called, and told. */
interface Kind {
  noun: "drive" | "volume";
  unitMb: number;
  /** What its drives have that others don't. */
  label: Labels;
  /** Empty ones ask for nothing. */
  known: Known;
  shape(drive: Drive, site: Site): ReturnType<typeof driveShape> | ReturnType<typeof volumeShape>;
}

const isEmpty = (value: unknown) => Array.isArray(value) && value.length === 0;
/** There is one region, and what else is made of a drive is told, not asked for. */
const DRIVES: Kind = {
  noun: "drive",
  unitMb: 1_024,
  label: {},
  known: { size: isAnything, permissions: isEmpty, region: isAnything },
  shape: driveShape,
};
const VOLUMES: Kind = {
  noun: "volume",
  unitMb: 1,
  label: VOLUME,
  known: { size: isAnything, region: isAnything },
  shape: volumeShape,
};
const WHY = {
  permissions: "Whoever has a key may mount every drive.",
  template: "A volume begins empty; what is to be in it can be written by a sandbox that has it.",
};
const check = checker(CreateDrive);

export function controlDriveRoutes(app: App, context: RouteContext): void {
  app.get("/drives/jwks.json", () => {
    throw notSupported("GET /drives/jwks.json", NO_KEYS);
  });
  for (const kind of [DRIVES, VOLUMES]) routesOf(kind, app, context);
}

function routesOf(kind: Kind, app: App, { engine, callers }: RouteContext): void {
  const { noun, label, shape } = kind;
  const base = `/${noun}s`;

  async function find(called: string, signal: AbortSignal): Promise<Drive> {
    const drive = await engine.drives.get(called, signal);
    if (Object.entries(label).every(([key, value]) => drive.labels[key] === value)) return drive;
    throw new HoldfastError("drive_not_found", { message: `There is no ${noun} ${JSON.stringify(called)}.` });
  }

  app.post(base, { schema: { body: DriveRequest } }, async (request, reply) => {
    const { metadata, spec = {} } = request.body;
    const wanted = check(
      {
        ...(metadata.name ? { name: metadata.name } : {}),
        ...sizeOf(kind, spec),
        labels: { ...toLabels(chosenTags(metadata, { labels: {} })), ...label },
      },
      `The ${noun} that was asked for can't be had`,
    );
    const options = { owner: request.owner, signal: callers.signal(reply.raw) };
    const { drive } = await orMaybeDispatched(callers, engine.drives.create(wanted, options));
    return shape(drive, siteOf(request));
  });

  app.get(base, { schema: { querystring: ListQuery } }, async (request) => {
    const { status, externalId } = request.query;
    if (status)
      throw notSupported(`listing ${noun}s with status`, "Leave it out: each is listed with its own.");
    const labels = { ...label, ...(externalId === undefined ? {} : externalIdLabel(externalId)) };
    const site = siteOf(request);
    const all = await everything((page) => engine.drives.list({ labels, ...page }));
    return listed(
      request,
      all.map((drive) => shape(drive, site)),
      ({ metadata, holdfast }) => factsOf(metadata, holdfast),
    );
  });

  app.get(`${base}/by-external-id/:externalId`, { schema: { params: ByExternalId } }, async (request) => {
    const { externalId } = request.params;
    const labels = { ...label, ...externalIdLabel(externalId) };
    const { items } = await engine.drives.list({ labels, limit: 1 });
    if (items[0] !== undefined) return shape(items[0], siteOf(request));
    const message = `No ${noun} has the external id ${JSON.stringify(externalId)}.`;
    throw new HoldfastError("drive_not_found", { message });
  });

  app.get(`${base}/:called`, { schema: { params: Called } }, async (request, reply) =>
    shape(await find(request.params.called, callers.signal(reply.raw)), siteOf(request)),
  );

  /** What the client read of it, with a part exchanged: what it does not name stays. */
  app.put(`${base}/:called`, { schema: { params: Called, body: DriveRequest } }, async (request, reply) => {
    const { metadata, spec = {} } = request.body;
    const signal = callers.signal(reply.raw);
    const drive = await find(request.params.called, signal);
    const { sizeMb = drive.sizeMb } = sizeOf(kind, spec);
    if (sizeMb !== drive.sizeMb)
      throw notSupported("changing spec.size", `A ${noun} keeps the size that it was created with.`);
    const before = fromLabels(drive.labels);
    const after = { ...toLabels({ ...before, ...chosenTags(metadata, before) }), ...label };
    const labels = replacing(drive.labels, after);
    const order = engine.drives.update(drive.id, { labels }, signal);
    return shape(await orMaybeDispatched(callers, order), siteOf(request));
  });

  app.delete(`${base}/:called`, { schema: { params: Called } }, async (request, reply) => {
    const signal = callers.signal(reply.raw);
    const before = await find(request.params.called, signal);
    const order = engine.drives.remove(before.id, { force: false, signal });
    const left = await orMaybeDispatched(callers, order);
    const told = shape(left ?? before, siteOf(request));
    return left === null ? { ...told, status: "TERMINATED" } : told;
  });
}

function sizeOf({ known, unitMb }: Kind, spec: Spec): { sizeMb?: number } {
  refuseFields("spec", spec, known, WHY);
  return spec.size ? { sizeMb: Math.ceil(spec.size * unitMb) } : {};
}

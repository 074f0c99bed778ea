/** Drives and volumes. A volume is a drive with a size. Both are persistent and named, and are mounted by name. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { checker, isAnything, type Known, notSupported, refuseFields } from "@holdfast/adapter-shared";
import { CreateDrive, type Drive, HoldfastError, type Labels, Nullable } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import { NO_KEYS } from "../not-supported.ts";
import { driveShape, type PublicOrigin, volumeShape } from "../shapes.ts";
import { chosenTags, externalIdLabel, fromLabels, replacing, toLabels, VOLUME } from "./labels.ts";
import { everything, factsOf, ListQuery, listed } from "./listing.ts";
import { publicOrigin } from "./public-origin.ts";
import { ByExternalId, Metadata } from "./sandbox-request.ts";

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

/** The properties that differ between the API's drives and volumes. */
interface Kind {
  noun: "drive" | "volume";
  unitMb: number;
  /** Labels that mark the drives of this kind. */
  label: Labels;
  /** The supported fields of a request, each with a check of its supported values. */
  known: Known;
  shape(drive: Drive, site: PublicOrigin): ReturnType<typeof driveShape> | ReturnType<typeof volumeShape>;
}

const isEmpty = (value: unknown) => Array.isArray(value) && value.length === 0;
/**
 * The API's drives, as opposed to its volumes. Holdfast has one region, so a requested region has no effect. An update
 * from the client contains every field of the drive that the client read. Only the fields in `known` can be changed.
 */
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
  permissions: "Any API key may mount every drive.",
  template: "A volume starts empty; fill it from a sandbox that mounts it.",
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
      `The ${noun} request is not valid`,
    );
    const options = { owner: request.owner, signal: callers.signal(reply.raw) };
    const { drive } = await orMaybeDispatched(callers, engine.drives.create(wanted, options));
    return shape(drive, publicOrigin(request));
  });

  app.get(base, { schema: { querystring: ListQuery } }, async (request) => {
    const { status, externalId } = request.query;
    if (status)
      throw notSupported(`listing ${noun}s with status`, "Omit it: every item is listed with its status.");
    const labels = { ...label, ...(externalId === undefined ? {} : externalIdLabel(externalId)) };
    const site = publicOrigin(request);
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
    if (items[0] !== undefined) return shape(items[0], publicOrigin(request));
    const message = `No ${noun} has the external id ${JSON.stringify(externalId)}.`;
    throw new HoldfastError("drive_not_found", { message });
  });

  app.get(`${base}/:called`, { schema: { params: Called } }, async (request, reply) =>
    shape(await find(request.params.called, callers.signal(reply.raw)), publicOrigin(request)),
  );

  /**
   * Updates a drive. The client sends the complete drive as it has read it, with its changes. A field that is absent
   * from the request stays unchanged.
   */
  app.put(`${base}/:called`, { schema: { params: Called, body: DriveRequest } }, async (request, reply) => {
    const { metadata, spec = {} } = request.body;
    const signal = callers.signal(reply.raw);
    const drive = await find(request.params.called, signal);
    const { sizeMb = drive.sizeMb } = sizeOf(kind, spec);
    if (sizeMb !== drive.sizeMb)
      throw notSupported("changing spec.size", `The size of a ${noun} is fixed when it is created.`);
    const before = fromLabels(drive.labels);
    const after = { ...toLabels({ ...before, ...chosenTags(metadata, before) }), ...label };
    const labels = replacing(drive.labels, after);
    const order = engine.drives.update(drive.id, { labels }, signal);
    return shape(await orMaybeDispatched(callers, order), publicOrigin(request));
  });

  app.delete(`${base}/:called`, { schema: { params: Called } }, async (request, reply) => {
    const signal = callers.signal(reply.raw);
    const before = await find(request.params.called, signal);
    const order = engine.drives.remove(before.id, { force: false, signal });
    const left = await orMaybeDispatched(callers, order);
    const body = shape(left ?? before, publicOrigin(request));
    return left === null ? { ...body, status: "TERMINATED" } : body;
  });
}

function sizeOf({ known, unitMb }: Kind, spec: Spec): { sizeMb?: number } {
  refuseFields("spec", spec, known, WHY);
  return spec.size ? { sizeMb: Math.ceil(spec.size * unitMb) } : {};
}

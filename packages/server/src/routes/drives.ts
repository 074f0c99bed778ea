/** Drives: persistent directories that sandboxes can share. Mounting is in `mounts.ts`. */
import { Type } from "@fastify/type-provider-typebox";
import { CreateDrive, Drive, DriveList, UpdateDrive } from "@holdfast/contract";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { labelFilter } from "../http/filters.ts";
import { DriveRef, LabelQuery, Page, pageOf } from "../http/schemas.ts";

const tags = ["drives"];

export function driveRoutes(app: App, { engine, callers }: RouteContext): void {
  app.post(
    "/v1/drives",
    {
      schema: {
        operationId: "createDrive",
        summary: "Create a drive. Returns when the drive can be mounted.",
        description:
          "Returns 200 if a drive of that name exists and `ifExists` is `return`; an existing drive of a different size is still refused.",
        tags,
        body: CreateDrive,
        response: { 200: Drive, 201: Drive },
      },
      config: {
        optionalBody: true,
        errors: ["drive_exists", "drive_deleting", "too_many_drives", "disk_full", "not_supported"],
      },
    },
    async ({ body, owner }, reply) => {
      const order = engine.drives.create(body, { owner, signal: callers.signal(reply.raw) });
      const { drive, existed } = await orMaybeDispatched(callers, order);
      return reply.code(existed ? 200 : 201).send(drive);
    },
  );

  app.get(
    "/v1/drives",
    {
      schema: {
        operationId: "listDrives",
        summary: "List drives in creation order.",
        tags,
        querystring: Type.Object({ ...LabelQuery, ...Page }),
        response: { 200: DriveList },
      },
    },
    ({ query }) => engine.drives.list({ ...pageOf(query), labels: labelFilter(query.label) }),
  );

  app.get(
    "/v1/drives/:ref",
    {
      schema: {
        operationId: "getDrive",
        summary: "Get a drive: its status, its disk usage and the sandboxes that mount it.",
        tags,
        params: DriveRef,
        response: { 200: Drive },
      },
      config: { errors: ["drive_not_found"] },
    },
    ({ params }, reply) => engine.drives.get(params.ref, callers.signal(reply.raw)),
  );

  app.patch(
    "/v1/drives/:ref",
    {
      schema: {
        operationId: "updateDrive",
        summary: "Change a drive's labels.",
        tags,
        params: DriveRef,
        body: UpdateDrive,
        response: { 200: Drive },
      },
      config: { errors: ["drive_not_found", "drive_deleting"] },
    },
    ({ params, body }, reply) => {
      const order = engine.drives.update(params.ref, body, callers.signal(reply.raw));
      return orMaybeDispatched(callers, order);
    },
  );

  app.delete(
    "/v1/drives/:ref",
    {
      schema: {
        operationId: "deleteDrive",
        summary:
          "Delete a drive and its contents. 204 when the drive is gone, 202 while deletion is in progress.",
        description:
          "Refused if any sandbox, running or in standby, mounts the drive; the message names those sandboxes. A started deletion continues in the background if the caller disconnects.",
        tags,
        params: DriveRef,
        querystring: Type.Object({
          force: Type.Optional(
            Type.Boolean({
              default: false,
              description:
                "detach the drive from the sandboxes that mount it; they stay degraded until the path is unmounted",
            }),
          ),
        }),
        response: { 202: Drive, 204: Type.Null() },
      },
      config: { errors: ["drive_not_found", "drive_mounted", "pending_cleanup"] },
    },
    async ({ params, query }, reply) => {
      const options = { force: query.force ?? false, signal: callers.signal(reply.raw) };
      const left = await orMaybeDispatched(callers, engine.drives.remove(params.ref, options));
      return left === null ? reply.code(204).send(null) : reply.code(202).send(left);
    },
  );
}

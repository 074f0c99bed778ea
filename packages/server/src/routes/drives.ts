/** Persistent directories that sandboxes can have in common. Where they are mounted is told by `mounts.ts`. */
import { Type } from "@fastify/type-provider-typebox";
import { CreateDrive, Drive, DriveList, UpdateDrive } from "@holdfast/contract";
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { labelFilter } from "../filters.ts";
import { DriveRef, LabelQuery, Page, pageOf } from "../schemas.ts";

const tags = ["drives"];

export function driveRoutes(app: App, { engine, callers }: RouteContext): void {
  app.post(
    "/v1/drives",
    {
      schema: {
        operationId: "createDrive",
        summary: "Create a drive; answers when it can be mounted.",
        description:
          "200 where one of that name is there and `ifExists` is `return`; one of another size than is asked for is refused all the same.",
        tags,
        body: CreateDrive,
        response: { 200: Drive, 201: Drive },
      },
      config: {
        optionalBody: true,
        errors: ["drive_exists", "drive_deleting", "capacity", "disk_full", "not_supported"],
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
        summary: "List drives in the order of their creation.",
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
        summary: "A drive: its status, what it takes on disk, and who has it.",
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
          "Delete a drive and all that is in it. 204 once nothing of it is left, 202 while it still goes.",
        description:
          "One that a sandbox has, asleep or not, is refused, and the message names the sandboxes. What was begun goes on by itself, whether or not anybody waits for it.",
        tags,
        params: DriveRef,
        querystring: Type.Object({
          force: Type.Optional(
            Type.Boolean({
              default: false,
              description:
                "take it from the sandboxes that have it, which are degraded until they give it up",
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

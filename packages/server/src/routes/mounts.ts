/** Mounts of drives in an existing sandbox. The create request can already contain the first mounts. */
import { Type } from "@fastify/type-provider-typebox";
import { Mount, MountDrive, MountList } from "@holdfast/contract";
import { orMaybeDispatched } from "../http/callers.ts";
import type { App, RouteContext } from "../http/context.ts";
import { PathQuery, SandboxRef } from "../http/schemas.ts";
import { MOUNT_ERRORS, SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["mounts"];

export function mountRoutes(app: App, { engine, callers }: RouteContext): void {
  app.get(
    "/v1/sandboxes/:ref/mounts",
    {
      schema: {
        operationId: "listMounts",
        summary: "List the drives mounted in a sandbox. Does not wake the sandbox.",
        tags,
        params: SandboxRef,
        response: { 200: MountList },
      },
      config: { errors: ["sandbox_not_found", "pending_cleanup", "sandbox_gone"] },
    },
    ({ params }) => engine.mounts.list(params.ref),
  );

  app.put(
    "/v1/sandboxes/:ref/mounts",
    {
      schema: {
        operationId: "mountDrive",
        summary:
          "Mount a drive in a sandbox. Returns when the same directory is visible from inside and outside.",
        description:
          "Returns 200 if the drive was already mounted there; the mount is then proven again. Refused if another mount exists at, above or below the path. Wakes a sandbox in standby.",
        tags,
        params: SandboxRef,
        body: MountDrive,
        response: { 200: Mount, 201: Mount },
      },
      config: { errors: [...SERVING_ERRORS, "invalid_path", ...MOUNT_ERRORS] },
    },
    async ({ params, body }, reply) => {
      const order = engine.mounts.mount(params.ref, body, callers.signal(reply.raw));
      const { mount, existed } = await orMaybeDispatched(callers, order);
      return reply.code(existed ? 200 : 201).send(mount);
    },
  );

  app.delete(
    "/v1/sandboxes/:ref/mounts",
    {
      schema: {
        operationId: "unmountDrive",
        summary:
          "Unmount a drive from a sandbox. Returns when the mount is observed to be gone. The drive keeps its contents.",
        description: "Wakes a sandbox in standby.",
        tags,
        params: SandboxRef,
        querystring: Type.Object(PathQuery),
        response: { 204: Type.Null() },
      },
      config: {
        errors: [...SERVING_ERRORS, "invalid_path", "mount_not_found", "mount_refused", "mount_failed"],
      },
    },
    async ({ params, query }, reply) => {
      const order = engine.mounts.unmount(params.ref, query.path, callers.signal(reply.raw));
      await orMaybeDispatched(callers, order);
      return reply.code(204).send(null);
    },
  );
}

/** Drives in a sandbox. Those that it has from its beginning are asked for by its create. */
import { Type } from "@fastify/type-provider-typebox";
import { Mount, MountDrive, MountList } from "@holdfast/contract";
import { orMaybeDispatched } from "../callers.ts";
import type { App, RouteContext } from "../context.ts";
import { PathQuery, SandboxRef } from "../schemas.ts";
import { MOUNT_ERRORS, SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["mounts"];

export function mountRoutes(app: App, { engine, callers }: RouteContext): void {
  app.get(
    "/v1/sandboxes/:ref/mounts",
    {
      schema: {
        operationId: "listMounts",
        summary: "The drives of a sandbox, and where they are. Wakes nobody.",
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
          "Mount a drive in a sandbox; answers when the same directory is seen from inside and outside.",
        description:
          "200 where it was mounted before, and is proven again. Another mount at the path, above or below it is refused. A sandbox that sleeps is woken for it.",
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
          "Take a drive off a path of a sandbox; answers when it is seen to be gone. What is in the drive stays in it.",
        description: "A sandbox that sleeps is woken for it.",
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

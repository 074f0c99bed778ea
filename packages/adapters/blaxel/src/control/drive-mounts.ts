import { Type } from "@fastify/type-provider-typebox";
import { fieldsOf, notSupported, refuseFields } from "@holdfast/adapter-shared";
import { HoldfastError, type Mount, Nullable } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { orMaybeDispatched } from "@holdfast/server/adapter";
import { AtPath, pathOf } from "../filesystem/filesystem.ts";
import { resolveHome } from "../paths.ts";
import { InSandbox } from "../process/process.ts";

const MountRequest = Type.Object({
  driveName: Type.String({ minLength: 1, maxLength: 64 }),
  mountPath: Type.String({ minLength: 1, maxLength: 4096 }),
  drivePath: Type.Optional(Nullable(Type.String({ maxLength: 4096 }))),
  readOnly: Type.Optional(Nullable(Type.Boolean())),
  uidMap: Type.Optional(Nullable(Type.String())),
  gidMap: Type.Optional(Nullable(Type.String())),
});

const KNOWN = fieldsOf(MountRequest);
/**
 * Error message for a mount request with a session token instead of an API key. A session gives access to one sandbox
 * only, and a drive may contain data of other sandboxes, so only an API key may mount a drive.
 */
const NOT_BY_SESSION =
  "Mounting a drive needs an API key; a session only gives access to its sandbox and the drives mounted there.";

export function driveMountRoutes(app: App, { engine, callers }: RouteContext): void {
  app.get("/drives/mount", { schema: { params: InSandbox } }, async ({ params }) => {
    const { items } = await engine.mounts.list(params.name);
    const isBroken = ({ state }: Mount) => state === "broken";
    // The list of mounts contains only those that serve, because some clients ignore the state of a mount and would use
    // every listed one.
    return {
      mounts: items.filter((mount) => !isBroken(mount)).map(mountShape),
      broken: items.filter(isBroken).map((mount) => ({ ...mountShape(mount), cause: mount.cause })),
    };
  });

  app.post(
    "/drives/mount",
    { schema: { params: InSandbox, body: MountRequest } },
    async ({ params, body, owner }, reply) => {
      if (owner === null) throw new HoldfastError("unauthorized", { message: NOT_BY_SESSION });
      refuseFields("mount", body, KNOWN);
      if (body.uidMap) throw notSupported("uidMap", "Files on a drive keep the owner that wrote them.");
      if (body.gidMap) throw notSupported("gidMap", "Files on a drive keep the owner that wrote them.");
      const wanted = {
        drive: body.driveName,
        path: resolveHome(body.mountPath),
        ...(body.drivePath ? { subpath: body.drivePath } : {}),
        readOnly: body.readOnly ?? false,
      };
      const order = engine.mounts.mount(params.name, wanted, callers.signal(reply.raw));
      const { mount, existed } = await orMaybeDispatched(callers, order);
      const message = existed ? "The drive was already mounted there." : "The drive is mounted.";
      return { success: true, message, ...mountShape(mount) };
    },
  );

  app.delete("/drives/mount/*", { schema: { params: AtPath } }, async ({ params }, reply) => {
    const mountPath = pathOf(params);
    const order = engine.mounts.unmount(params.name, mountPath, callers.signal(reply.raw));
    await orMaybeDispatched(callers, order);
    return { success: true, message: "The drive was unmounted.", mountPath };
  });
}

const mountShape = ({ drive, path, subpath, readOnly, state }: Mount) => ({
  driveName: drive,
  mountPath: path,
  drivePath: subpath,
  readOnly,
  state,
});

import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, type Mount, Nullable } from "@holdfast/contract";
import { orMaybeDispatched } from "../../callers.ts";
import type { App, RouteContext } from "../../context.ts";
import { fieldsOf, notSupported, refuseFields } from "../refusals.ts";
import { AtPath, pathOf } from "./filesystem.ts";
import { homed } from "./paths.ts";
import { InSandbox } from "./process.ts";

const MountRequest = Type.Object({
  driveName: Type.String({ minLength: 1, maxLength: 64 }),
  mountPath: Type.String({ minLength: 1, maxLength: 4096 }),
  drivePath: Type.Optional(Nullable(Type.String({ maxLength: 4096 }))),
  readOnly: Type.Optional(Nullable(Type.Boolean())),
  uidMap: Type.Optional(Nullable(Type.String())),
  gidMap: Type.Optional(Nullable(Type.String())),
});

const KNOWN = fieldsOf(MountRequest);
/** Who comes by a session has no key, and a drive may have what other sandboxes wrote. */
const NOT_BY_SESSION =
  "Mounting a drive takes a key: a session opens its own sandbox, with the drives it has.";

export function driveMountRoutes(app: App, { engine, callers }: RouteContext): void {
  app.get("/drives/mount", { schema: { params: InSandbox } }, async ({ params }) => {
    const { items } = await engine.mounts.list(params.name);
    const isBroken = ({ state }: Mount) => state === "broken";
    // A reader that knows nothing of states takes all that it finds here for served.
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
      if (body.uidMap) throw notSupported("uidMap", "A drive's files belong to who wrote them.");
      if (body.gidMap) throw notSupported("gidMap", "A drive's files belong to who wrote them.");
      const wanted = {
        drive: body.driveName,
        path: homed(body.mountPath),
        ...(body.drivePath ? { subpath: body.drivePath } : {}),
        readOnly: body.readOnly ?? false,
      };
      const order = engine.mounts.mount(params.name, wanted, callers.signal(reply.raw));
      const { mount, existed } = await orMaybeDispatched(callers, order);
      const message = existed ? "The drive was mounted there already." : "The drive is mounted.";
      return { success: true, message, ...mountShape(mount) };
    },
  );

  app.delete("/drives/mount/*", { schema: { params: AtPath } }, async ({ params }, reply) => {
    const mountPath = pathOf(params);
    const order = engine.mounts.unmount(params.name, mountPath, callers.signal(reply.raw));
    await orMaybeDispatched(callers, order);
    return { success: true, message: "The drive is no longer mounted there.", mountPath };
  });
}

const mountShape = ({ drive, path, subpath, readOnly, state }: Mount) => ({
  driveName: drive,
  mountPath: path,
  drivePath: subpath,
  readOnly,
  state,
});

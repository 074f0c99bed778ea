import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, IMAGE_PATTERN, Image, ImageList } from "@holdfast/contract";
import type { App, RouteContext } from "../http/context.ts";
import { readChunks } from "../http/request-body.ts";
import { acceptAnyBody } from "./files.ts";

const tags = ["images"];
const Named = Type.Object({ name: Type.String({ pattern: IMAGE_PATTERN }) });

export function imageRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.get(
    "/v1/images",
    { schema: { operationId: "listImages", summary: "List images.", tags, response: { 200: ImageList } } },
    async () => ({ items: await engine.images.list(), nextCursor: null }),
  );

  app.get(
    "/v1/images/:name",
    {
      schema: {
        operationId: "getImage",
        summary: "Get an image.",
        tags,
        params: Named,
        response: { 200: Image },
      },
      config: { errors: ["image_not_found"] },
    },
    async ({ params }) => {
      const image = await engine.images.get(params.name);
      if (!image)
        throw new HoldfastError("image_not_found", { message: `There is no image "${params.name}".` });
      return image;
    },
  );

  app.delete(
    "/v1/images/:name",
    {
      schema: {
        operationId: "removeImage",
        summary: "Delete an imported image that no sandbox uses.",
        tags,
        params: Named,
        response: { 204: Type.Null() },
      },
      config: { errors: ["image_not_found", "image_in_use"] },
    },
    async ({ params }, reply) => {
      await engine.images.remove(params.name, callers.signal(reply.raw));
      return reply.code(204).send(null);
    },
  );

  app.register(async (scope) => importRoute(scope as App, context));
}

function importRoute(app: App, { engine, callers, numbers }: RouteContext): void {
  acceptAnyBody(app);
  app.post(
    "/v1/images",
    {
      schema: {
        operationId: "importImage",
        summary: "Import a root file system as an image.",
        tags,
        querystring: Named,
        response: { 201: Image },
      },
      config: {
        bytesIn: "a tar archive of a root file system",
        errors: ["image_in_use", "image_incapable", "disk_full", "deadline"],
      },
    },
    async ({ query, raw }, reply) => {
      const source = { tar: readChunks(raw, numbers.httpStallMs) };
      const image = await engine.images.import(query.name, source, callers.signal(reply.raw));
      return reply.code(201).send(image);
    },
  );
}

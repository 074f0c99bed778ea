import { pipeline, Readable } from "node:stream";
import { createGzip } from "node:zlib";
import { Type } from "@fastify/type-provider-typebox";
import { notSupported } from "@holdfast/adapter-shared";
import type { App } from "@holdfast/server/adapter";
import { acceptAnyBody, gunzipBody, readChunks, sendArchive } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox } from "../adapter-context.ts";
import { inWorkspace, WORKSPACE } from "./paths.ts";

const ArchiveQuery = Type.Object({
  path: Type.Optional(Type.String({ minLength: 1, maxLength: 4_096 })),
  format: Type.Optional(Type.String()),
});
const TYPE = "application/gzip";

/** Uploads and downloads directories as archives of any size, packed and unpacked while they stream. */
export function archiveRoutes(app: App, context: AdapterContext): void {
  const { engine, callers, numbers } = context;
  acceptAnyBody(app);

  app.get(
    "/fs/download/:id",
    { schema: { params: InSandbox, querystring: ArchiveQuery } },
    async ({ params, query }, reply) => {
      refuseZip(query.format);
      const path = inWorkspace(query.path ?? WORKSPACE);
      const signal = callers.signal(reply.raw);
      const archive = gzipped(await engine.files.pack(params.id, path, { wake: true }, signal));
      return sendArchive(reply, context, { archive, path, signal, type: TYPE, suffix: ".tar.gz" });
    },
  );

  app.post(
    "/fs/upload/:id",
    { schema: { params: InSandbox, querystring: ArchiveQuery } },
    async ({ params, query, raw }, reply) => {
      refuseZip(query.format);
      const path = inWorkspace(query.path ?? WORKSPACE);
      const body = gunzipBody(readChunks(raw, numbers.httpStallMs));
      await engine.files.unpack(params.id, path, body, callers.signal(reply.raw));
      return { success: true };
    },
  );
}

function refuseZip(format: string | undefined): void {
  if (format === undefined || format === "" || format === "tar.gz") return;
  throw notSupported(`archives as ${format.slice(0, 20)}`, "Use tar.gz.");
}

async function* gzipped(archive: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const gzip = createGzip();
  pipeline(Readable.from(archive), gzip, () => {});
  yield* gzip as AsyncIterable<Uint8Array>;
}

import { pipeline, Readable } from "node:stream";
import { createGzip } from "node:zlib";
import { Type } from "@fastify/type-provider-typebox";
import { sendArchive } from "../../archive-sender.ts";
import { readChunks } from "../../body.ts";
import type { App } from "../../context.ts";
import { gunzipped } from "../../gunzip.ts";
import { takeAnyBody } from "../../routes/files.ts";
import { notSupported } from "../refusals.ts";
import { InSandbox, type Parts } from "./parts.ts";
import { inWorkspace, WORKSPACE } from "./paths.ts";

const ArchiveQuery = Type.Object({
  path: Type.Optional(Type.String({ minLength: 1, maxLength: 4_096 })),
  format: Type.Optional(Type.String()),
});
const TYPE = "application/gzip";

/** Directories in and out as archives, at any size: they are made and taken apart as they pass. */
export function archiveRoutes(app: App, parts: Parts): void {
  const { engine, callers, numbers } = parts;
  takeAnyBody(app);

  app.get(
    "/fs/download/:id",
    { schema: { params: InSandbox, querystring: ArchiveQuery } },
    async ({ params, query }, reply) => {
      refuseZip(query.format);
      const path = inWorkspace(query.path ?? WORKSPACE);
      const signal = callers.signal(reply.raw);
      const archive = gzipped(await engine.files.pack(params.id, path, { wake: true }, signal));
      return sendArchive(reply, parts, { archive, path, signal, type: TYPE, suffix: ".tar.gz" });
    },
  );

  app.post(
    "/fs/upload/:id",
    { schema: { params: InSandbox, querystring: ArchiveQuery } },
    async ({ params, query, raw }, reply) => {
      refuseZip(query.format);
      const path = inWorkspace(query.path ?? WORKSPACE);
      const body = gunzipped(readChunks(raw, numbers.httpStallMs));
      await engine.files.unpack(params.id, path, body, callers.signal(reply.raw));
      return { success: true };
    },
  );
}

function refuseZip(format: string | undefined): void {
  if (format === undefined || format === "" || format === "tar.gz") return;
  throw notSupported(`archives as ${format.slice(0, 20)}`, "tar.gz can be had.");
}

async function* gzipped(archive: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const gzip = createGzip();
  pipeline(Readable.from(archive), gzip, () => {});
  yield* gzip as AsyncIterable<Uint8Array>;
}

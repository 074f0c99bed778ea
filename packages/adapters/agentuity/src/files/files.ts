import { Type } from "@fastify/type-provider-typebox";
import { type FileKind, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { App } from "@holdfast/server/adapter";
import { sendFile } from "@holdfast/server/adapter";
import { type AdapterContext, InSandbox, succeeded } from "../adapter-context.ts";
import { fileShape } from "../shapes.ts";
import { FilesIn, takeFilesIn, writeAll } from "./files-in.ts";
import { inWorkspace, WORKSPACE } from "./paths.ts";

const Path = Type.String({ minLength: 1, maxLength: 4_096 });
const ReadQuery = Type.Object({ path: Path });
const ListQuery = Type.Object({ path: Type.Optional(Path) });
const PathRequest = Type.Object({ path: Path, recursive: Type.Optional(Type.Boolean()) });
const WriteRequest = Type.Object({ files: FilesIn });

/** Maximum number of entries of a listing. Listings of this API have no pages, so larger directories are refused. */
const MAX_ENTRIES = 10_000;

/** Files of a sandbox; relative paths are below its workspace. */
export function fileRoutes(app: App, context: AdapterContext): void {
  const { engine, callers } = context;
  takeFilesIn(app, context);

  app.post(
    "/fs/:id",
    { schema: { params: InSandbox, body: WriteRequest } },
    async ({ params, body }, reply) => {
      const signal = callers.signal(reply.raw);
      return succeeded({ filesWritten: await writeAll(engine.files, params.id, body.files, signal) });
    },
  );

  app.get(
    "/fs/:id",
    { schema: { params: InSandbox, querystring: ReadQuery } },
    ({ params, query }, reply) => {
      const wanted = { ref: params.id, path: inWorkspace(query.path), wake: true };
      return sendFile(reply, context, { ...wanted, range: { kind: "whole" } });
    },
  );

  app.get(
    "/fs/list/:id",
    { schema: { params: InSandbox, querystring: ListQuery } },
    async ({ params, query }, reply) => {
      const path = inWorkspace(query.path ?? WORKSPACE);
      const options = { wake: true, limit: MAX_ENTRIES };
      const listing = await engine.files.list(params.id, path, options, callers.signal(reply.raw));
      if (!listing.truncated) return succeeded({ files: listing.items.map(fileShape) });
      const message = `${listing.path} has more than ${MAX_ENTRIES} entries; list it with a shell command.`;
      throw new HoldfastError("too_large", { message });
    },
  );

  app.post(
    "/fs/mkdir/:id",
    { schema: { params: InSandbox, body: PathRequest } },
    async ({ params, body }, reply) => {
      const options = { parents: body.recursive ?? false };
      await engine.files.mkdir(params.id, inWorkspace(body.path), options, callers.signal(reply.raw));
      return { success: true };
    },
  );

  app.post(
    "/fs/rm/:id",
    { schema: { params: InSandbox, body: PathRequest } },
    async ({ params, body }, reply) => {
      const what = { ref: params.id, path: body.path, recursive: false, isDirectory: false };
      return { success: true, found: await removed(what, callers.signal(reply.raw)) };
    },
  );

  app.post(
    "/fs/rmdir/:id",
    { schema: { params: InSandbox, body: PathRequest } },
    async ({ params, body }, reply) => {
      const { path, recursive = false } = body;
      const what = { ref: params.id, path, recursive, isDirectory: true };
      return { success: true, found: await removed(what, callers.signal(reply.raw)) };
    },
  );

  /**
   * Removes a file or directory. Returns false if the path does not exist. Throws if a directory is found where a file
   * was expected, or the reverse.
   */
  async function removed(
    what: { ref: string; path: string; recursive: boolean; isDirectory: boolean },
    signal: AbortSignal,
  ): Promise<boolean> {
    const path = inWorkspace(what.path);
    try {
      const { kind } = await engine.files.stat(what.ref, path, { wake: true }, signal);
      if ((kind === "directory") !== what.isDirectory) throw otherKind(path, kind);
      await engine.files.remove(what.ref, path, { recursive: what.recursive }, signal);
      return true;
    } catch (error) {
      if (isHoldfastError(error) && error.code === "file_not_found") return false;
      throw error;
    }
  }
}

const otherKind = (path: string, kind: FileKind): HoldfastError =>
  new HoldfastError("file_conflict", {
    message: `${path} is a ${kind}; ${kind === "directory" ? "rmDir" : "rmFile"} removes it.`,
  });

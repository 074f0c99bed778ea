import { Readable } from "node:stream";
import { type Static, Type } from "@fastify/type-provider-typebox";
import { BODY_MAX_BYTES, once } from "@holdfast/adapter-shared";
import { type FileStat, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { readChunks, readWhole, sendFile } from "@holdfast/server/adapter";
import type { FastifyReply, FastifyRequest } from "fastify";
import { resolveHome } from "../paths.ts";
import { InSandbox } from "../process/process.ts";
import { directoryShape, fileShape } from "../shapes.ts";
import { formOf } from "./multipart-form.ts";

/**
 * The parameters of a route whose URL ends with an absolute path. The slashes in the path may be percent-encoded or
 * literal. If they are literal, the path's first slash follows the slash of the URL.
 */
export const AtPath = Type.Object({ ...InSandbox.properties, "*": Type.String() });
export const pathOf = ({ "*": rest }: Static<typeof AtPath>): string => resolveHome(rest);

const FileRequest = Type.Object({
  content: Type.Optional(Type.String()),
  isDirectory: Type.Optional(Type.Boolean()),
  permissions: Type.Optional(Type.String()),
});
type FileRequest = Static<typeof FileRequest>;
const TreeRequest = Type.Object({ files: Type.Optional(Type.Record(Type.String(), Type.String())) });
const RemoveQuery = Type.Object({ recursive: Type.Optional(Type.Boolean()) });
const ReadQuery = Type.Object({ download: Type.Optional(Type.Boolean()) });

const DIRECTORY_MODE = 0o755;
/** Maximum number of entries of a listing. Listings of this API have no pages, so larger directories are refused. */
const MAX_ENTRIES = 10_000;
/** Maximum size of a file that is read as text, because the whole file is held in memory in several copies. */
const TEXT_MAX_BYTES = 32 * 1_048_576;

export function filesystemRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;
  takeFiles(app, context);
  keepEmptyFiles(app);

  app.get(
    "/filesystem/*",
    { schema: { params: AtPath, querystring: ReadQuery } },
    async ({ params, query, headers }, reply) => {
      const path = pathOf(params);
      if (query.download || wantsBytes(headers.accept)) {
        return sendFile(reply, context, { ref: params.name, path, range: { kind: "whole" }, wake: true });
      }
      const signal = callers.signal(reply.raw);
      try {
        return await textFile(params.name, path, signal);
      } catch (error) {
        if (!isHoldfastError(error) || error.code !== "not_a_file") throw error;
        return directory(params.name, path, signal);
      }
    },
  );

  async function textFile(ref: string, path: string, signal: AbortSignal) {
    const options = { wake: true, offset: 0, length: null };
    const { stat, body } = await engine.files.read(ref, path, options, signal);
    const chunks: Uint8Array[] = [];
    let size = 0;
    for await (const chunk of body) {
      size += chunk.length;
      if (size > TEXT_MAX_BYTES) throw tooLong(stat);
      chunks.push(chunk);
    }
    return { ...fileShape(stat), content: Buffer.concat(chunks).toString("utf8") };
  }

  async function directory(ref: string, path: string, signal: AbortSignal) {
    const listing = await engine.files.list(ref, path, { wake: true, limit: MAX_ENTRIES }, signal);
    if (!listing.truncated) return directoryShape(listing.path, listing.items);
    const message = `${listing.path} has more than ${MAX_ENTRIES} entries; list it with a shell command.`;
    throw new HoldfastError("too_large", { message });
  }

  app.get("/filesystem/tree/*", { schema: { params: AtPath } }, ({ params }, reply) =>
    directory(params.name, pathOf(params), callers.signal(reply.raw)),
  );

  app.put(
    "/filesystem/*",
    { schema: { params: AtPath, body: { content: { "application/json": { schema: FileRequest } } } } },
    async (request, reply) => {
      const { params } = request;
      const path = pathOf(params);
      const signal = callers.signal(reply.raw);
      const asked = request.body as FileRequest | undefined;
      if (asked?.isDirectory) {
        const options = { mode: modeOf(asked.permissions) ?? DIRECTORY_MODE, parents: true };
        await engine.files.mkdir(params.name, path, options, signal);
        return { message: "The directory exists.", path };
      }
      const { body, permissions } = await contentOf(request, asked);
      const options = { mode: modeOf(permissions), parents: true };
      await engine.files.write(params.name, path, body, options, signal);
      return { message: "The file was written.", path };
    },
  );

  /** Returns the file content in a request, which is JSON, a multipart form or the raw bytes. */
  async function contentOf(request: FastifyRequest, asked: FileRequest | undefined) {
    if (asked !== undefined)
      return { body: once(Buffer.from(asked.content ?? "")), permissions: asked.permissions };
    if (request.headers["content-type"]?.startsWith("multipart/form-data")) {
      const { file, permissions } = await formOf(request, numbers);
      return { body: once(file), permissions };
    }
    return { body: readChunks(request.raw, numbers.httpStallMs), permissions: undefined };
  }

  app.put(
    "/filesystem/tree/*",
    { schema: { params: AtPath, body: TreeRequest } },
    async ({ params, body }, reply) => {
      const root = pathOf(params);
      const signal = callers.signal(reply.raw);
      await engine.files.mkdir(params.name, root, { mode: DIRECTORY_MODE, parents: true }, signal);
      for (const [path, content] of Object.entries(body.files ?? {})) {
        const bytes = once(Buffer.from(content));
        await engine.files.write(params.name, `${root}/${path}`, bytes, { parents: true }, signal);
      }
      return directory(params.name, root, signal);
    },
  );

  for (const url of ["/filesystem/*", "/filesystem/tree/*"]) {
    app.delete(
      url,
      { schema: { params: AtPath, querystring: RemoveQuery } },
      async ({ params, query }, reply) => {
        const path = pathOf(params);
        const signal = callers.signal(reply.raw);
        await engine.files.remove(params.name, path, { recursive: query.recursive ?? false }, signal);
        return { message: "The path was deleted.", path };
      },
    );
  }
}

/**
 * Parses JSON bodies, up to the size that a body with an embedded file may have. Bodies of other types go to the route
 * unread.
 */
export function takeFiles(app: App, { numbers }: RouteContext): void {
  const parse = app.getDefaultJsonParser("error", "error");
  const limits = { limitBytes: BODY_MAX_BYTES, withinMs: numbers.httpStallMs };
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("application/json", (request, payload, done) => {
    readWhole(payload, limits).then((body) => parse(request, body.toString("utf8") || "{}", done), done);
  });
  app.addContentTypeParser("*", (_request, _payload, done) => done(null));
}

/**
 * Removes `content-length: 0` from responses: the client interprets this header as a missing file, not as an empty one.
 */
function keepEmptyFiles(app: App): void {
  app.addHook("onSend", (_request, reply: FastifyReply, payload, done) => {
    if (reply.getHeader("content-length") !== "0") return done(null, payload);
    reply.removeHeader("content-length");
    done(null, Readable.from([]));
  });
}

const wantsBytes = (accept = ""): boolean => /application\/octet-stream/i.test(accept);

const tooLong = ({ path, sizeBytes }: FileStat): HoldfastError =>
  new HoldfastError("too_large", {
    message: `${path} has ${sizeBytes} bytes, too many to return as text; read it as binary.`,
  });

export function modeOf(permissions: string | undefined): number | undefined {
  if (!permissions) return undefined;
  if (/^0?[0-7]{3,4}$/.test(permissions)) return Number.parseInt(permissions, 8);
  throw new HoldfastError("invalid_request", {
    message: `permissions is ${JSON.stringify(permissions.slice(0, 20))}; it must be octal, such as 0644.`,
  });
}

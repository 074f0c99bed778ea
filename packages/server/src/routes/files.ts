/** Routes for the files of sandboxes and drives: the same calls below two base paths. */
import { Type } from "@fastify/type-provider-typebox";
import { type ErrorCode, FileList, FileSearch, FileStat, Unpacked } from "@holdfast/contract";
import type { EngineApi, FileApi } from "@holdfast/engine";
import type { App, RouteContext } from "../http/context.ts";
import { gunzipBody } from "../http/gunzip.ts";
import { parseRange } from "../http/range.ts";
import { readChunks } from "../http/request-body.ts";
import {
  bytes,
  DrivePathQuery,
  DriveRef,
  MakeDirectory,
  Mode,
  MoveFile,
  PathQuery,
  parseMode,
  ReadQuery,
  readOptionsOf,
  SandboxRef,
  SearchQuery,
} from "../http/schemas.ts";
import { ARCHIVE_TYPE, sendArchive } from "../streams/archive-sender.ts";
import { CHANGE_CONTENT, sendChanges } from "../streams/change-sender.ts";
import { sendFile } from "../streams/file-sender.ts";
import { acceptedFormat } from "../streams/output-format.ts";
import { RECORD_FORMATS } from "../streams/record-sender.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const MAX_ENTRIES = 10_000;
const DEFAULT_MATCHES = 1_000;

/** The kind of object, a sandbox or a drive, that the file routes are about. */
interface Home {
  url: string;
  params: typeof SandboxRef;
  tags: readonly string[];
  /** Operation ids of the routes. */
  operation(verb: string, noun: string): string;
  /**
   * Returns the file API of an engine. It is a function, because the API document is generated from the routes without
   * an engine.
   */
  files(engine: EngineApi): FileApi;
  path: typeof PathQuery;
  read: typeof ReadQuery;
  /** Text for the API document that says how reads treat a sandbox in standby. */
  asleep?: string;
  errors: Readonly<Record<"read" | "write" | "watch", readonly ErrorCode[]>>;
}

const PATH_ERRORS = [
  "invalid_path",
  "permission_denied",
  "file_not_found",
  "not_a_file",
  "system_error",
] as const;
const errorsOf = (any: readonly ErrorCode[], reading: readonly ErrorCode[]): Home["errors"] => ({
  read: [...any, ...reading, ...PATH_ERRORS],
  write: [...any, ...PATH_ERRORS, "file_conflict", "disk_full"],
  watch: [...any, ...PATH_ERRORS, "too_many_watches"],
});

const OF_SANDBOXES: Home = {
  url: "/v1/sandboxes/:ref/files",
  params: SandboxRef,
  tags: ["files"],
  operation: (verb, noun) => verb + noun,
  files: (engine) => engine.files,
  path: PathQuery,
  read: ReadQuery,
  asleep:
    "Files on the disk of a sandbox in standby are read without waking it. Paths that exist only while it is awake (tmpfs, /proc, /dev, drives) wake it, or with `wake=false` return 409 `not_on_disk`.",
  errors: errorsOf([...SERVING_ERRORS, "forbidden_path", "too_many_file_calls"], ["not_on_disk"]),
};

const OF_DRIVES: Home = {
  url: "/v1/drives/:ref/files",
  params: DriveRef,
  tags: ["drives"],
  operation: (verb, noun) => `${verb}Drive${noun}`,
  files: (engine) => engine.driveFiles,
  path: DrivePathQuery,
  // Drives have no standby, so `wake` does not apply.
  read: DrivePathQuery as typeof ReadQuery,
  errors: errorsOf(
    ["drive_not_found", "drive_deleting", "drive_degraded", "link_lost", "deadline", "too_many_file_calls"],
    [],
  ),
};

export function fileRoutes(app: App, context: RouteContext): void {
  for (const home of [OF_SANDBOXES, OF_DRIVES]) {
    readRoutes(app, context, home);
    treeRoutes(app, context, home);
    changeRoutes(app, context, home);
    app.register(async (scope) => bodyRoutes(scope as App, context, home));
  }
}

const described = (...parts: (string | undefined)[]): { description?: string } => {
  const description = parts.filter((part) => part !== undefined).join(" ");
  return description === "" ? {} : { description };
};

/** Routes that read a single file or directory. */
function readRoutes(app: App, context: RouteContext, home: Home): void {
  const { engine, callers } = context;
  const { url, params, tags, operation, files, errors } = home;

  app.get(
    url,
    {
      schema: {
        operationId: operation("read", "File"),
        summary: "Read a file, or one range of it.",
        ...described(home.asleep),
        tags,
        params,
        querystring: Type.Object(home.read),
        headers: Type.Object({ range: Type.Optional(Type.String({ description: "a single byte range" })) }),
      },
      config: {
        content: {
          200: { "application/octet-stream": bytes("the file's content") },
          206: { "application/octet-stream": bytes("the requested range") },
        },
        errors: [...errors.read, "range_not_satisfiable"],
      },
    },
    ({ params: { ref }, query, headers }, reply) => {
      const range = parseRange(headers.range);
      const wanted = { files: files(engine), ref, path: query.path, range, ...readOptionsOf(query) };
      return sendFile(reply, context, wanted);
    },
  );

  app.get(
    `${url}/stat`,
    {
      schema: {
        operationId: operation("stat", "File"),
        summary: "Get the metadata of a path.",
        ...described(home.asleep),
        tags,
        params,
        querystring: Type.Object(home.read),
        response: { 200: FileStat },
      },
      config: { errors: errors.read },
    },
    ({ params: { ref }, query }, reply) =>
      files(engine).stat(ref, query.path, readOptionsOf(query), callers.signal(reply.raw)),
  );

  app.get(
    `${url}/list`,
    {
      schema: {
        operationId: operation("list", "Files"),
        summary: "List a directory.",
        ...described(home.asleep),
        tags,
        params,
        querystring: Type.Object({
          ...home.read,
          limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_ENTRIES, default: MAX_ENTRIES })),
        }),
        response: { 200: FileList },
      },
      config: { errors: [...errors.read, "file_conflict"] },
    },
    ({ params: { ref }, query }, reply) => {
      const options = { limit: query.limit ?? MAX_ENTRIES, ...readOptionsOf(query) };
      return files(engine).list(ref, query.path, options, callers.signal(reply.raw));
    },
  );
}

/** Routes of a directory tree. */
function treeRoutes(app: App, context: RouteContext, home: Home): void {
  const { engine, callers } = context;
  const { url, params, tags, operation, files, errors } = home;

  app.get(
    `${url}/search`,
    {
      schema: {
        operationId: operation("search", "Files"),
        summary: "Find files below a directory by name and content.",
        ...described(
          "Files closer to the directory come first. Links are not followed, and unreadable files are skipped. The search stops at its limits on results, time, entries and bytes; `truncated` is then true. The first 4 MiB of a file are searched, and at most 50 lines per file are returned; a file with a zero byte near its beginning is treated as binary and not searched.",
          home.asleep,
        ),
        tags,
        params,
        querystring: Type.Object({ ...home.read, ...SearchQuery }),
        response: { 200: FileSearch },
      },
      config: { errors: [...errors.read, "file_conflict"] },
    },
    ({ params: { ref }, query }, reply) => {
      const { path, wake: _wake, limit = DEFAULT_MATCHES, ...wanted } = query;
      const options = { ...wanted, limit, ...readOptionsOf(query) };
      return files(engine).search(ref, path, options, callers.signal(reply.raw));
    },
  );

  app.get(
    `${url}/tar`,
    {
      schema: {
        operationId: operation("pack", "Files"),
        summary: "Download a directory tree, or a file, as a tar archive.",
        ...described(
          "Names are relative to the directory. The archive contains files, directories and symbolic links, with modes, owners and times. An archive that is cut while it is sent lacks its end.",
          home.asleep,
        ),
        tags,
        params,
        querystring: Type.Object(home.read),
      },
      config: {
        content: { 200: { [ARCHIVE_TYPE]: bytes("the archive") } },
        errors: [...errors.read, "file_conflict", "too_large"],
      },
    },
    async ({ params: { ref }, query }, reply) => {
      const { path } = query;
      const signal = callers.signal(reply.raw);
      const archive = await files(engine).pack(ref, path, readOptionsOf(query), signal);
      return sendArchive(reply, context, { archive, path, signal });
    },
  );

  app.get(
    `${url}/watch`,
    {
      schema: {
        operationId: operation("watch", "Files"),
        summary: "Watch a directory or a file, as a stream of changes.",
        description:
          "The Accept header chooses between event-stream (the default) and x-ndjson. After the `start` record no change is missed; an `overflow` record means that some changes were. A watched sandbox is not suspended for idleness. A suspension on request ends the stream with an `end` record; watching again wakes the sandbox. A stream without an `end` record was cut.",
        tags,
        params,
        querystring: Type.Object({
          ...home.path,
          recursive: Type.Optional(Type.Boolean({ default: false, description: "include subdirectories" })),
        }),
      },
      config: { content: { 200: CHANGE_CONTENT }, errors: errors.watch },
    },
    ({ params: { ref }, query, headers }, reply) => {
      const format = acceptedFormat(headers.accept, RECORD_FORMATS) ?? "sse";
      const { path, recursive = false } = query;
      return sendChanges(reply, context, { files: files(engine), ref, path, recursive, format });
    },
  );
}

function changeRoutes(app: App, { engine, callers }: RouteContext, home: Home): void {
  const { url, params, tags, operation, files, errors } = home;

  app.delete(
    url,
    {
      schema: {
        operationId: operation("remove", "File"),
        summary: "Delete a file or directory.",
        tags,
        params,
        querystring: Type.Object({
          ...home.path,
          recursive: Type.Optional(Type.Boolean({ default: false })),
        }),
        response: { 204: Type.Null() },
      },
      config: { errors: errors.write },
    },
    async ({ params: { ref }, query }, reply) => {
      const options = { recursive: query.recursive ?? false };
      await files(engine).remove(ref, query.path, options, callers.signal(reply.raw));
      return reply.code(204).send(null);
    },
  );

  app.post(
    `${url}/mkdir`,
    {
      schema: {
        operationId: operation("make", "Directory"),
        summary: "Create a directory.",
        tags,
        params,
        body: MakeDirectory,
        response: { 200: FileStat },
      },
      config: { errors: errors.write },
    },
    ({ params: { ref }, body }, reply) => {
      const options = { mode: parseMode(body.mode), parents: body.parents ?? true };
      return files(engine).mkdir(ref, body.path, options, callers.signal(reply.raw));
    },
  );

  app.post(
    `${url}/move`,
    {
      schema: {
        operationId: operation("move", "File"),
        summary: "Move or rename a file or directory.",
        tags,
        params,
        body: MoveFile,
        response: { 200: FileStat },
      },
      config: { errors: errors.write },
    },
    ({ params: { ref }, body }, reply) => {
      const options = { overwrite: body.overwrite ?? false };
      return files(engine).move(ref, body.from, body.to, options, callers.signal(reply.raw));
    },
  );
}

function bodyRoutes(app: App, { engine, callers, numbers }: RouteContext, home: Home): void {
  const { url, params, tags, operation, files, errors } = home;
  acceptAnyBody(app);

  app.put(
    url,
    {
      schema: {
        operationId: operation("write", "File"),
        summary: "Write a file of any size. The write is atomic: readers see the old content or the new.",
        tags,
        params,
        querystring: Type.Object({
          ...home.path,
          mode: Type.Optional(Mode),
          parents: Type.Optional(
            Type.Boolean({ default: true, description: "create missing parent directories" }),
          ),
        }),
        response: { 200: FileStat },
      },
      config: { bytesIn: "the file's content", errors: errors.write },
    },
    ({ params: { ref }, query, raw }, reply) => {
      const options = { mode: parseMode(query.mode), parents: query.parents ?? true };
      const body = readChunks(raw, numbers.httpStallMs);
      return files(engine).write(ref, query.path, body, options, callers.signal(reply.raw));
    },
  );

  app.put(
    `${url}/tar`,
    {
      schema: {
        operationId: operation("unpack", "Files"),
        summary: "Unpack a tar archive into a directory, which is created if missing.",
        description:
          "Files, directories and links are created with their modes and times and belong to the default user; replaced files keep their owner. Devices, pipes and entries that lead outside the directory are refused. Each file is written completely or not at all; entries unpacked before an error remain.",
        tags,
        params,
        querystring: Type.Object(home.path),
        response: { 200: Unpacked },
      },
      config: { bytesIn: "a tar archive, gzipped or not", errors: [...errors.write, "too_large"] },
    },
    ({ params: { ref }, query, raw }, reply) => {
      const archive = gunzipBody(readChunks(raw, numbers.httpStallMs));
      return files(engine).unpack(ref, query.path, archive, callers.signal(reply.raw));
    },
  );
}

/** Passes bodies of every content type and size to the handler unread. */
export function acceptAnyBody(app: App): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, _payload, done) => done(null));
}

/** Files of sandboxes, and of drives: the same calls below two paths. */
import { Type } from "@fastify/type-provider-typebox";
import { type ErrorCode, FileList, FileSearch, FileStat, Unpacked } from "@holdfast/contract";
import type { EngineApi, FileApi } from "@holdfast/engine";
import { ARCHIVE_TYPE, sendArchive } from "../archive-sender.ts";
import { readChunks } from "../body.ts";
import { CHANGE_CONTENT, sendChanges } from "../change-sender.ts";
import type { App, RouteContext } from "../context.ts";
import { sendFile } from "../file-sender.ts";
import { gunzipped } from "../gunzip.ts";
import { acceptedFormat } from "../output-format.ts";
import { parseRange } from "../range.ts";
import { RECORD_FORMATS } from "../record-sender.ts";
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
} from "../schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const MAX_ENTRIES = 10_000;
const DEFAULT_MATCHES = 1_000;

/** What has files. */
interface Home {
  url: string;
  params: typeof SandboxRef;
  tags: readonly string[];
  /** The API's own names of what is done here. */
  operation(verb: string, noun: string): string;
  /** Asked for when it is called: the API document is made without an engine. */
  files(engine: EngineApi): FileApi;
  path: typeof PathQuery;
  read: typeof ReadQuery;
  /** Of what is read. */
  asleep?: string;
  errors: Readonly<Record<"read" | "write" | "watch", readonly ErrorCode[]>>;
}

const PATH_ERRORS = ["invalid_path", "permission_denied", "file_not_found", "not_a_file"] as const;
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
    "A sandbox in standby is not woken for what lies on its disk. What is there only while it is awake (tmpfs, /proc, /dev, drives) wakes it, or with `wake=false` is 409 `not_on_disk`.",
  errors: errorsOf([...SERVING_ERRORS, "forbidden_path"], ["not_on_disk"]),
};

const OF_DRIVES: Home = {
  url: "/v1/drives/:ref/files",
  params: DriveRef,
  tags: ["drives"],
  operation: (verb, noun) => `${verb}Drive${noun}`,
  files: (engine) => engine.driveFiles,
  path: DrivePathQuery,
  // A drive does not sleep.
  read: DrivePathQuery as typeof ReadQuery,
  errors: errorsOf(["drive_not_found", "drive_deleting", "drive_degraded", "link_lost", "deadline"], []),
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

/** Of one file or directory. */
function readRoutes(app: App, context: RouteContext, home: Home): void {
  const { engine, callers } = context;
  const { url, params, tags, operation, files, errors } = home;

  app.get(
    url,
    {
      schema: {
        operationId: operation("read", "File"),
        summary: "A file's bytes, whole or one range.",
        ...described(home.asleep),
        tags,
        params,
        querystring: Type.Object(home.read),
        headers: Type.Object({ range: Type.Optional(Type.String({ description: "one range of bytes" })) }),
      },
      config: {
        content: {
          200: { "application/octet-stream": bytes("the file") },
          206: { "application/octet-stream": bytes("the range") },
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
        summary: "What lies at a path.",
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
        summary: "The entries of a directory.",
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

/** Of a directory with all that is below it. */
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
          "Those nearer to the directory come first; links are not followed, and what can't be read is passed by. It ends at its limits, of results, time, entries and bytes, and `truncated` then says so. Of a file the first 4 MiB are searched and at most 50 lines are told; one with a zero byte near its beginning is not text.",
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
        summary: "A directory and all below it, or a file, as a tar archive.",
        ...described(
          "Names are relative to the directory. It has files, directories and symbolic links, with modes, owners and times. An archive that breaks off while it is sent lacks its end.",
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
        summary: "What changes in a directory, or in a file, as it does, as a stream.",
        description:
          "The Accept header chooses between event-stream, the default, and x-ndjson. A `start` says that nothing is missed from there on, an `overflow` that something was. A sandbox that is watched does not fall asleep by itself; one that is put to sleep ends the stream with an `end`, and to watch it again wakes it. A stream that ends without one was cut.",
        tags,
        params,
        querystring: Type.Object({
          ...home.path,
          recursive: Type.Optional(
            Type.Boolean({ default: false, description: "all below the directory as well" }),
          ),
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
        summary: "Remove a file or directory.",
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
        summary: "Make a directory.",
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
        summary: "Move or rename.",
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
  takeAnyBody(app);

  app.put(
    url,
    {
      schema: {
        operationId: operation("write", "File"),
        summary: "Write a file of any size; readers see the old content or the new.",
        tags,
        params,
        querystring: Type.Object({
          ...home.path,
          mode: Type.Optional(Mode),
          parents: Type.Optional(Type.Boolean({ default: true, description: "make missing parents" })),
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
        summary: "Unpack a tar archive into a directory, which is made where it is missing.",
        description:
          "Files, directories and links are made with their modes and times, and belong to the default user as whatever is written here does; what is replaced keeps its owner. An entry that leads out of the directory, a device or a pipe is refused. Each file is there whole or not at all; what was unpacked before something is found wrong stays.",
        tags,
        params,
        querystring: Type.Object(home.path),
        response: { 200: Unpacked },
      },
      config: { bytesIn: "a tar archive, gzipped or not", errors: [...errors.write, "too_large"] },
    },
    ({ params: { ref }, query, raw }, reply) => {
      const archive = gunzipped(readChunks(raw, numbers.httpStallMs));
      return files(engine).unpack(ref, query.path, archive, callers.signal(reply.raw));
    },
  );
}

/** Bodies of every type reach the handler unread, whatever their size. */
export function takeAnyBody(app: App): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, _payload, done) => done(null));
}

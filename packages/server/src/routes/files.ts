import { Type } from "@fastify/type-provider-typebox";
import { FileList, FileStat } from "@holdfast/contract";
import { readChunks } from "../body.ts";
import type { App, RouteContext } from "../context.ts";
import { sendFile } from "../file-sender.ts";
import { parseRange } from "../range.ts";
import {
  bytes,
  MakeDirectory,
  Mode,
  MoveFile,
  PathQuery,
  parseMode,
  ReadQuery,
  readOptionsOf,
  SandboxRef,
} from "../schemas.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const tags = ["files"];
const FILE_ERRORS = [
  ...SERVING_ERRORS,
  "invalid_path",
  "forbidden_path",
  "permission_denied",
  "file_not_found",
  "not_a_file",
] as const;
const READ_ERRORS = [...FILE_ERRORS, "not_on_disk"] as const;
const WRITE_ERRORS = [...FILE_ERRORS, "file_conflict", "disk_full"] as const;
const MAX_ENTRIES = 10_000;
const READ_ASLEEP =
  "A sandbox in standby is not woken for what lies on its disk. What is there only while it is awake (tmpfs, /proc, /dev) wakes it, or with `wake=false` is 409 `not_on_disk`.";

export function fileRoutes(app: App, context: RouteContext): void {
  const { engine, callers } = context;

  app.get(
    "/v1/sandboxes/:ref/files",
    {
      schema: {
        operationId: "readFile",
        summary: "A file's bytes, whole or one range.",
        description: READ_ASLEEP,
        tags,
        params: SandboxRef,
        querystring: Type.Object(ReadQuery),
        headers: Type.Object({ range: Type.Optional(Type.String({ description: "one range of bytes" })) }),
      },
      config: {
        content: {
          200: { "application/octet-stream": bytes("the file") },
          206: { "application/octet-stream": bytes("the range") },
        },
        errors: [...READ_ERRORS, "range_not_satisfiable"],
      },
    },
    ({ params, query, headers }, reply) => {
      const range = parseRange(headers.range);
      return sendFile(reply, context, { ref: params.ref, path: query.path, range, ...readOptionsOf(query) });
    },
  );

  app.delete(
    "/v1/sandboxes/:ref/files",
    {
      schema: {
        operationId: "removeFile",
        summary: "Remove a file or directory.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          ...PathQuery,
          recursive: Type.Optional(Type.Boolean({ default: false })),
        }),
        response: { 204: Type.Null() },
      },
      config: { errors: WRITE_ERRORS },
    },
    async ({ params, query }, reply) => {
      const signal = callers.signal(reply.raw);
      await engine.files.remove(params.ref, query.path, { recursive: query.recursive ?? false }, signal);
      return reply.code(204).send(null);
    },
  );

  app.get(
    "/v1/sandboxes/:ref/files/stat",
    {
      schema: {
        operationId: "statFile",
        summary: "What lies at a path.",
        description: READ_ASLEEP,
        tags,
        params: SandboxRef,
        querystring: Type.Object(ReadQuery),
        response: { 200: FileStat },
      },
      config: { errors: READ_ERRORS },
    },
    ({ params, query }, reply) =>
      engine.files.stat(params.ref, query.path, readOptionsOf(query), callers.signal(reply.raw)),
  );

  app.get(
    "/v1/sandboxes/:ref/files/list",
    {
      schema: {
        operationId: "listFiles",
        summary: "The entries of a directory.",
        description: READ_ASLEEP,
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          ...ReadQuery,
          limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_ENTRIES, default: MAX_ENTRIES })),
        }),
        response: { 200: FileList },
      },
      config: { errors: [...READ_ERRORS, "file_conflict"] },
    },
    ({ params, query }, reply) =>
      engine.files.list(
        params.ref,
        query.path,
        { limit: query.limit ?? MAX_ENTRIES, ...readOptionsOf(query) },
        callers.signal(reply.raw),
      ),
  );

  app.post(
    "/v1/sandboxes/:ref/files/mkdir",
    {
      schema: {
        operationId: "makeDirectory",
        summary: "Make a directory.",
        tags,
        params: SandboxRef,
        body: MakeDirectory,
        response: { 200: FileStat },
      },
      config: { errors: WRITE_ERRORS },
    },
    ({ params, body }, reply) => {
      const options = { mode: parseMode(body.mode), parents: body.parents ?? true };
      return engine.files.mkdir(params.ref, body.path, options, callers.signal(reply.raw));
    },
  );

  app.post(
    "/v1/sandboxes/:ref/files/move",
    {
      schema: {
        operationId: "moveFile",
        summary: "Move or rename.",
        tags,
        params: SandboxRef,
        body: MoveFile,
        response: { 200: FileStat },
      },
      config: { errors: WRITE_ERRORS },
    },
    ({ params, body }, reply) => {
      const options = { overwrite: body.overwrite ?? false };
      return engine.files.move(params.ref, body.from, body.to, options, callers.signal(reply.raw));
    },
  );

  app.register(async (scope) => writeRoute(scope as App, context));
}

function writeRoute(app: App, { engine, callers, numbers }: RouteContext): void {
  takeAnyBody(app);
  app.put(
    "/v1/sandboxes/:ref/files",
    {
      schema: {
        operationId: "writeFile",
        summary: "Write a file of any size; readers see the old content or the new.",
        tags,
        params: SandboxRef,
        querystring: Type.Object({
          ...PathQuery,
          mode: Type.Optional(Mode),
          parents: Type.Optional(Type.Boolean({ default: true, description: "make missing parents" })),
        }),
        response: { 200: FileStat },
      },
      config: { bytesIn: "the file's content", errors: WRITE_ERRORS },
    },
    ({ params, query, raw }, reply) => {
      const options = { mode: parseMode(query.mode), parents: query.parents ?? true };
      const body = readChunks(raw, numbers.httpStallMs);
      return engine.files.write(params.ref, query.path, body, options, callers.signal(reply.raw));
    },
  );
}

/** Bodies of every type reach the handler unread, whatever their size. */
export function takeAnyBody(app: App): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, _payload, done) => done(null));
}

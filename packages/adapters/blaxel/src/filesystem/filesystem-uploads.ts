/**
 * Multipart uploads. The parts and the upload's target are stored in the sandbox: they use the sandbox's disk and
 * survive a server restart. The uploaded file appears at its path only when it is complete. An upload that its client
 * abandons is deleted by a later upload, or with the sandbox.
 */
import { hash } from "node:crypto";
import { type Static, Type } from "@fastify/type-provider-typebox";
import { once } from "@holdfast/adapter-shared";
import { type FileStat, HoldfastError, isHoldfastError, randomText } from "@holdfast/contract";
import type { FileApi } from "@holdfast/engine";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { InSandbox } from "../process/process.ts";
import { AtPath, modeOf, pathOf, takeFiles } from "./filesystem.ts";
import { formOf } from "./multipart-form.ts";

/** Directory of the parts. It is on disk, unlike files below /tmp, which may be in memory. */
const UPLOADS = "/var/tmp/.blaxel-uploads";
const ORDER = "order.json";
const ID_LENGTH = 24;
const ID_PATTERN = `^[a-z0-9]{${ID_LENGTH}}$`;
/** An upload without activity for this long is considered abandoned. */
const ABANDONED_MS = 86_400_000;
const IS_ID = new RegExp(ID_PATTERN);
const UPLOADS_LOOKED_AT = 1_000;
const PARTS_MAX = 10_000;
const ETAG_DIGITS = 32;

const Upload = Type.Object({
  ...InSandbox.properties,
  uploadId: Type.String({ pattern: ID_PATTERN }),
});
const Initiate = Type.Object({ permissions: Type.Optional(Type.String()) });
const PartQuery = Type.Object({ partNumber: Type.Integer({ minimum: 1, maximum: PARTS_MAX }) });
const Complete = Type.Object({
  parts: Type.Array(Type.Object({ partNumber: Type.Integer(), etag: Type.String() }), {
    minItems: 1,
    maxItems: PARTS_MAX,
  }),
});
type Part = Static<typeof Complete>["parts"][number];

const directoryOf = (uploadId: string): string => `${UPLOADS}/${uploadId}`;
const partPath = (uploadId: string, { partNumber, etag }: Part): string =>
  `${directoryOf(uploadId)}/${partNumber}-${etag}`;

export function uploadRoutes(app: App, context: RouteContext): void {
  const { engine, callers, numbers } = context;
  takeFiles(app, context);

  app.post(
    "/filesystem-multipart/initiate/*",
    { schema: { params: AtPath, body: Initiate }, config: { optionalBody: true } },
    async ({ params, body }, reply) => {
      const signal = callers.signal(reply.raw);
      const uploadId = randomText(ID_LENGTH);
      const path = pathOf(params);
      const order = JSON.stringify({ path, mode: modeOf(body.permissions) });
      const at = `${directoryOf(uploadId)}/${ORDER}`;
      await giveUpAbandoned(params.name, signal);
      await engine.files.write(
        params.name,
        at,
        once(Buffer.from(order)),
        { mode: 0o600, parents: true },
        signal,
      );
      return { uploadId, path };
    },
  );

  /**
   * Deletes abandoned uploads, which would fill the sandbox's disk. A failed deletion does not affect the new upload.
   */
  async function giveUpAbandoned(ref: string, signal: AbortSignal): Promise<void> {
    try {
      const { items } = await engine.files.list(
        ref,
        UPLOADS,
        { wake: true, limit: UPLOADS_LOOKED_AT },
        signal,
      );
      const before = Date.now() - ABANDONED_MS;
      const isAbandoned = ({ name, modifiedAt }: FileStat) =>
        IS_ID.test(name) && Date.parse(modifiedAt) < before;
      for (const { name } of items.filter(isAbandoned))
        await engine.files.remove(ref, directoryOf(name), { recursive: true }, signal);
    } catch (error) {
      if (!isHoldfastError(error)) throw error;
      context.log.debug({ ref, err: error }, "failed to look for abandoned uploads");
    }
  }

  app.put(
    "/filesystem-multipart/:uploadId/part",
    { schema: { params: Upload, querystring: PartQuery } },
    async (request, reply) => {
      const { name, uploadId } = request.params;
      const { partNumber } = request.query;
      const signal = callers.signal(reply.raw);
      const { file } = await formOf(request, numbers);
      await orderOf(engine.files, name, uploadId, signal);
      const etag = hash("sha256", file).slice(0, ETAG_DIGITS);
      const at = partPath(uploadId, { partNumber, etag });
      await engine.files.write(name, at, once(file), { mode: 0o600, parents: false }, signal);
      return { partNumber, etag, size: file.length };
    },
  );

  app.post(
    "/filesystem-multipart/:uploadId/complete",
    { schema: { params: Upload, body: Complete } },
    async ({ params: { name, uploadId }, body }, reply) => {
      const signal = callers.signal(reply.raw);
      const { path, mode } = await orderOf(engine.files, name, uploadId, signal);
      const parts = body.parts.toSorted((a, b) => a.partNumber - b.partNumber);
      await refuseMissing(engine.files, name, { uploadId, parts }, signal);
      const content = joined(engine.files, name, { uploadId, parts }, signal);
      await engine.files.write(name, path, content, { mode, parents: true }, signal);
      await engine.files.remove(name, directoryOf(uploadId), { recursive: true }, signal);
      return { message: "The file was written.", path };
    },
  );

  app.delete(
    "/filesystem-multipart/:uploadId/abort",
    { schema: { params: Upload } },
    async ({ params: { name, uploadId } }, reply) => {
      const signal = callers.signal(reply.raw);
      const { path } = await orderOf(engine.files, name, uploadId, signal);
      await engine.files.remove(name, directoryOf(uploadId), { recursive: true }, signal);
      return { message: "The upload was aborted.", path };
    },
  );
}

const Order = Type.Object({ path: Type.String(), mode: Type.Optional(Type.Integer()) });
const ORDER_MAX_BYTES = 65_536;
const whole = { wake: true, offset: 0, length: null };

/**
 * Reads the target of an upload from a file in the sandbox. Programs in the sandbox can modify this file, so its
 * content is not trusted.
 */
async function orderOf(
  files: FileApi,
  ref: string,
  uploadId: string,
  signal: AbortSignal,
): Promise<{ path: string; mode: number | undefined }> {
  const at = `${directoryOf(uploadId)}/${ORDER}`;
  const { body } = await files.read(ref, at, { ...whole, length: ORDER_MAX_BYTES }, signal);
  try {
    const order: unknown = JSON.parse(Buffer.concat(await Array.fromAsync(body)).toString("utf8"));
    const { path, mode } = order as Static<typeof Order>;
    if (typeof path === "string" && (mode === undefined || Number.isInteger(mode))) return { path, mode };
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
  }
  throw new HoldfastError("file_conflict", {
    message: "The stored state of the upload was modified.",
  });
}

interface UploadParts {
  uploadId: string;
  parts: readonly Part[];
}

async function refuseMissing(
  files: FileApi,
  ref: string,
  { uploadId, parts }: UploadParts,
  signal: AbortSignal,
): Promise<void> {
  const at = directoryOf(uploadId);
  const { items } = await files.list(ref, at, { wake: true, limit: 2 * PARTS_MAX }, signal);
  const there = new Set(items.map(({ path }) => path));
  const missing = parts.find((part) => !there.has(partPath(uploadId, part)));
  if (missing === undefined) return;
  const message = `Part ${missing.partNumber} of the upload is missing or has a different ETag.`;
  throw new HoldfastError("invalid_request", { message });
}

async function* joined(
  files: FileApi,
  ref: string,
  { uploadId, parts }: UploadParts,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  for (const part of parts) {
    const { body } = await files.read(ref, partPath(uploadId, part), whole, signal);
    yield* body;
  }
}

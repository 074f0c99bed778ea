import { BODY_MAX_BYTES } from "@holdfast/adapter-shared";
import { HoldfastError, type Numbers } from "@holdfast/contract";
import { readWhole } from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";

const wholeBody = (request: FastifyRequest, { httpStallMs }: Numbers): Promise<Buffer> =>
  readWhole(request.raw, { limitBytes: BODY_MAX_BYTES, withinMs: httpStallMs });

/** Reads a file from `multipart/form-data`: its bytes and the other fields. */
export async function formOf(
  request: FastifyRequest,
  numbers: Numbers,
): Promise<{ file: Uint8Array; permissions: string | undefined }> {
  const type = request.headers["content-type"] ?? "";
  const body = await wholeBody(request, numbers);
  const form = await new Response(Uint8Array.from(body), { headers: { "content-type": type } })
    .formData()
    .catch((error: unknown) => {
      throw new HoldfastError("invalid_request", {
        message: "The body is not a valid multipart form.",
        cause: error,
      });
    });
  const file = form.get("file");
  const permissions = form.get("permissions");
  if (file === null || typeof file === "string") {
    throw new HoldfastError("invalid_request", { message: "The form has no file named 'file'." });
  }
  return { file: await file.bytes(), permissions: typeof permissions === "string" ? permissions : undefined };
}

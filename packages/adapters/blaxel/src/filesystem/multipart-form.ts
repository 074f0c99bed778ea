import { HoldfastError, type Numbers } from "@holdfast/contract";
import type { FastifyRequest } from "fastify";
import { readWhole } from "../../body.ts";
import { BODY_MAX_BYTES } from "../whole-bodies.ts";

export const wholeBody = (request: FastifyRequest, { httpStallMs }: Numbers): Promise<Buffer> =>
  readWhole(request.raw, { limitBytes: BODY_MAX_BYTES, withinMs: httpStallMs });

/** What `multipart/form-data` holds of a file: its bytes, and the fields beside it. */
export async function formOf(
  request: FastifyRequest,
  numbers: Numbers,
): Promise<{ file: Uint8Array; permissions: string | undefined }> {
  const type = request.headers["content-type"] ?? "";
  const body = await wholeBody(request, numbers);
  const form = await new Response(Uint8Array.from(body), { headers: { "content-type": type } })
    .formData()
    .catch((error: unknown) => {
      throw new HoldfastError("invalid_request", { message: "The body is no valid form.", cause: error });
    });
  const file = form.get("file");
  const permissions = form.get("permissions");
  if (file === null || typeof file === "string") {
    throw new HoldfastError("invalid_request", { message: "The form has no file named 'file'." });
  }
  return { file: await file.bytes(), permissions: typeof permissions === "string" ? permissions : undefined };
}

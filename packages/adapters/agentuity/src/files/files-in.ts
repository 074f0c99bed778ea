/** Files embedded in a request, as base64. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import { BODY_MAX_BYTES, once } from "@holdfast/adapter-shared";
import type { FileApi } from "@holdfast/engine";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { acceptJson } from "@holdfast/server/adapter";
import { inWorkspace } from "./paths.ts";

export const FilesIn = Type.Array(
  Type.Object({ path: Type.String({ minLength: 1 }), content: Type.String() }),
  { maxItems: 10_000 },
);
export type FilesIn = Static<typeof FilesIn>;

/**
 * Accepts large JSON bodies, for requests that contain files as base64. Archives are streamed and have no size limit.
 */
export const takeFilesIn = (app: App, { numbers }: RouteContext): void =>
  acceptJson(app, { limitBytes: BODY_MAX_BYTES, withinMs: numbers.httpStallMs });

/** Writes the files in order, creating missing directories; returns their number. */
export async function writeAll(
  files: FileApi,
  ref: string,
  given: FilesIn,
  signal: AbortSignal,
): Promise<number> {
  for (const { path, content } of given) {
    const body = once(Buffer.from(content, "base64"));
    await files.write(ref, inWorkspace(path), body, { parents: true }, signal);
  }
  return given.length;
}

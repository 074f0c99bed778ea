/** Files that come within a request, as base64. */
import { type Static, Type } from "@fastify/type-provider-typebox";
import type { FileApi } from "@holdfast/engine";
import type { App, RouteContext } from "../../context.ts";
import { takeJson } from "../../json-body.ts";
import { BODY_MAX_BYTES, once } from "../whole-bodies.ts";
import { inWorkspace } from "./paths.ts";

export const FilesIn = Type.Array(
  Type.Object({ path: Type.String({ minLength: 1 }), content: Type.String() }),
  { maxItems: 10_000 },
);
export type FilesIn = Static<typeof FilesIn>;

/** Bodies may be as long as files make them; archives have no such limit. */
export const takeFilesIn = (app: App, { numbers }: RouteContext): void =>
  takeJson(app, { limitBytes: BODY_MAX_BYTES, withinMs: numbers.httpStallMs });

/** One after the other, and missing directories with them; how many there were. */
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

import { notSupported } from "@holdfast/adapter-shared";
import type { App } from "@holdfast/server/adapter";
import { acceptAnyBody } from "@holdfast/server/adapter";
import { MOUNTED_AT } from "./adapter-context.ts";

const SNAPSHOTS =
  "A Holdfast checkpoint does not outlive its sandbox, as a snapshot would; createDiskCheckpoint creates one, and create({ snapshot }) starts from it.";

/**
 * Hints for unsupported paths, by path segment. Other unsupported paths get no hint, because the error names the path.
 */
const INSTEAD: Readonly<Record<string, string>> = { snapshot: SNAPSHOTS, snapshots: SNAPSHOTS };
const WORDS_SHOWN = 5;

/** Refuses all paths of the API that no other route serves. */
export function unsupportedRoutes(app: App): void {
  acceptAnyBody(app);
  // These paths are registered before `/sandbox/:id`, which would take "snapshots" for the id of a sandbox.
  for (const path of ["/sandbox/snapshots", "/sandbox/snapshots/*", "/", "/*"]) {
    app.all(path, ({ method, url }) => {
      const words = pathIn(url).split("/").slice(0, WORDS_SHOWN);
      const known = words.find((word) => Object.hasOwn(INSTEAD, word));
      const what = `${method} /${words.join("/").slice(0, 200)}`;
      throw notSupported(what, known === undefined ? "" : INSTEAD[known]);
    });
  }
}

const pathIn = (url: string): string => (url.split("?", 1)[0] ?? "").slice(MOUNTED_AT.length + 1);

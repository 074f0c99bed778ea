import type { App } from "../../context.ts";
import { takeAnyBody } from "../../routes/files.ts";
import { notSupported } from "../refusals.ts";
import { MOUNTED_AT } from "./parts.ts";

const SNAPSHOTS =
  "A snapshot outlives its sandbox, and a checkpoint here does not; createDiskCheckpoint makes one, and create({ snapshot }) begins with it.";

/** By a word of the path. Whatever is not here is not done either, and then the path says all there is to say. */
const INSTEAD: Readonly<Record<string, string>> = { snapshot: SNAPSHOTS, snapshots: SNAPSHOTS };
const WORDS_SHOWN = 5;

/** What is left of the API once all that is done has its routes. */
export function unsupportedRoutes(app: App): void {
  takeAnyBody(app);
  // The first would be the name of a sandbox.
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

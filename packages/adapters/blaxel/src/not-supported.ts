import type { App } from "../../context.ts";
import { takeAnyBody } from "../../routes/files.ts";
import { notSupported } from "../refusals.ts";

const ARCHIVE =
  "A sandbox that nobody calls sleeps, costs disk only, and keeps memory and processes as well.";
const SCHEDULES = "Nothing is started by the clock; a scheduler outside can call, and wakes what sleeps.";
export const NO_KEYS =
  "Drives have no keys of their own: whoever has a key of the server may mount every drive.";

/** By a word of the path. Whatever is not here is not done either, and then the path says all there is to say. */
const INSTEAD: Readonly<Record<string, string>> = {
  network:
    "Ports that a process opens are not watched for; waitForPorts of an exec waits until they are open.",
  archive: ARCHIVE,
  unarchive: ARCHIVE,
  schedules: SCHEDULES,
  "schedule-executions": SCHEDULES,
  images: "'holdfast image import' adds an image.",
  codegen: "No model is called on a caller's behalf.",
  upgrade: "The keeper comes with the server.",
  environment: "An exec's env is given with it.",
  "access-token": NO_KEYS,
  hub: "There is no hub of images; 'holdfast image ls' lists those that are here.",
  jobs: "Start a sandbox and run the job's command in it.",
};

/** What is left of a plane of the API once all that is done has its routes. */
export function unsupportedRoutes(app: App): void {
  takeAnyBody(app);
  for (const url of ["/", "/*"]) {
    app.all<{ Params: { "*"?: string } }>(url, ({ method, params }) => {
      const words = (params["*"] ?? "").split("/").slice(0, 4);
      const known = words.find((word) => Object.hasOwn(INSTEAD, word));
      throw notSupported(
        `${method} /${words.join("/").slice(0, 200)}`,
        known === undefined ? "" : INSTEAD[known],
      );
    });
  }
}

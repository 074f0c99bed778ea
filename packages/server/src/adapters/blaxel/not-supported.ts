import { HoldfastError } from "@holdfast/contract";
import type { App } from "../../context.ts";
import { takeAnyBody } from "../../routes/files.ts";

/** Says what is not done, by its name in Blaxel's API, and what is there instead. */
export const notSupported = (what: string, instead = ""): HoldfastError =>
  new HoldfastError("not_supported", {
    message: `Holdfast does not do this: ${what}.${instead && ` ${instead}`}`,
  });

/** Which fields something is done about, with the values that can be had. */
export type Known = Readonly<Record<string, (value: unknown) => boolean>>;
export const isAnything = () => true;

/** A field that asks for something unheard of is refused like one that asks for what is not had: by its name. */
export function refuseFields(
  where: string,
  given: Readonly<Record<string, unknown>>,
  known: Known,
  why: Readonly<Record<string, string>> = {},
): void {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (Object.hasOwn(known, name) && known[name]?.(value)) continue;
    throw notSupported(`${where}.${name}`, Object.hasOwn(why, name) ? why[name] : "Leave it out.");
  }
}

/** All fields of a schema, whatever they hold. */
export const fieldsOf = ({ properties }: { properties: object }): Known =>
  Object.fromEntries(Object.keys(properties).map((name) => [name, isAnything]));

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

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
export function refuseFields(where: string, given: Readonly<Record<string, unknown>>, known: Known): void {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (Object.hasOwn(known, name) && known[name]?.(value)) continue;
    throw notSupported(`${where}.${name}`, "Leave it out.");
  }
}

/** All fields of a schema, whatever they hold. */
export const fieldsOf = ({ properties }: { properties: object }): Known =>
  Object.fromEntries(Object.keys(properties).map((name) => [name, isAnything]));

const CHECKPOINTS = "Checkpoints and forks are at /v1/sandboxes/:ref/checkpoints.";
const PORTS = "Ports of a sandbox are not published; a command inside reaches them on localhost.";

/** By a word of the path. Whatever is not here is not done either, and then the path says all there is to say. */
const INSTEAD: Readonly<Record<string, string>> = {
  previews: PORTS,
  port: PORTS,
  network: PORTS,
  snapshots: CHECKPOINTS,
  fork: CHECKPOINTS,
  archive: CHECKPOINTS,
  unarchive: CHECKPOINTS,
  volumes: "A drive is persistent as well, and can be mounted at create or later.",
  images: "'holdfast image import' adds an image.",
  codegen: "No model is called on a caller's behalf.",
  upgrade: "The keeper comes with the server.",
  environment: "An exec's env is given with it.",
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

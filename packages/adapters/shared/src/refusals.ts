import { HoldfastError } from "@holdfast/contract";

/** Says what is not done, by its name in the API that it was asked for in, and what is there instead. */
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

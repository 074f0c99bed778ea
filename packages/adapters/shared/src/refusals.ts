import { HoldfastError } from "@holdfast/contract";

/**
 * Builds the error for an unsupported feature. The error contains the feature's name in the platform's API, and an
 * alternative if there is one.
 */
export const notSupported = (what: string, instead = ""): HoldfastError =>
  new HoldfastError("not_supported", {
    message: `Not supported by Holdfast: ${what}.${instead && ` ${instead}`}`,
  });

/** Supported fields of a request. The check of a field says whether a value of the field is supported. */
export type Known = Readonly<Record<string, (value: unknown) => boolean>>;
export const isAnything = () => true;

/** Refuses unknown fields and unsupported values, by field name. */
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

/** Allows all fields of a schema, with any value. */
export const fieldsOf = ({ properties }: { properties: object }): Known =>
  Object.fromEntries(Object.keys(properties).map((name) => [name, isAnything]));

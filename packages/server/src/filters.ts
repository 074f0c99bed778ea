import { HoldfastError, type Labels } from "@holdfast/contract";

/** Values given repeated or separated by commas, each one of the known; undefined where nothing was given. */
export function oneOfEach<Value extends string>(
  name: string,
  given: readonly string[] | undefined,
  known: readonly Value[],
): Value[] | undefined {
  const values = given?.flatMap((item) => item.split(",")).filter((item) => item !== "");
  if (!values || values.length === 0) return undefined;
  return values.map((value) => {
    const match = known.find((item) => item === value);
    if (match !== undefined) return match;
    throw new HoldfastError("invalid_request", {
      message: `query/${name} is "${value}"; it may be ${known.join(", ")}.`,
    });
  });
}

/** `key=value`, repeated; all must match. */
export function labelFilter(given: readonly string[] | undefined): Labels | undefined {
  if (!given || given.length === 0) return undefined;
  return Object.fromEntries(
    given.map((item) => {
      const at = item.indexOf("=");
      if (at > 0) return [item.slice(0, at), item.slice(at + 1)];
      throw new HoldfastError("invalid_request", {
        message: `query/label is "${item}"; it must have the form key=value.`,
      });
    }),
  );
}

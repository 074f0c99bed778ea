import { type Static, type TSchema, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { HoldfastError } from "@holdfast/contract";

/** What the engine is asked for in the end obeys the contract's schema, whoever asked for it. */
export function checker<Schema extends TSchema>(
  schema: Schema,
): (value: unknown, what: string) => Static<Schema> {
  const check = TypeBoxValidatorCompiler({ schema, method: "", url: "", httpPart: "body" });
  return (value, what) => {
    const result: unknown = check(value);
    if (typeof result === "object" && result !== null && "value" in result)
      return result.value as Static<Schema>;
    throw new HoldfastError("invalid_request", { message: `${what}: ${firstOf(result)}` });
  };
}

function firstOf(result: unknown): string {
  const { error } = result as { error?: { instancePath?: string; message?: string }[] };
  // That a field may be there at all is said of its parent; what it may hold is the better answer.
  const finding = error?.find(({ message }) => message !== "schema is false") ?? error?.[0];
  return `${finding?.instancePath ?? ""} ${finding?.message ?? "is not valid"}.`.trim();
}

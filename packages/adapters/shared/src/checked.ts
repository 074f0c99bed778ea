import { type Static, type TSchema, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { HoldfastError } from "@holdfast/contract";

/**
 * Returns a function that checks a translated request against the contract's schema. The function throws if the request
 * is invalid, because the platform's client may have sent any value.
 */
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
  // An error about the value itself is preferred. The error "schema is false" of the parent schema only says that a
  // field is unknown.
  const finding = error?.find(({ message }) => message !== "schema is false") ?? error?.[0];
  return `${finding?.instancePath ?? ""} ${finding?.message ?? "is not valid"}.`.trim();
}

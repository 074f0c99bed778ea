import { type TSchema, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import type { FastifySchemaCompiler } from "fastify";

/**
 * Bodies are taken as they are: `"1"` is not a number. Queries and paths are text, so numbers, booleans and lists are
 * read from it first, strictly: `1.5` is no integer and `yes` no boolean.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = (route) => {
  const check = TypeBoxValidatorCompiler({ ...route, httpPart: "body" });
  if (route.httpPart === "body") return check;
  const properties = Object.entries(propertiesOf(route.schema));
  return (value: Record<string, unknown>) => {
    const read: Record<string, unknown> = { ...value };
    for (const [name, property] of properties) {
      if (read[name] !== undefined) read[name] = readText(property.type, read[name]);
    }
    return check(read);
  };
};

function propertiesOf(schema: TSchema): Record<string, { type?: unknown }> {
  return "properties" in schema ? (schema.properties as Record<string, { type?: unknown }>) : {};
}

function readText(type: unknown, value: unknown): unknown {
  if (type === "array") return Array.isArray(value) ? value : [value];
  if (typeof value !== "string") return value;
  if (type === "integer" && /^-?\d{1,15}$/.test(value)) return Number(value);
  if (type === "boolean" && (value === "true" || value === "false")) return value === "true";
  return value;
}

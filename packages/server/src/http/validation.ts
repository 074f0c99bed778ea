import { type TSchema, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { HoldfastError } from "@holdfast/contract";
import type { FastifyRequest, FastifySchemaCompiler } from "fastify";
import { quoteFields } from "./wire-errors.ts";

/**
 * Validates requests. Bodies are taken literally: `"1"` is not a number. Query and path values are text, so numbers,
 * booleans and lists are first parsed strictly: `1.5` is not an integer and `yes` is not a boolean.
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

/**
 * Path prefix of Holdfast's own API. Unknown query fields are refused only below this prefix, because clients of other
 * platforms may send fields that their own platform ignores.
 */
const OWN_API = "/v1/";

/**
 * Refuses unknown fields of the query. If a misspelt filter or option were ignored, the caller would believe that it
 * was applied, and would take an unfiltered list for a filtered one.
 */
export function checkQuery({ query, routeOptions }: Pick<FastifyRequest, "query" | "routeOptions">): void {
  const { url, config, schema } = routeOptions;
  if (!url?.startsWith(OWN_API) || config.anyQuery) return;
  const known = Object.keys(propertiesOf((schema?.querystring ?? {}) as TSchema));
  const unknown = Object.keys(query as object).filter((name) => !known.includes(name));
  if (unknown.length === 0) return;
  const fields = unknown.length === 1 ? "field" : "fields";
  const expected =
    known.length === 0 ? "This call has no query fields." : `Known fields: ${known.join(", ")}.`;
  throw new HoldfastError("invalid_request", {
    message: `query has the unknown ${fields} ${quoteFields(unknown)}. ${expected}`,
  });
}

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

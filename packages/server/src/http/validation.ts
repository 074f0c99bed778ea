import { Readable } from "node:stream";
import { type TSchema, TypeBoxValidatorCompiler } from "@fastify/type-provider-typebox";
import { HoldfastError } from "@holdfast/contract";
import type { FastifyRequest, FastifySchemaCompiler } from "fastify";
import { describeFindings, type Finding, quoteFields } from "./findings.ts";

/**
 * Validates requests. Bodies are taken literally: `"1"` is not a number. Query and path values are text, so numbers,
 * booleans and lists are first parsed strictly: `1.5` is not an integer and `yes` is not a boolean.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = (route) => {
  const check = wordedCheck(route);
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
 * Names of parts of a request in error messages, by Fastify's name. A part that is missing here keeps Fastify's name.
 */
const PLACES: Readonly<Record<string, string>> = { querystring: "query", params: "path", headers: "header" };

type Compiled = Parameters<FastifySchemaCompiler<TSchema>>[0];

/**
 * Returns the validator of one part of a request. If a value is invalid, the validator returns an error that describes
 * what is wrong.
 */
function wordedCheck(route: Compiled): (value: unknown) => { value: unknown } | { error: HoldfastError } {
  const check = TypeBoxValidatorCompiler({ ...route, httpPart: "body" });
  const part = route.httpPart ?? "request";
  return (value) => {
    const result = check(value) as { value: unknown } | { error: Finding[] };
    if (!("error" in result)) return result;
    const message = describeFindings(result.error, route.schema, PLACES[part] ?? part);
    return { error: new HoldfastError("invalid_request", { message }) };
  };
}

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

/**
 * Refuses fields in the JSON body of a call that has no body. Otherwise a caller who sends an option to the wrong call
 * would believe that the option is applied.
 */
export function checkBody({ body, headers, routeOptions }: BodyPart): void {
  const { url, schema } = routeOptions;
  if (!url?.startsWith(OWN_API) || schema?.body !== undefined) return;
  const isJson = headers["content-type"]?.startsWith("application/json") === true;
  if (!isJson || body === undefined || body === null || isBytes(body)) return;
  const names = typeof body === "object" && !Array.isArray(body) ? Object.keys(body) : null;
  if (names?.length === 0) return;
  const fields = names?.length === 1 ? "field" : "fields";
  const found = names === null ? "" : `body has the unknown ${fields} ${quoteFields(names)}. `;
  throw new HoldfastError("invalid_request", { message: `${found}This call has no body.` });
}

type BodyPart = Pick<FastifyRequest, "body" | "headers" | "routeOptions">;

/** Whether the body is bytes or a stream. Such a body has no fields to check: its route reads it. */
const isBytes = (body: unknown): boolean => body instanceof Uint8Array || body instanceof Readable;

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

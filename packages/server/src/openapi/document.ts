/**
 * Builds the OpenAPI 3.1 document from the schemas that validate requests. OpenAPI 3.1 uses the JSON Schema that
 * TypeBox produces, so schemas are included unchanged; those with an `$id` become components.
 */
import { ERRORS, ErrorBody, type ErrorCode } from "@holdfast/contract";
import type { FastifySchema, RouteOptions } from "fastify";
import { isPassingStatus } from "../http/retry-after.ts";
import type { RouteFacts } from "../http/route-config.ts";

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type JsonObject = { [key: string]: Json };

export interface DescribedRoute {
  method: string;
  url: string;
  schema: FastifySchema;
  facts: RouteFacts;
}

/** Returns an entry for each method of the route except HEAD; none if the route is not in the API document. */
export function describedRoutes(route: RouteOptions): DescribedRoute[] {
  const schema = route.schema;
  if (!schema?.operationId) return [];
  const methods = Array.isArray(route.method) ? route.method : [route.method];
  return methods
    .filter((method) => method !== "HEAD")
    .map((method) => ({ method, url: route.url, schema, facts: route.config ?? {} }));
}

const ALWAYS: readonly ErrorCode[] = ["invalid_request", "internal"];
const WITH_KEY: readonly ErrorCode[] = ["unauthorized"];
const WITH_JSON: readonly ErrorCode[] = ["too_large", "unsupported_media_type"];
const ONCE_STARTED: readonly ErrorCode[] = ["starting", "shutting_down"];

export function createDocument(routes: readonly DescribedRoute[], version: string): JsonObject {
  const components: JsonObject = {};
  const paths: Record<string, JsonObject> = {};
  for (const route of routes) {
    const path = route.url.replaceAll(/:(\w+)/g, "{$1}");
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operation(route, components) };
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "Holdfast",
      version,
      description: "Sandboxes for AI agents on your own machines that never lie, never hang and never leak.",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    security: [{ key: [] }],
    paths,
    components: {
      securitySchemes: { key: { type: "http", scheme: "bearer", description: "a Holdfast API key" } },
      schemas: sorted(components),
    },
  };
}

const sorted = (object: JsonObject): JsonObject =>
  Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));

function operation({ schema, facts }: DescribedRoute, components: JsonObject): JsonObject {
  const made: JsonObject = { operationId: schema.operationId ?? "", summary: schema.summary ?? "" };
  if (schema.description) made.description = schema.description;
  if (schema.tags) made.tags = [...schema.tags];
  if (facts.public) made.security = [];
  const parameters = [
    ...parametersOf(schema.params, "path", components),
    ...parametersOf(schema.querystring, "query", components),
    ...parametersOf(schema.headers, "header", components),
  ];
  if (parameters.length > 0) made.parameters = parameters;
  const requestBody = requestBodyOf(schema, facts, components);
  if (requestBody) made.requestBody = requestBody;
  made.responses = { ...successes(schema, facts, components), ...failures(schema, facts, components) };
  return made;
}

function requestBodyOf(schema: FastifySchema, facts: RouteFacts, components: JsonObject): JsonObject | null {
  if (facts.bytesIn) {
    const content = { "application/octet-stream": { schema: { type: "string", format: "binary" } } };
    return { required: true, description: facts.bytesIn, content };
  }
  if (!schema.body) return null;
  const content = { "application/json": { schema: asJson(schema.body, components) } };
  return { required: !facts.optionalBody, content };
}

function parametersOf(part: unknown, where: string, components: JsonObject): JsonObject[] {
  const { properties = {}, required = [] } = (part ?? {}) as {
    properties?: Record<string, { description?: string }>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, property]) => {
    const { description, ...schema } = property;
    const parameter: JsonObject = { name, in: where, required: required.includes(name) };
    if (description) parameter.description = description;
    parameter.schema = asJson(schema, components);
    return parameter;
  });
}

function successes(schema: FastifySchema, facts: RouteFacts, components: JsonObject): JsonObject {
  const answers: Record<string, JsonObject> = {};
  for (const [status, body] of Object.entries((schema.response ?? {}) as Record<string, object>)) {
    const description =
      "description" in body ? String(body.description) : (DESCRIPTIONS[status] ?? "The response.");
    answers[status] = { description };
    if (!isEmpty(body))
      answers[status].content = { "application/json": { schema: asJson(body, components) } };
  }
  for (const [status, types] of Object.entries(facts.content ?? {})) {
    const content = Object.entries(types).map(([type, body]) => [type, { schema: asJson(body, components) }]);
    const answer: JsonObject = answers[status] ?? { description: DESCRIPTIONS[status] ?? "The response." };
    answers[status] = {
      ...answer,
      content: { ...(answer.content as JsonObject), ...Object.fromEntries(content) },
    };
  }
  return answers;
}

const DESCRIPTIONS: Readonly<Record<string, string>> = {
  200: "Success; the result has taken effect.",
  201: "Created.",
  202: "Accepted; still in progress.",
  204: "Done.",
  206: "The requested range.",
};
const isEmpty = (body: object) => "type" in body && body.type === "null";

function failures(schema: FastifySchema, facts: RouteFacts, components: JsonObject): JsonObject {
  const codes = new Set<ErrorCode>([
    ...ALWAYS,
    ...(facts.public ? [] : WITH_KEY),
    ...(facts.early ? [] : ONCE_STARTED),
    ...(schema.body ? WITH_JSON : []),
    ...(facts.errors ?? []),
  ]);
  const byStatus = Map.groupBy(codes, (code) => ERRORS[code].status);
  const body = asJson(facts.dialect?.errorSchema ?? ErrorBody, components);
  return Object.fromEntries(
    [...byStatus].map(([status, group]) => [
      status,
      {
        description: group.map((code) => `\`${code}\`: ${ERRORS[code].message}`).join(" "),
        ...(isPassingStatus(status) ? { headers: RETRY_AFTER } : {}),
        content: { "application/json": { schema: body } },
      },
    ]),
  );
}

const RETRY_AFTER: JsonObject = {
  "Retry-After": { description: "seconds to wait before repeating the request", schema: { type: "integer" } },
};

const asJson = (schema: unknown, components: JsonObject): Json =>
  hoist(JSON.parse(JSON.stringify(schema)) as Json, components);

function hoist(schema: Json, components: JsonObject): Json {
  if (Array.isArray(schema)) return schema.map((item) => hoist(item, components));
  if (schema === null || typeof schema !== "object") return schema;
  const { $id, $defs, $ref, ...rest } = schema;
  if ($defs !== undefined) hoist($defs, components);
  const plain = Object.fromEntries(
    Object.entries(rest).map(([key, value]) => [key, hoist(value, components)]),
  );
  if (typeof $ref === "string") return { ...plain, $ref: `#/components/schemas/${$ref}` };
  if (typeof $id !== "string") return plain;
  components[$id] = plain;
  return { $ref: `#/components/schemas/${$id}` };
}

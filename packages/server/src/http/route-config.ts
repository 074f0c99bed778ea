import type { TSchema } from "@fastify/type-provider-typebox";
import type { ErrorCode } from "@holdfast/contract";
import type { Dialect } from "../ports/dialect.ts";

/** Properties of a route that its schema does not contain. The key check and the OpenAPI document use them. */
export interface RouteFacts {
  /** Whether the route needs no API key, because it serves nothing secret or checks other credentials itself. */
  public?: true;
  /** Whether the route is served during recovery. */
  early?: true;
  /** Whether the route is a WebSocket, where the key may be sent as a subprotocol. */
  socket?: true;
  /** For routes of an adapter: the error format and the key header of the client's platform. */
  dialect?: Dialect;
  /** Error codes beyond those that every route can return. */
  errors?: readonly ErrorCode[];
  /** Whether the route accepts every query field, because the program in the sandbox interprets the query. */
  anyQuery?: true;
  /** Whether a missing body is treated as an empty object. */
  optionalBody?: true;
  /** Description of a body that consists of bytes. */
  bytesIn?: string;
  /** Content of responses other than JSON: their schemas by status and media type. */
  content?: Readonly<Record<number, Readonly<Record<string, TSchema>>>>;
}

declare module "fastify" {
  interface FastifyContextConfig extends RouteFacts {}
  interface FastifySchema {
    operationId?: string;
    summary?: string;
    description?: string;
    tags?: readonly string[];
    hide?: boolean;
  }
}

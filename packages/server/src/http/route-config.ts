import type { TSchema } from "@fastify/type-provider-typebox";
import type { ErrorCode } from "@holdfast/contract";
import type { Dialect } from "./adapters/dialect.ts";

/** What a route says about itself beyond its schema: for the gate, and for the OpenAPI document. */
export interface RouteFacts {
  /** No key is needed: nothing secret is served, or something else lets in. */
  public?: true;
  /** Served while the server still recovers. */
  early?: true;
  /** A WebSocket: its key may come as a subprotocol. */
  socket?: true;
  /** Called by the client of another platform, and answered as that expects. */
  dialect?: Dialect;
  /** Errors beyond those that every route can answer with. */
  errors?: readonly ErrorCode[];
  /** A request without a body means one with nothing in it. */
  optionalBody?: true;
  /** The body is bytes; this says which. */
  bytesIn?: string;
  /** Answers in other forms than JSON, by status and media type. */
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

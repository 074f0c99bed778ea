import type { TSchema } from "@fastify/type-provider-typebox";
import type { WireError } from "./wire-error.ts";

/** The error format and key header that the client of another platform expects. */
export interface Dialect {
  /** Header, in lower case, that carries the client's key. `Authorization` is accepted too. */
  keyHeader: string;
  /** Returns the error body in the client's format. */
  errorBody(error: WireError): object;
  /** Returns the HTTP status to send, if the client would misinterpret Holdfast's own status. */
  errorStatus?(error: WireError): number;
  /** Schema of the error body, for routes that are in the API document. */
  errorSchema?: TSchema;
}

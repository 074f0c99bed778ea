import type { TSchema } from "@fastify/type-provider-typebox";
import type { WireError } from "../errors.ts";

/** What the client of another platform expects where Holdfast's own way differs. */
export interface Dialect {
  /** The header that its key comes in, in lower case. `Authorization` does as well. */
  keyHeader: string;
  /** The body that tells it of an error. */
  errorBody(error: WireError): object;
  /** The status that goes with it, where the client would take ours for something else. */
  errorStatus?(error: WireError): number;
  /** What that body is, where its routes are in the API document. */
  errorSchema?: TSchema;
}

import { BLAXEL_KEY_HEADER } from "../../auth.ts";
import type { Dialect } from "../dialect.ts";

/**
 * How the Blaxel client is told of errors. It tests `code` for the HTTP status, and of many errors it shows only `error`:
 * our code and the request's id stand in that text too, so that whatever its user gets to see leads to the server's log.
 */
export const BLAXEL: Dialect = {
  keyHeader: BLAXEL_KEY_HEADER,
  errorBody: ({ status, body }) => {
    const { code, message, requestId, ...rest } = body.error;
    const error = `${message} (${code}, ${requestId})`;
    return { code: status, error, message, errorCode: code, requestId, ...rest };
  },
};

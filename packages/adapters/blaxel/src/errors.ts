import type { Dialect } from "@holdfast/server/adapter";

/**
 * Converts errors to the format of the Blaxel client. The client compares `code` with the HTTP status. For many errors
 * it shows only the text in `error`, so that text includes Holdfast's code and the request id; the request id
 * identifies the request in the server's log.
 */
export const BLAXEL: Dialect = {
  keyHeader: "x-blaxel-authorization",
  errorBody: ({ status, body }) => {
    const { code, message, requestId, ...rest } = body.error;
    const error = `${message} (${code}, ${requestId})`;
    return { code: status, error, message, errorCode: code, requestId, ...rest };
  },
};
